//! The two kinds of load. Both are bounded, in time and in calls.

use std::io;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::alarm::Alarm;
use crate::tally::{Report, Tally};
use crate::target::{Caller, Target};

const MAX_CALLS: usize = 1_000_000;
/// One with which short runs, too, have the rate that was asked for.
const SEED: u64 = 7;

/// Callers that wait for their answers.
pub async fn closed(target: &Target, callers: usize, pause: Duration, seconds: f64) -> io::Result<Report> {
    let started = Arc::new(AtomicUsize::new(0));
    let (begin, cpu) = (Instant::now(), cpu_time()?);
    let end = begin + Duration::from_secs_f64(seconds);
    let mut tasks = JoinSet::new();
    for turn in 0..callers {
        tasks.spawn(call_until(target.caller(turn), end, pause, Arc::clone(&started)));
    }
    let mut tally = Tally::default();
    while let Some(own) = tasks.join_next().await {
        tally.add(own?);
    }
    Ok(Report { tally, time: begin.elapsed(), cpu_time: cpu_time()?.saturating_sub(cpu) })
}

async fn call_until(mut caller: Caller, end: Instant, pause: Duration, started: Arc<AtomicUsize>) -> Tally {
    let mut tally = Tally::default();
    let mut begin = Instant::now();
    while begin < end && started.fetch_add(1, Ordering::Relaxed) < MAX_CALLS {
        let result = caller.call(begin).await;
        // Even where no call gets as far as to wait for something, the others have their turn.
        if result.is_err() {
            tokio::task::yield_now().await;
        }
        let mut now = Instant::now();
        tally.note(result, begin, now, end);
        if !pause.is_zero() {
            tokio::time::sleep(pause).await;
            now = Instant::now();
        }
        begin = now;
    }
    tally
}

/// Calls at a rate, whatever comes of them; a call's time counts from when it was due.
pub async fn open(target: &Target, rate: f64, seconds: f64) -> io::Result<Report> {
    let alarm = Alarm::new()?;
    let tally = Arc::new(Mutex::new(Tally::default()));
    let mut arrivals = Arrivals { rate, state: SEED };
    let (begin, cpu) = (Instant::now(), cpu_time()?);
    let length = Duration::from_secs_f64(seconds);
    let end = begin + length;
    let mut due = begin;
    let mut tasks = JoinSet::new();
    for turn in 0..MAX_CALLS {
        if due >= end {
            break;
        }
        alarm.wait_until(due).await?;
        tasks.spawn(call_once(target.caller(turn), due, end, Arc::clone(&tally)));
        while tasks.try_join_next().is_some() {}
        due += arrivals.next_gap();
    }
    while let Some(ended) = tasks.join_next().await {
        ended?;
    }
    let tally = std::mem::take(&mut *tally.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Report { tally, time: length, cpu_time: cpu_time()?.saturating_sub(cpu) })
}

async fn call_once(mut caller: Caller, due: Instant, end: Instant, tally: Arc<Mutex<Tally>>) {
    let result = caller.call(due).await;
    let now = Instant::now();
    tally.lock().unwrap_or_else(PoisonError::into_inner).judge(result, due, now, end);
}

/// When independent callers call: the same each time (splitmix64).
struct Arrivals {
    rate: f64,
    state: u64,
}

impl Arrivals {
    fn next_gap(&mut self) -> Duration {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let uniform = (f64::from((mixed >> 32) as u32) + 0.5) / (f64::from(u32::MAX) + 1.0);
        Duration::from_secs_f64(-uniform.ln() / self.rate)
    }
}

/// Of this process so far.
fn cpu_time() -> io::Result<Duration> {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the kernel fills the structure that it is given.
    if unsafe { libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) } < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call has succeeded.
    let usage = unsafe { usage.assume_init() };
    Ok([usage.ru_utime, usage.ru_stime].into_iter().map(duration).sum())
}

fn duration(time: libc::timeval) -> Duration {
    Duration::from_secs(time.tv_sec.unsigned_abs()) + Duration::from_micros(time.tv_usec.unsigned_abs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrivals_have_the_rate_and_no_rhythm() {
        let gaps = || {
            let mut arrivals = Arrivals { rate: 100.0, state: SEED };
            (0..100_000).map(|_| arrivals.next_gap().as_secs_f64()).collect::<Vec<_>>()
        };
        let found = gaps();
        assert_eq!(found, gaps());
        for (count, expected) in [(1_000, 10.0), (7_000, 70.0), (100_000, 1_000.0)] {
            let seconds = found[..count].iter().sum::<f64>();
            assert!((seconds / expected - 1.0).abs() < 0.02, "{count}: {seconds}");
        }
        // Of an exponential distribution, the share that lies below the mean is 1 - 1/e.
        let below = found.iter().filter(|gap| **gap < 0.01).count();
        assert!((62_000..64_500).contains(&below), "{below}");
    }
}
