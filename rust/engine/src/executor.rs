//! When a function runs: a bounded number at once, the others in line, and whoever gives up leaves no trace.
//!
//! Who would wait for nothing is refused at once, before anything of the request is read: by `forecast`.
//!
//! Two stages: a call is *admitted* before its request is read (so many as run, and two more, so that the next ones are
//! ready): of what waits before that no more than a window of the connection is held here. It gets a *worker*
//! for its process, who is free again only when the last process of its group is gone. Both lines are first come, first
//! served; a call that ends is out of line at once.

use std::ffi::CString;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore, oneshot};

use crate::call::{Call, Origin, Outcome, cannot_start};
use crate::errors::EvaluationError;
use crate::memory_forecast::MemoryForecast;
use crate::metrics::Metrics;
use crate::places::{Member, Places};
use crate::process::child::Function;
use crate::process::{Start, Stop};
use crate::reserve::{Census, Reserve, Unfit};
use crate::standby::{Load, Terms};

const ADMITTED_AHEAD: usize = 2;
/// How long the first process in standby waits for somebody to ask whether we serve.
const FIRST_QUESTION: Duration = Duration::from_millis(20);

pub struct Limits {
    pub max_parallel: usize,
    pub max_waiting: usize,
    /// Of the functions at once, together.
    pub max_memory: u64,
    /// Of the resource list in an answer.
    pub max_output: usize,
    /// Of the whole message, for the error that says so.
    pub message_limit: usize,
}

pub struct Executor {
    function: Arc<Function>,
    admission: Semaphore,
    places: Arc<Places>,
    member: Arc<Member>,
    entered: AtomicUsize,
    memory_forecast: Arc<Mutex<MemoryForecast>>,
    reserve: Option<Arc<Reserve>>,
    /// An answer is on its way, and nobody waits.
    answered: Arc<Notify>,
    asked: Notify,
    metrics: Arc<Metrics>,
    limits: Limits,
}

/// A call that was not refused, from its arrival to its end.
pub struct Ticket<'a> {
    executor: &'a Executor,
    arrived: Instant,
}

/// How long a call waited for its turn, and how its process came and how long it took, if there was one.
pub struct Turn {
    pub waited: Duration,
    pub origin: Option<Origin>,
    pub took: Duration,
}

impl Executor {
    /// Fails when processes are to be kept in standby, and there is no thread to attend to them.
    pub fn new(
        function: Function,
        places: Arc<Places>,
        limits: Limits,
        standby: Option<(Terms, Unfit)>,
        metrics: Arc<Metrics>,
    ) -> io::Result<Self> {
        let function = Arc::new(function);
        let reserve =
            standby.map(|(terms, unfit)| Reserve::open(Arc::clone(&function), Arc::clone(&places), terms, unfit));
        Ok(Self {
            function,
            admission: Semaphore::new(limits.max_parallel + ADMITTED_AHEAD),
            member: places.join(),
            places,
            entered: AtomicUsize::new(0),
            memory_forecast: Arc::default(),
            reserve: reserve.transpose()?,
            answered: Arc::default(),
            asked: Notify::new(),
            metrics,
            limits,
        })
    }

    /// What is executed, for messages.
    pub fn function(&self) -> String {
        self.function.entrypoint.name()
    }

    /// How many processes run, or are being reaped, and how many calls wait for one.
    pub fn load(&self) -> Load {
        self.member.counts.load()
    }

    /// Bytes that the processes with calls are expected to take.
    pub fn memory(&self) -> u64 {
        self.places.workers.memory()
    }

    /// How many calls there were, since the start.
    pub fn entered(&self) -> usize {
        self.entered.load(Ordering::Relaxed)
    }

    /// The processes in standby, if there may be any.
    pub fn census(&self) -> Option<Census> {
        self.reserve.as_ref().map(|reserve| reserve.census())
    }

    /// Keep processes in standby; `is_eager` is whether that begins before the first call. Never returns.
    pub async fn keep_standby(&self, is_eager: bool) {
        let Some(reserve) = &self.reserve else { return };
        if is_eager {
            // Whoever asks at once whether we serve does not compete with it for a CPU.
            let _ = tokio::time::timeout(FIRST_QUESTION, self.asked.notified()).await;
            tokio::task::yield_now().await;
            // A call that was faster has a process of its own, and its answer leads to the next one.
            if self.entered() == 0 {
                reserve.refill();
            }
        }
        loop {
            let is_own = tokio::select! {
                () = self.answered.notified() => true,
                () = self.places.quiet.notified() => false,
            };
            // The connection writes the answer before this goes on.
            tokio::task::yield_now().await;
            if is_own {
                reserve.refill();
            } else {
                reserve.retry();
            }
        }
    }

    /// Somebody has been told that we serve.
    pub fn asked(&self) {
        self.asked.notify_one();
    }

    /// End the processes in standby, and start no other.
    pub fn end_standby(&self) {
        if let Some(reserve) = &self.reserve {
            reserve.close();
        }
    }

    /// They are ended, and gone.
    pub fn wait_for_end_of_standby(&self) {
        if let Some(reserve) = &self.reserve {
            reserve.close();
            reserve.wait_until_empty();
        }
    }

    /// A call of what callers know by that name comes, and has so much time; it is refused when too many wait already, or
    /// its turn would come too late.
    pub fn enter(&self, name: &str, time: Duration) -> Result<Ticket<'_>, EvaluationError> {
        self.entered.fetch_add(1, Ordering::Relaxed);
        let ahead = self.places.enter(&self.member);
        let ticket = Ticket { executor: self, arrived: Instant::now() };
        let Some(ahead) = ahead else { return Ok(ticket) };
        if ahead.waiting >= self.limits.max_waiting {
            return Err(EvaluationError::queue_full(name, ahead.waiting));
        }
        let forecast = self.member.forecast();
        if forecast.is_late(ahead, time) {
            return Err(EvaluationError::too_busy(name, ahead.waiting, forecast.wait(ahead)));
        }
        drop(forecast);
        Ok(ticket)
    }
}

impl Ticket<'_> {
    /// Returns when the request may be read.
    pub async fn admitted(&self) -> impl Drop + use<'_> {
        self.executor.admission.acquire().await.expect("never closed")
    }

    /// Execute the function once, when it is this call's turn, unless `start` says that the call is over; `on_turn` is
    /// told what came of that. Dropping the future stops the function.
    pub async fn run(
        &self,
        image: &str,
        input: Bytes,
        environment: Option<Vec<CString>>,
        start: Arc<Start>,
        on_turn: impl FnOnce(Turn),
    ) -> Result<Outcome, EvaluationError> {
        let executor = self.executor;
        let refused = |error: io::Error| cannot_start(image, &executor.function, &error);
        let stop = Arc::<Stop>::default();
        let _stop_when_dropped = StopWhenDropped(Arc::clone(&stop));
        let memory = executor.memory_forecast.lock().unwrap_or_else(PoisonError::into_inner).expected(input.len());
        let fit = usize::try_from(executor.limits.max_memory / memory.max(1)).unwrap_or(usize::MAX);
        executor.member.forecast().that_fit(fit);
        let call = Call {
            function: Arc::clone(&executor.function),
            places: Arc::clone(&executor.places),
            member: Arc::clone(&executor.member),
            memory_forecast: Arc::clone(&executor.memory_forecast),
            reserve: executor.reserve.clone(),
            metrics: Arc::clone(&executor.metrics),
            image: image.to_owned(),
            input,
            environment,
            max_output: executor.limits.max_output,
            max_memory: executor.limits.max_memory,
            message_limit: executor.limits.message_limit,
            start,
            stop,
        };
        let arrived = self.arrived;
        let answered = Arc::clone(&executor.answered);
        let (answer, outcome) = oneshot::channel();
        let queued = executor.places.workers.submit(executor.member.line, memory, move || {
            let waited = arrived.elapsed();
            let running = call.member.counts.run();
            let (origin, result) = call.run();
            let family = &call.function.family;
            // A process that cannot be killed keeps the place, but does not delay the answer.
            let running = Some(running).filter(|_| family.has_lingering());
            let turn = Turn { waited, origin, took: arrived.elapsed().saturating_sub(waited) };
            // Whoever waits may be gone by now.
            if answer.send((turn, result)).is_err() {
                answered.notify_one();
            }
            family.wait_for_lingering();
            drop(running);
        });
        let _queued = queued.map_err(refused)?;
        let (turn, result) = outcome.await.map_err(|_| EvaluationError::unexpected(image, "panic"))?;
        on_turn(turn);
        result
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let executor = self.executor;
        executor.member.counts.leave();
        let is_quiet = executor.places.load().waiting == 0;
        if let Some(reserve) = &executor.reserve {
            if is_quiet {
                executor.answered.notify_one();
            } else if executor.places.is_shared() {
                // The last one to leave may be another function's.
                reserve.is_due();
            }
        }
        if is_quiet && executor.places.is_shared() {
            executor.places.quiet.notify_waiters();
        }
    }
}

struct StopWhenDropped(Arc<Stop>);

impl Drop for StopWhenDropped {
    fn drop(&mut self) {
        self.0.set();
    }
}
