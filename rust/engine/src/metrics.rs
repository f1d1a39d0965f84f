//! What is counted, and how Prometheus reads it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::call::Origin;
use crate::reserve::Census;
use crate::standby::Load;

const SECONDS: [f64; 16] =
    [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];

#[derive(Default)]
pub struct Metrics(Mutex<Counts>);

#[derive(Default)]
struct Counts {
    evaluations: BTreeMap<&'static str, u64>,
    exits: BTreeMap<String, u64>,
    duration: Histogram,
    executions: BTreeMap<Origin, Histogram>,
    queue_wait: Histogram,
    request_bytes: u64,
    response_bytes: u64,
}

#[derive(Default)]
struct Histogram {
    buckets: [u64; SECONDS.len()],
    sum: f64,
    count: u64,
}

impl Metrics {
    /// A call was answered, with this code.
    pub fn evaluated(&self, code: &'static str, duration: Duration, request_bytes: usize, response_bytes: usize) {
        let mut counts = self.counts();
        *counts.evaluations.entry(code).or_default() += 1;
        counts.duration.record(duration);
        counts.request_bytes += request_bytes as u64;
        counts.response_bytes += response_bytes as u64;
    }

    /// A call got its turn.
    pub fn waited(&self, duration: Duration) {
        self.counts().queue_wait.record(duration);
    }

    /// A call's process has ended; how it had come, and how long the call needed it.
    pub fn executed(&self, origin: Origin, duration: Duration) {
        self.counts().executions.entry(origin).or_default().record(duration);
    }

    /// A function ended by itself, with this exit code or by this signal.
    pub fn exited(&self, exit: &str) {
        let mut counts = self.counts();
        match counts.exits.get_mut(exit) {
            Some(count) => *count += 1,
            None => {
                counts.exits.insert(exit.to_owned(), 1);
            }
        }
    }

    /// Prometheus' text format; the gauges are those of the moment.
    pub fn render(&self, load: Load, memory: u64, standby: Option<&Census>) -> String {
        let counts = self.counts();
        let mut text = String::new();
        counter(&mut text, "evaluations", "Evaluations, by gRPC code", "code", &counts.evaluations);
        counter(
            &mut text,
            "function_exits",
            "Functions that ended by themselves, by exit code or signal",
            "exit",
            &counts.exits,
        );
        let executions = counts.executions.iter().map(|(origin, times)| (origin.name(), times.count)).collect();
        counter(
            &mut text,
            "executions",
            "Executions, by process: started for the call, or one that waited for it",
            "process",
            &executions,
        );
        let all = |histogram| [(String::new(), histogram)];
        let described = "From the request's arrival to its answer";
        histogram(&mut text, "evaluation_duration_seconds", described, all(&counts.duration));
        let described = "How long calls waited for their turn";
        histogram(&mut text, "queue_wait_seconds", described, all(&counts.queue_wait));
        let described = "From a call's turn to the end of its process";
        let executions =
            counts.executions.iter().map(|(origin, times)| (format!("process=\"{}\"", origin.name()), times));
        histogram(&mut text, "execution_duration_seconds", described, executions);
        let single = |value: u64| BTreeMap::from([("", value)]);
        counter(&mut text, "request_bytes", "Requests received", "", &single(counts.request_bytes));
        counter(&mut text, "response_bytes", "Responses sent", "", &single(counts.response_bytes));
        for (name, help, value) in [
            ("executions_running", "Processes under way", Some(load.running as u64)),
            ("executions_waiting", "Calls that wait for a process", Some(load.waiting as u64)),
            ("executions_memory_bytes", "What processes under way are expected to take", Some(memory)),
            ("standby_processes", "Processes that wait for a call", standby.map(|census| census.waiting as u64)),
            ("standby_memory_bytes", "Memory that is theirs alone", standby.and_then(|census| census.private_memory)),
        ] {
            let Some(value) = value else { continue };
            let _ = write!(
                text,
                "# HELP krm_wrapper_{name} {help}\n# TYPE krm_wrapper_{name} gauge\nkrm_wrapper_{name} {value}\n"
            );
        }
        text
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn counter<K: AsRef<str> + Ord>(text: &mut String, name: &str, help: &str, label: &str, values: &BTreeMap<K, u64>) {
    let _ = write!(text, "# HELP krm_wrapper_{name}_total {help}\n# TYPE krm_wrapper_{name}_total counter\n");
    for (key, value) in values {
        let labels = if label.is_empty() { String::new() } else { format!("{{{label}=\"{}\"}}", key.as_ref()) };
        let _ = writeln!(text, "krm_wrapper_{name}_total{labels} {value}");
    }
}

impl Histogram {
    fn record(&mut self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        if let Some(index) = SECONDS.iter().position(|bound| seconds <= *bound) {
            self.buckets[index] += 1;
        }
        self.sum += seconds;
        self.count += 1;
    }

    /// `labels` is empty, or `name="value"`.
    fn render(&self, text: &mut String, name: &str, labels: &str) {
        let more = if labels.is_empty() { String::new() } else { format!("{labels},") };
        let own = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
        let mut total = 0;
        for (bound, count) in SECONDS.iter().zip(self.buckets) {
            total += count;
            let _ = writeln!(text, "krm_wrapper_{name}_bucket{{{more}le=\"{bound}\"}} {total}");
        }
        let _ = writeln!(text, "krm_wrapper_{name}_bucket{{{more}le=\"+Inf\"}} {}", self.count);
        let _ =
            writeln!(text, "krm_wrapper_{name}_sum{own} {}\nkrm_wrapper_{name}_count{own} {}", self.sum, self.count);
    }
}

/// One metric, with a series for each of its labels.
fn histogram<'a>(text: &mut String, name: &str, help: &str, series: impl IntoIterator<Item = (String, &'a Histogram)>) {
    let _ = write!(text, "# HELP krm_wrapper_{name} {help}\n# TYPE krm_wrapper_{name} histogram\n");
    for (labels, histogram) in series {
        histogram.render(text, name, &labels);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn renders_what_was_counted() {
        let metrics = Metrics::default();
        metrics.evaluated("OK", Duration::from_millis(3), 10, 20);
        metrics.evaluated("OK", Duration::from_secs(600), 10, 20);
        metrics.exited("0");
        metrics.executed(Origin::Standby, Duration::from_millis(2));
        metrics.executed(Origin::OnDemand, Duration::from_millis(5));
        metrics.executed(Origin::OnDemand, Duration::from_millis(6));
        let census = Census { waiting: 3, private_memory: Some(4096) };
        let text = metrics.render(Load { running: 1, waiting: 2 }, 5000, Some(&census));
        for line in [
            "krm_wrapper_evaluations_total{code=\"OK\"} 2",
            "krm_wrapper_function_exits_total{exit=\"0\"} 1",
            "krm_wrapper_evaluation_duration_seconds_bucket{le=\"0.0025\"} 0",
            "krm_wrapper_evaluation_duration_seconds_bucket{le=\"0.005\"} 1",
            "krm_wrapper_evaluation_duration_seconds_bucket{le=\"120\"} 1",
            "krm_wrapper_evaluation_duration_seconds_bucket{le=\"+Inf\"} 2",
            "krm_wrapper_evaluation_duration_seconds_sum 600.003",
            "krm_wrapper_request_bytes_total 20",
            "krm_wrapper_executions_running 1",
            "krm_wrapper_executions_waiting 2",
            "krm_wrapper_executions_total{process=\"standby\"} 1",
            "krm_wrapper_executions_total{process=\"on-demand\"} 2",
            "krm_wrapper_execution_duration_seconds_bucket{process=\"standby\",le=\"0.0025\"} 1",
            "krm_wrapper_execution_duration_seconds_count{process=\"on-demand\"} 2",
            "krm_wrapper_execution_duration_seconds_sum{process=\"standby\"} 0.002",
            "krm_wrapper_standby_processes 3",
            "krm_wrapper_executions_memory_bytes 5000",
            "krm_wrapper_standby_memory_bytes 4096",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        let unknown = Census { waiting: 1, private_memory: None };
        assert!(!metrics.render(Load::default(), 0, Some(&unknown)).contains("standby_memory_bytes"));
        assert!(!metrics.render(Load::default(), 0, None).contains("standby_processes"));
    }
}
