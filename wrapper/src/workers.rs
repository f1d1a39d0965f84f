//! Threads that run one job after the other: at most so many, started when they are needed, gone when they are not.
//!
//! A thread that is done takes the next job at once, without a detour by the event loop (ADR 7 has what that brings).
//! First come, first served; a job that nobody wants any more is taken
//! out of the line.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

const IDLE: Duration = Duration::from_secs(60);
const STACK: usize = 512 * 1024;

type Job = Box<dyn FnOnce() + Send>;

pub struct Workers {
    limit: usize,
    line: Arc<Line>,
}

#[derive(Default)]
struct Line {
    state: Mutex<State>,
    arrival: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<(u64, Job)>,
    last_number: u64,
    threads: usize,
    idle: usize,
}

/// A job in line; dropping it takes the job out, if it did not begin.
pub struct Queued {
    line: Arc<Line>,
    number: u64,
}

impl Workers {
    pub fn new(limit: usize) -> Self {
        Self { limit, line: Arc::default() }
    }

    /// Fails when there is no thread to run it, and none can be started.
    pub fn submit(&self, job: impl FnOnce() + Send + 'static) -> std::io::Result<Queued> {
        let mut state = self.line.lock();
        if state.idle <= state.jobs.len() && state.threads < self.limit {
            let line = Arc::clone(&self.line);
            let started = thread::Builder::new().name("function".into()).stack_size(STACK).spawn(move || line.work());
            match started {
                Ok(_) => state.threads += 1,
                Err(error) if state.threads == 0 => return Err(error),
                Err(_) => {}
            }
        }
        state.last_number += 1;
        let number = state.last_number;
        state.jobs.push_back((number, Box::new(job)));
        drop(state);
        self.line.arrival.notify_one();
        Ok(Queued { line: Arc::clone(&self.line), number })
    }
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some(job) = self.next() {
            // A defect in one call must not cost the others a thread; whoever waits for this one is told.
            let _ = catch_unwind(AssertUnwindSafe(job));
        }
    }

    /// The next job; nothing when there was none for a while, and then this thread does not count any more.
    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if let Some((_, job)) = state.jobs.pop_front() {
                return Some(job);
            }
            state.idle += 1;
            let (woken, timeout) = self.arrival.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if timeout.timed_out() && state.jobs.is_empty() {
                state.threads -= 1;
                return None;
            }
        }
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let mut state = self.line.lock();
        let position = state.jobs.iter().position(|(number, _)| *number == self.number);
        let job = position.and_then(|position| state.jobs.remove(position));
        // What the job holds is let go of after the lock.
        drop(state);
        drop(job);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn jobs_run_in_order_and_no_more_than_the_limit_at_once() {
        let workers = Workers::new(1);
        let (sender, receiver) = mpsc::channel();
        let queued: Vec<_> = (0..20)
            .map(|number| {
                let sender = sender.clone();
                workers.submit(move || sender.send(number).unwrap()).unwrap()
            })
            .collect();
        assert_eq!((0..20).map(|_| receiver.recv().unwrap()).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
        assert_eq!(workers.line.lock().threads, 1);
        drop(queued);
    }

    #[test]
    fn a_job_that_is_dropped_in_line_never_runs() {
        let workers = Workers::new(1);
        let (block, blocked) = mpsc::channel::<()>();
        let (sender, receiver) = mpsc::channel();
        let _first = workers.submit(move || blocked.recv().unwrap()).unwrap();
        let never = sender.clone();
        drop(workers.submit(move || never.send("never").unwrap()).unwrap());
        let _last = workers.submit(move || sender.send("last").unwrap()).unwrap();
        block.send(()).unwrap();
        assert_eq!(receiver.recv().unwrap(), "last");
    }

    #[test]
    fn a_job_that_panics_costs_nobody_else() {
        let workers = Workers::new(1);
        let (sender, receiver) = mpsc::channel();
        let _broken = workers.submit(|| panic!("a defect, for the test")).unwrap();
        let _next = workers.submit(move || sender.send("next").unwrap()).unwrap();
        assert_eq!(receiver.recv().unwrap(), "next");
    }
}
