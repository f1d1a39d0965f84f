//! When a function runs: a bounded number at once, the others in line, and whoever gives up leaves no trace.
//!
//! Two stages: a call is *admitted* before its request is read (so many as run, and two more, so that the next ones are
//! ready): of what waits before that no more than a window of the connection is held here. It gets a *worker*
//! for its process, who is free again only when the last process of its group is gone. Both lines are first come, first
//! served; a call that ends is out of line at once.

use std::ffi::CString;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Semaphore, oneshot};

use crate::entrypoint::Entrypoint;
use crate::envelope::Envelope;
use crate::errors::EvaluationError;
use crate::process::execution::{Failure, execute};
use crate::process::family::Family;
use crate::process::{Start, Stop};
use crate::verdict::verdict;
use crate::workers::Workers;

const ADMITTED_AHEAD: usize = 2;

pub struct Limits {
    pub max_parallel: usize,
    pub max_waiting: usize,
    /// Of the resource list in an answer.
    pub max_output: usize,
    /// Of the whole message, for the error that says so.
    pub message_limit: usize,
}

pub struct Executor {
    function: Arc<Function>,
    admission: Semaphore,
    workers: Workers,
    calls: AtomicUsize,
    entered: AtomicUsize,
    running: Arc<AtomicUsize>,
    limits: Limits,
}

struct Function {
    entrypoint: Entrypoint,
    family: Arc<Family>,
}

/// A call that was not refused, from its arrival to its end.
pub struct Ticket<'a> {
    executor: &'a Executor,
    arrived: Instant,
}

/// What a function that succeeded left.
pub struct Outcome {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub envelope: Envelope,
}

impl Executor {
    pub fn new(entrypoint: Entrypoint, family: Arc<Family>, limits: Limits) -> Self {
        Self {
            function: Arc::new(Function { entrypoint, family }),
            admission: Semaphore::new(limits.max_parallel + ADMITTED_AHEAD),
            workers: Workers::new(limits.max_parallel),
            calls: AtomicUsize::new(0),
            entered: AtomicUsize::new(0),
            running: Arc::new(AtomicUsize::new(0)),
            limits,
        }
    }

    /// What is executed, for messages.
    pub fn function(&self) -> String {
        self.function.entrypoint.name()
    }

    /// How many processes run, or are being reaped.
    pub fn running(&self) -> usize {
        self.running.load(Ordering::Relaxed)
    }

    /// How many calls there were, since the start.
    pub fn entered(&self) -> usize {
        self.entered.load(Ordering::Relaxed)
    }

    /// How many calls wait for one.
    pub fn waiting(&self) -> usize {
        self.calls.load(Ordering::Relaxed).saturating_sub(self.running())
    }

    /// A call comes; it is refused when too many wait already.
    pub fn enter(&self) -> Result<Ticket<'_>, EvaluationError> {
        self.entered.fetch_add(1, Ordering::Relaxed);
        let ahead = self.calls.fetch_add(1, Ordering::Relaxed);
        let ticket = Ticket { executor: self, arrived: Instant::now() };
        if ahead >= self.limits.max_parallel + self.limits.max_waiting {
            return Err(EvaluationError::queue_full(&self.function(), ahead - self.limits.max_parallel));
        }
        Ok(ticket)
    }
}

impl Ticket<'_> {
    /// Returns when the request may be read.
    pub async fn admitted(&self) -> impl Drop + use<'_> {
        self.executor.admission.acquire().await.expect("never closed")
    }

    /// Execute the function once, when it is this call's turn, unless `start` says that the call is over; `on_turn` is
    /// told how long that took. Dropping the future stops the function.
    pub async fn run(
        &self,
        image: &str,
        input: Bytes,
        environment: Option<Vec<CString>>,
        start: Arc<Start>,
        on_turn: impl FnOnce(Duration),
    ) -> Result<Outcome, EvaluationError> {
        let executor = self.executor;
        let refused = |error: io::Error| cannot_start(image, &executor.function, &error);
        let stop = Arc::new(Stop::new().map_err(refused)?);
        let _stop_when_dropped = StopWhenDropped(Arc::clone(&stop));
        let (answer, answered) = oneshot::channel();
        let call = Call {
            function: Arc::clone(&executor.function),
            running: Arc::clone(&executor.running),
            image: image.to_owned(),
            input,
            environment,
            max_output: executor.limits.max_output,
            message_limit: executor.limits.message_limit,
            start,
            stop,
        };
        let arrived = self.arrived;
        let queued = executor.workers.submit(move || {
            // Whoever waits may be gone by now.
            let _ = answer.send((arrived.elapsed(), call.run()));
        });
        let _queued = queued.map_err(refused)?;
        let (queue_wait, result) =
            answered.await.map_err(|_| EvaluationError::unexpected(image, "end of its thread"))?;
        on_turn(queue_wait);
        result
    }
}

/// Everything that a worker needs to know.
struct Call {
    function: Arc<Function>,
    running: Arc<AtomicUsize>,
    image: String,
    input: Bytes,
    environment: Option<Vec<CString>>,
    max_output: usize,
    message_limit: usize,
    start: Arc<Start>,
    stop: Arc<Stop>,
}

impl Call {
    fn run(self) -> Result<Outcome, EvaluationError> {
        let _running = Running::new(&self.running);
        // Whoever ended the call may have an answer of their own, and then nobody reads this.
        let over = |is_started| EvaluationError::shutting_down(&self.image, is_started);
        if !self.start.begin() {
            return Err(over(false));
        }
        let Function { entrypoint, family } = &*self.function;
        let environment = self.environment.as_deref();
        let ended = execute(family, entrypoint, environment, &self.input, self.max_output, &self.stop);
        let ended = ended.map_err(|failure| match failure {
            Failure::Start(error) => cannot_start(&self.image, &self.function, &error),
            Failure::OutputLimit(written) => {
                EvaluationError::output_too_large(&self.image, written, self.max_output, self.message_limit)
            }
            Failure::Stopped => over(true),
        })?;
        let envelope = verdict(&self.image, ended.exit, &ended.stdout, &ended.stderr, &|| self.stop.is_set())?;
        Ok(Outcome { stdout: ended.stdout, stderr: ended.stderr, envelope })
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.executor.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Counts for as long as it lives.
struct Running<'a>(&'a AtomicUsize);

impl<'a> Running<'a> {
    fn new(count: &'a AtomicUsize) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(count)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

struct StopWhenDropped(Arc<Stop>);

impl Drop for StopWhenDropped {
    fn drop(&mut self) {
        self.0.set();
    }
}

/// Why the kernel refused, in the words of someone who can mend it.
fn cannot_start(image: &str, function: &Function, error: &io::Error) -> EvaluationError {
    let why = match error.raw_os_error() {
        Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE) => {
            return EvaluationError::out_of_resources(image, &reason(error));
        }
        Some(libc::ENOENT) => {
            "the interpreter that its first line names, its dynamic loader, or the file itself is missing".into()
        }
        Some(libc::EACCES) => "it is not executable for this user; chmod +x it".into(),
        Some(libc::ENOEXEC) => "bad format: neither a program for this machine nor a script that starts with #!".into(),
        _ => reason(error),
    };
    EvaluationError::cannot_execute(image, &function.entrypoint.name(), &why)
}

/// The system's words, without the number that is put after them.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}
