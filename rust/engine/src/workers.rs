//! Threads that run one job after the other: at most so many, started when they are needed, gone when they are not.
//!
//! A thread that is done takes the next job at once, without a detour by the event loop (ADR 7 has what that brings).
//! Each function has a line of its own, first come, first served, and the lines take turns, so that a flood of calls of one
//! function delays the others by one turn each. Nobody passes a job whose turn it is and that does not fit into the memory
//! yet; one that never does runs alone. A job that nobody wants any more is taken out of its line.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use crate::panics;

const IDLE: Duration = Duration::from_secs(60);
const STACK: usize = 512 * 1024;

type Job = Box<dyn FnOnce() + Send>;
/// Whose jobs wait in one line.
pub type LineNumber = usize;

pub struct Workers {
    limit: usize,
    line: Arc<Line>,
}

struct Line {
    /// What the jobs at once may take together.
    memory_limit: u64,
    state: Mutex<State>,
    /// Of a job, or of memory for one.
    arrival: Condvar,
}

#[derive(Default)]
struct State {
    /// By function, the one whose turn is next first; none is empty.
    lines: VecDeque<(LineNumber, VecDeque<Waiting>)>,
    /// Jobs in all of them.
    waiting: usize,
    last_number: u64,
    threads: usize,
    idle: usize,
    running: usize,
    /// What those that run are expected to take.
    memory: u64,
}

struct Waiting {
    number: u64,
    memory: u64,
    job: Job,
}

/// A job in line; dropping it takes the job out, if it did not begin.
pub struct Queued {
    line: Arc<Line>,
    line_number: LineNumber,
    number: u64,
}

impl Workers {
    pub fn new(limit: usize, memory_limit: u64) -> Self {
        Self { limit, line: Arc::new(Line { memory_limit, state: Mutex::default(), arrival: Condvar::new() }) }
    }

    /// What the jobs under way are expected to take.
    pub fn memory(&self) -> u64 {
        self.line.lock().memory
    }

    /// A job, and the memory that it is expected to take. Fails when there is no thread to run it, and none can be started.
    pub fn submit(
        &self,
        line_number: LineNumber,
        memory: u64,
        job: impl FnOnce() + Send + 'static,
    ) -> std::io::Result<Queued> {
        let mut state = self.line.lock();
        if state.idle <= state.waiting && state.threads < self.limit {
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
        state.put(line_number, Waiting { number, memory, job: Box::new(job) });
        drop(state);
        self.line.arrival.notify_one();
        Ok(Queued { line: Arc::clone(&self.line), line_number, number })
    }
}

impl Line {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut next = self.next(None);
        while let Some(Waiting { memory, job, .. }) = next {
            // A panic fails its own call only, and the place is free again.
            panics::survives(job);
            next = self.next(Some(memory));
        }
    }

    /// The next job, after one that took so much; nothing when there was none for a while, and then this thread does not
    /// count any more.
    fn next(&self, done: Option<u64>) -> Option<Waiting> {
        let mut state = self.lock();
        if let Some(memory) = done {
            state.running -= 1;
            state.memory = state.memory.saturating_sub(memory);
        }
        loop {
            if let Some(next) = state.take(self.memory_limit) {
                self.wake_another(&state);
                return Some(next);
            }
            state.idle += 1;
            let (woken, timeout) = self.arrival.wait_timeout(state, IDLE).unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.idle -= 1;
            if timeout.timed_out() && state.waiting == 0 {
                state.threads -= 1;
                return None;
            }
        }
    }

    /// What made room for one may have made room for the next, too.
    fn wake_another(&self, state: &State) {
        if state.idle > 0 && state.has_turn(self.memory_limit) {
            self.arrival.notify_one();
        }
    }
}

impl State {
    /// Whether there is room for the one whose turn it is.
    fn has_turn(&self, memory_limit: u64) -> bool {
        let fits = |next: &Waiting| self.running == 0 || self.memory.saturating_add(next.memory) <= memory_limit;
        self.lines.front().and_then(|(_, line)| line.front()).is_some_and(fits)
    }

    fn put(&mut self, line_number: LineNumber, job: Waiting) {
        self.waiting += 1;
        match self.lines.iter_mut().find(|(number, _)| *number == line_number) {
            Some((_, line)) => line.push_back(job),
            None => self.lines.push_back((line_number, VecDeque::from([job]))),
        }
    }

    fn take(&mut self, memory_limit: u64) -> Option<Waiting> {
        let (line_number, mut line) = if self.has_turn(memory_limit) { self.lines.pop_front() } else { None }?;
        let next = line.pop_front()?;
        if !line.is_empty() {
            self.lines.push_back((line_number, line));
        }
        self.waiting -= 1;
        self.running += 1;
        self.memory = self.memory.saturating_add(next.memory);
        Some(next)
    }

    /// Out of its line, if it is still in it.
    fn remove(&mut self, line_number: LineNumber, number: u64) -> Option<Waiting> {
        let place = self.lines.iter().position(|(known, _)| *known == line_number)?;
        let (_, line) = &mut self.lines[place];
        let position = line.iter().position(|waiting| waiting.number == number)?;
        let left = line.remove(position);
        if line.is_empty() {
            self.lines.remove(place);
        }
        self.waiting -= 1;
        left
    }
}

impl Drop for Queued {
    fn drop(&mut self) {
        let mut state = self.line.lock();
        let left = state.remove(self.line_number, self.number);
        if left.is_some() {
            self.line.wake_another(&state);
        }
        // What the job holds is let go of after the lock.
        drop(state);
        drop(left);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn jobs_run_in_order_and_no_more_than_the_limit_at_once() {
        let workers = Workers::new(1, u64::MAX);
        let (sender, receiver) = mpsc::channel();
        let queued: Vec<_> = (0..20)
            .map(|number| {
                let sender = sender.clone();
                workers.submit(0, 0, move || sender.send(number).unwrap()).unwrap()
            })
            .collect();
        assert_eq!((0..20).map(|_| receiver.recv().unwrap()).collect::<Vec<_>>(), (0..20).collect::<Vec<_>>());
        assert_eq!(workers.line.lock().threads, 1);
        drop(queued);
    }

    #[test]
    fn lines_take_turns_and_within_one_the_first_comes_first() {
        let workers = Workers::new(1, u64::MAX);
        let (block, blocked) = mpsc::channel::<()>();
        let (sender, receiver) = mpsc::channel();
        let _first = workers.submit(9, 0, move || blocked.recv().unwrap()).unwrap();
        let submit = |line, name: &'static str| {
            let sender = sender.clone();
            workers.submit(line, 0, move || sender.send(name).unwrap()).unwrap()
        };
        let _flood = ["a1", "a2", "a3"].map(|name| submit(1, name));
        let _others = [submit(2, "b1"), submit(3, "c1"), submit(2, "b2")];
        block.send(()).unwrap();
        assert_eq!([(); 6].map(|()| receiver.recv().unwrap()), ["a1", "b1", "c1", "a2", "b2", "a3"]);
        assert!(workers.line.lock().lines.is_empty());
    }

    #[test]
    fn a_job_that_is_dropped_in_line_never_runs() {
        let workers = Workers::new(1, u64::MAX);
        let (block, blocked) = mpsc::channel::<()>();
        let (sender, receiver) = mpsc::channel();
        let _first = workers.submit(0, 0, move || blocked.recv().unwrap()).unwrap();
        let never = sender.clone();
        drop(workers.submit(0, 0, move || never.send("never").unwrap()).unwrap());
        let _last = workers.submit(0, 0, move || sender.send("last").unwrap()).unwrap();
        block.send(()).unwrap();
        assert_eq!(receiver.recv().unwrap(), "last");
    }

    #[test]
    fn a_job_that_panics_costs_nobody_else() {
        let workers = Workers::new(1, u64::MAX);
        let (sender, receiver) = mpsc::channel();
        let _broken = workers.submit(0, 0, || panic!("a defect, for the test")).unwrap();
        let _next = workers.submit(0, 0, move || sender.send("next").unwrap()).unwrap();
        assert_eq!(receiver.recv().unwrap(), "next");
    }

    /// Jobs that say when they begin, and end when they are told.
    struct Held {
        workers: Workers,
        began: mpsc::Receiver<&'static str>,
        says: mpsc::Sender<&'static str>,
    }

    impl Held {
        fn new(memory_limit: u64) -> Self {
            let (says, began) = mpsc::channel();
            Self { workers: Workers::new(4, memory_limit), began, says }
        }

        fn submit(&self, name: &'static str, memory: u64) -> (Queued, mpsc::Sender<()>) {
            let (end, ended) = mpsc::channel();
            let says = self.says.clone();
            let job = move || {
                says.send(name).unwrap();
                let _ = ended.recv();
            };
            (self.workers.submit(0, memory, job).unwrap(), end)
        }

        fn began(&self, count: usize) -> Vec<&'static str> {
            let mut names: Vec<_> = (0..count).map(|_| self.began.recv().unwrap()).collect();
            names.sort_unstable();
            names
        }

        fn nobody_began(&self) -> bool {
            self.began.recv_timeout(Duration::from_millis(100)).is_err()
        }
    }

    #[test]
    fn jobs_wait_for_memory_and_nobody_passes_the_one_whose_turn_it_is() {
        let held = Held::new(100);
        let (first, second) = (held.submit("first", 40), held.submit("second", 40));
        assert_eq!(held.began(2), ["first", "second"]);
        let rest = [held.submit("large", 70), held.submit("small", 5), held.submit("tiny", 1)];
        assert!(held.nobody_began());
        drop(first);
        assert!(held.nobody_began(), "there is room for the small ones, but it is not their turn");
        drop(second);
        assert_eq!(held.began(3), ["large", "small", "tiny"]);
        assert_eq!(held.workers.memory(), 76);
        drop(rest);
    }

    #[test]
    fn a_job_that_never_fits_runs_alone_and_one_that_gives_up_lets_the_others_pass() {
        let held = Held::new(100);
        let huge = held.submit("huge", 1000);
        assert_eq!(held.began(1), ["huge"]);
        let (next, small) = (held.submit("next", 1000), held.submit("small", 1));
        drop(huge);
        assert_eq!(held.began(1), ["next"]);
        let (never, last) = (held.submit("never", 1000), held.submit("last", 1));
        assert!(held.nobody_began());
        drop(next);
        assert_eq!(held.began(1), ["small"]);
        assert!(held.nobody_began());
        drop(never);
        assert_eq!(held.began(1), ["last"]);
        drop((small, last));
    }
}
