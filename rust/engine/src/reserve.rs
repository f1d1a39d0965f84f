//! The processes in standby: what `standby` decides, performed.
//!
//! One thread starts and ends them, and sleeps until one of them does something, somebody asks for a start, or the next
//! one is too old. Calls take them from their own threads; they wait for nothing but a start that is under way.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use libc::POLLIN;

use crate::log::{Level, Line};
use crate::panics;
use crate::places::Places;
use crate::process::Bell;
use crate::process::child::{Function, WaitingChild, watch};
use crate::reserves::Leave;
use crate::standby::{Identity, Load, Standby, Take, Terms};

const STACK: usize = 128 * 1024;
/// Before a process is started: whoever gets the answer that has just left may share our CPU, and comes first.
const AFTER_THE_ANSWER: Duration = Duration::from_micros(300);
/// How long a call waits for a process that is just being started, before it starts one itself.
const LONGEST_START: Duration = Duration::from_secs(1);
/// How long the end of this program waits for that of the last process.
const LONGEST_END: Duration = Duration::from_secs(1);

/// Told once why the function is not kept in standby: what it did.
pub type Unfit = Box<dyn Fn(&str) + Send + Sync>;

pub struct Reserve {
    function: Arc<Function>,
    unfit: Unfit,
    places: Arc<Places>,
    state: Mutex<State>,
    /// A start is over, or the thread is.
    change: Condvar,
    bell: Bell,
}

struct State {
    standby: Standby<WaitingChild>,
    is_attended: bool,
}

/// How many wait, and the memory that is theirs alone, where the system tells.
pub struct Census {
    pub waiting: usize,
    pub private_memory: Option<u64>,
}

impl Reserve {
    /// With a thread that attends to it; nothing is started as yet.
    pub fn open(function: Arc<Function>, places: Arc<Places>, terms: Terms, unfit: Unfit) -> io::Result<Arc<Self>> {
        let state = State { standby: Standby::new(terms, Instant::now()), is_attended: true };
        let state = Mutex::new(state);
        let reserve = Arc::new(Self { function, unfit, places, state, change: Condvar::new(), bell: Bell::new()? });
        reserve.places.reserves.join(&reserve);
        let attendant = Arc::clone(&reserve);
        thread::Builder::new().name("standby".into()).stack_size(STACK).spawn(move || {
            let is_well = panics::survives(|| attendant.attend());
            let mut state = attendant.lock();
            state.is_attended = false;
            // Without this thread every call starts its own process.
            let ended = if is_well { Vec::new() } else { state.standby.abandon() };
            drop(state);
            drop(ended);
            attendant.change.notify_all();
        })?;
        Ok(reserve)
    }

    /// A process for a call that has its place, and the file that it is of; nothing when it must start one itself.
    pub fn take(&self) -> Option<(WaitingChild, Identity)> {
        let mut state = self.lock();
        // Under full load there is nothing to compare with, and no call looks.
        let identity = if state.standby.knows_a_file() { self.function.identity() } else { None };
        let mut taken = state.standby.take(identity, Instant::now());
        if matches!(taken.what, Take::Soon) {
            let is_starting = |state: &mut State| state.standby.is_starting();
            let waited = self.change.wait_timeout_while(state, LONGEST_START, is_starting);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
            let ended = std::mem::take(&mut taken.ended);
            taken = state.standby.take(identity, Instant::now());
            taken.ended.extend(ended);
        }
        drop(state);
        let (Take::Process(process), Some(identity)) = (taken.what, identity) else { return None };
        if let Some(what) = process.fault() {
            self.mark(identity, what);
            return None;
        }
        Some((process, identity))
    }

    /// The function did something that it must not do without its input: it is not kept in standby again.
    pub fn mark(&self, identity: Identity, what: &str) {
        let (is_news, ended) = self.lock().standby.mark(identity);
        drop(ended);
        if is_news {
            (self.unfit)(&format!("it {what} before its input came"));
        }
    }

    /// These end, for what they hold. False if there are none.
    pub fn give_way(&self) -> bool {
        let ended = self.lock().standby.give_way();
        !ended.is_empty()
    }

    /// An execution that one of these processes may serve has ended.
    pub fn served(&self) {
        self.lock().standby.served(Instant::now());
    }

    /// An answer has left: now is the time to start the next process.
    pub fn refill(&self) {
        self.is_due();
        self.retry();
    }

    /// An answer has left, but now is not the time.
    pub fn is_due(&self) {
        self.lock().standby.answered();
    }

    /// What was due may be started now.
    pub fn retry(&self) {
        // Also while the newest one still settles: the thread looks again when it has.
        if self.lock().standby.is_wanting(Instant::now()) {
            self.bell.ring();
        }
    }

    /// Whether one would be started now, if there were no others.
    pub fn wants_start(&self, load: Load, now: Instant) -> bool {
        self.lock().standby.wants_start(load, now)
    }

    /// It is, if that is still so.
    pub fn begin_start(&self, load: Load, now: Instant) -> bool {
        self.lock().standby.next_start(load, now)
    }

    /// None is started before the next call.
    pub fn renounce(&self) {
        self.lock().standby.renounce();
    }

    /// For how long a CPU has a process of these to start, if it has one.
    pub fn busy_until(&self, now: Instant) -> Option<Instant> {
        self.lock().standby.busy_until(now)
    }

    /// When the function was called last, how many of these there are, and how many more in a moment.
    pub fn holdings(&self) -> (Instant, usize, usize) {
        self.lock().standby.holdings()
    }

    /// The oldest one is to be ended.
    pub fn give_up_one(&self) -> Option<WaitingChild> {
        self.lock().standby.give_up_one()
    }

    /// End them all, and start no other.
    pub fn close(&self) {
        self.lock().standby.shut();
        self.bell.ring();
    }

    /// Closed, and all of them are gone.
    pub fn wait_until_empty(&self) {
        let is_attended = |state: &mut State| state.is_attended;
        let _ = self.change.wait_timeout_while(self.lock(), LONGEST_END, is_attended);
    }

    pub fn census(&self) -> Census {
        let state = self.lock();
        let memory = state.standby.waiting().map(|(process, _)| process.private_memory());
        Census { waiting: state.standby.waiting().count(), private_memory: memory.sum() }
    }

    /// The work of the thread.
    fn attend(&self) {
        loop {
            let mut state = self.lock();
            if state.standby.is_over() {
                let ended = state.standby.end();
                drop(state);
                drop(ended);
                return;
            }
            let now = Instant::now();
            let found = state.standby.waiting().find_map(|(process, identity)| Some((process.fault()?, *identity)));
            if let Some((what, identity)) = found {
                drop(state);
                self.mark(identity, what);
                continue;
            }
            let ended = state.standby.expire(now);
            if !ended.is_empty() {
                drop(state);
                drop(ended);
                continue;
            }
            drop(state);
            match self.places.reserves.ask(self, self.places.load()) {
                Leave::Now => self.start(),
                Leave::At(moment) => self.sleep(Some(moment)),
                Leave::No => self.sleep(None),
            }
        }
    }

    fn start(&self) {
        panics::inject("standby", &self.function.entrypoint.name());
        thread::sleep(AFTER_THE_ANSWER);
        // Looked at first: if the file is replaced meanwhile, the process is that of a file that is not there any more.
        let identity = self.function.identity().ok_or_else(|| io::Error::from(io::ErrorKind::NotFound));
        let started = identity.and_then(|identity| Ok((self.function.start_waiting()?, identity)));
        let mut state = self.lock();
        let refused = match started {
            Ok((process, identity)) => state.standby.started(process, identity, Instant::now()).err(),
            Err(error) => {
                state.standby.start_failed();
                Line::new(Level::Debug, "no process in standby for now").with("error", error).write();
                None
            }
        };
        drop(state);
        drop(refused);
        self.change.notify_all();
    }

    /// Until something happens, or that moment.
    fn sleep(&self, until: Option<Instant>) {
        let (state, now) = (self.lock(), Instant::now());
        let mut watched = vec![watch(self.bell.descriptor(), POLLIN)];
        watched.extend(state.standby.waiting().flat_map(|(process, _)| process.watched()));
        let event = state.standby.next_event(now).into_iter().chain(until).min();
        let timeout = event.map_or(-1, |event| milliseconds(event.saturating_duration_since(now)));
        drop(state);
        // A process that is taken meanwhile may wake this thread once more, which does no harm.
        // SAFETY: an array of as many entries as is said.
        unsafe { libc::poll(watched.as_mut_ptr(), watched.len() as libc::nfds_t, timeout) };
        self.bell.silence();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rounded up, so that the moment has come when they are over.
fn milliseconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(i32::MAX)
}
