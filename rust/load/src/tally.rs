//! What became of calls, and the report about it.

use std::fmt::Write;
use std::time::{Duration, Instant};

use crate::status::{DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED, Status};

#[derive(Default)]
pub struct Tally {
    answered: Vec<Duration>,
    refused: Vec<Duration>,
    late: usize,
    /// Answered while calls were started; what was left in line at the end does not count.
    good: usize,
    failures: usize,
    failure: String,
}

impl Tally {
    /// Counts a call of which an answer is expected.
    pub fn note(&mut self, result: Result<(), Status>, begin: Instant, now: Instant, end: Instant) {
        match result {
            Ok(()) => {
                self.answered.push(now - begin);
                self.good += usize::from(now < end);
            }
            Err(status) => self.fail(status.to_string()),
        }
    }

    /// Counts a call of a load that is meant to be too much: to be refused, or late, is no failure.
    pub fn judge(&mut self, result: Result<(), Status>, begin: Instant, now: Instant, end: Instant) {
        match result {
            Err(Status { code: DEADLINE_EXCEEDED, .. }) => self.late += 1,
            Err(status) if status.code == RESOURCE_EXHAUSTED => {
                if status.says_when_to_retry() {
                    self.refused.push(now - begin);
                } else {
                    self.fail(format!("refused without RetryInfo: {status}"));
                }
            }
            result => self.note(result, begin, now, end),
        }
    }

    fn fail(&mut self, failure: String) {
        self.failures += 1;
        self.failure = failure;
    }

    pub fn add(&mut self, other: Self) {
        self.answered.extend(other.answered);
        self.refused.extend(other.refused);
        self.late += other.late;
        self.good += other.good;
        self.failures += other.failures;
        if other.failures > 0 {
            self.failure = other.failure;
        }
    }
}

pub struct Report {
    pub tally: Tally,
    /// While calls were started; with callers, until the last answer.
    pub time: Duration,
    pub cpu_time: Duration,
}

impl Report {
    pub fn json(mut self) -> String {
        let Tally { answered, refused, late, good, failures, failure } = &mut self.tally;
        let (p50, p99) = percentiles(answered);
        let (refused_p50, refused_p99) = percentiles(refused);
        let calls = answered.len() + refused.len() + *late + *failures;
        format!(
            "{{\"calls\":{calls},\"failures\":{failures},\"failure\":{},\"seconds\":{},\"p50_ms\":{p50},\
             \"p99_ms\":{p99},\"cpu_seconds\":{},\"good\":{good},\"refused\":{},\"refused_p50_ms\":{refused_p50},\
             \"refused_p99_ms\":{refused_p99},\"late\":{late}}}",
            quoted(failure),
            self.time.as_secs_f64(),
            self.cpu_time.as_secs_f64(),
            refused.len(),
        )
    }
}

/// 50 and 99, in milliseconds.
fn percentiles(latencies: &mut [Duration]) -> (f64, f64) {
    latencies.sort_unstable();
    let Some(last) = latencies.len().checked_sub(1) else { return (0.0, 0.0) };
    (latencies[last / 2].as_secs_f64() * 1e3, latencies[last * 99 / 100].as_secs_f64() * 1e3)
}

fn quoted(text: &str) -> String {
    let mut json = String::from("\"");
    for character in text.chars() {
        match character {
            '"' | '\\' => json.extend(['\\', character]),
            control if control < ' ' => _ = write!(json, "\\u{:04x}", u32::from(control)),
            other => json.push(other),
        }
    }
    json.push('"');
    json
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status;

    fn milliseconds(count: u64) -> Duration {
        Duration::from_millis(count)
    }

    #[test]
    fn a_report_of_every_ending() {
        let begin = Instant::now();
        let end = begin + milliseconds(100);
        let mut tally = Tally::default();
        for taken in 1..=100 {
            tally.judge(Ok(()), begin, begin + milliseconds(taken), end);
        }
        tally.judge(Err(Status::new(DEADLINE_EXCEEDED, "late")), begin, end, end);
        tally.judge(Err(Status::new(RESOURCE_EXHAUSTED, "full")), begin, end, end);
        let mut sum = Tally::default();
        sum.note(Err(Status::new(status::INTERNAL, "first")), begin, end, end);
        sum.add(tally);
        let report = Report { tally: sum, time: milliseconds(1500), cpu_time: milliseconds(250) };
        assert_eq!(
            report.json(),
            "{\"calls\":103,\"failures\":2,\
             \"failure\":\"refused without RetryInfo: rpc error: code = ResourceExhausted desc = full\",\
             \"seconds\":1.5,\"p50_ms\":50,\"p99_ms\":99,\"cpu_seconds\":0.25,\"good\":99,\"refused\":0,\
             \"refused_p50_ms\":0,\"refused_p99_ms\":0,\"late\":1}"
        );
    }

    #[test]
    fn a_failure_is_quoted() {
        assert_eq!(quoted("a \"b\"\\\n\u{1} ä"), "\"a \\\"b\\\"\\\\\\u000a\\u0001 ä\"");
    }
}
