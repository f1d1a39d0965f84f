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
use crate::forecast::Forecast;
use crate::load::Counts;
use crate::memory_forecast::MemoryForecast;
use crate::metrics::Metrics;
use crate::process::child::Function;
use crate::process::{Start, Stop};
use crate::reserve::{Census, Reserve};
use crate::standby::{Load, Terms};
use crate::workers::Workers;

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
    workers: Workers,
    entered: AtomicUsize,
    counts: Arc<Counts>,
    forecast: Arc<Mutex<Forecast>>,
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

/// How long a call waited for its turn, and how its process came, if there was one.
pub struct Turn {
    pub waited: Duration,
    pub origin: Option<Origin>,
}

impl Executor {
    /// Fails when processes are to be kept in standby, and there is no thread to attend to them.
    pub fn new(function: Function, limits: Limits, standby: Option<Terms>, metrics: Arc<Metrics>) -> io::Result<Self> {
        let function = Arc::new(function);
        let counts = Arc::<Counts>::default();
        let reserve = standby.map(|terms| Reserve::open(Arc::clone(&function), Arc::clone(&counts), terms));
        Ok(Self {
            function,
            admission: Semaphore::new(limits.max_parallel + ADMITTED_AHEAD),
            workers: Workers::new(limits.max_parallel, limits.max_memory),
            entered: AtomicUsize::new(0),
            counts,
            forecast: Arc::new(Mutex::new(Forecast::new(limits.max_parallel))),
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
        self.counts.load()
    }

    /// Bytes that the processes with calls are expected to take.
    pub fn memory(&self) -> u64 {
        self.workers.memory()
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
            self.answered.notified().await;
            // The connection writes the answer before this goes on.
            tokio::task::yield_now().await;
            reserve.refill();
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

    /// A call comes that has so much time; it is refused when too many wait already, or its turn would come too late.
    pub fn enter(&self, time: Duration) -> Result<Ticket<'_>, EvaluationError> {
        self.entered.fetch_add(1, Ordering::Relaxed);
        let ahead = self.counts.enter();
        let ticket = Ticket { executor: self, arrived: Instant::now() };
        let forecast = self.forecast.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(waiting) = ahead.checked_sub(forecast.places()) else { return Ok(ticket) };
        if waiting >= self.limits.max_waiting {
            return Err(EvaluationError::queue_full(&self.function(), waiting));
        }
        if forecast.is_late(waiting, time) {
            return Err(EvaluationError::too_busy(&self.function(), waiting, forecast.wait(waiting)));
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
        let stop = Arc::new(Stop::new().map_err(refused)?);
        let _stop_when_dropped = StopWhenDropped(Arc::clone(&stop));
        let memory = executor.memory_forecast.lock().unwrap_or_else(PoisonError::into_inner).expected(input.len());
        let fit = usize::try_from(executor.limits.max_memory / memory.max(1)).unwrap_or(usize::MAX);
        executor.forecast.lock().unwrap_or_else(PoisonError::into_inner).that_fit(fit);
        let call = Call {
            function: Arc::clone(&executor.function),
            counts: Arc::clone(&executor.counts),
            forecast: Arc::clone(&executor.forecast),
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
        let queued = executor.workers.submit(memory, move || {
            let turn = (arrived.elapsed(), call.run());
            // Whoever waits may be gone by now.
            if answer.send(turn).is_err() {
                answered.notify_one();
            }
        });
        let _queued = queued.map_err(refused)?;
        let (waited, (origin, result)) =
            outcome.await.map_err(|_| EvaluationError::unexpected(image, "end of its thread"))?;
        on_turn(Turn { waited, origin });
        result
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        let executor = self.executor;
        executor.counts.leave();
        if executor.reserve.is_some() && executor.load().waiting == 0 {
            executor.answered.notify_one();
        }
    }
}

struct StopWhenDropped(Arc<Stop>);

impl Drop for StopWhenDropped {
    fn drop(&mut self) {
        self.0.set();
    }
}
