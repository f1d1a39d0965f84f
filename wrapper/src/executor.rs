//! When a function runs: a bounded number at once, the others in line, and whoever gives up leaves no trace.
//!
//! Two stages: a call is *admitted* before its request is read (so many as run, and two more, so that the next ones are
//! ready): what waits before that waits at the caller's side of the connection and costs no memory. It gets a *place*
//! before its process is started, and the place is free again only when the last process of its group is gone. Both
//! lines are first come, first served; a call that ends is out of line at once.

use std::ffi::CString;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::entrypoint::Entrypoint;
use crate::envelope::Envelope;
use crate::errors::EvaluationError;
use crate::process::Stop;
use crate::process::execution::{Failure, execute};
use crate::process::family::Family;
use crate::verdict::verdict;

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
    places: Arc<Semaphore>,
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
            places: Arc::new(Semaphore::new(limits.max_parallel)),
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

    /// Execute the function once, when it is this call's turn; `on_turn` is told how long that took. Dropping the
    /// future stops the function.
    pub async fn run(
        &self,
        image: &str,
        input: Bytes,
        environment: Option<Vec<CString>>,
        on_turn: impl FnOnce(Duration),
    ) -> Result<Outcome, EvaluationError> {
        let executor = self.executor;
        let place = Arc::clone(&executor.places).acquire_owned().await.expect("never closed");
        let place = Place::new(place, &executor.running);
        on_turn(self.arrived.elapsed());
        let stop = Arc::new(Stop::new().map_err(|error| cannot_start(image, &executor.function, &error))?);
        let _stop_when_dropped = StopWhenDropped(Arc::clone(&stop));
        let function = Arc::clone(&executor.function);
        let (max_output, message_limit) = (executor.limits.max_output, executor.limits.message_limit);
        let name = image.to_owned();
        let run = tokio::task::spawn_blocking(move || {
            let _place = place;
            let ended =
                execute(&function.family, &function.entrypoint, environment.as_deref(), &input, max_output, &stop)
                    .map_err(|failure| match failure {
                        Failure::Start(error) => cannot_start(&name, &function, &error),
                        Failure::OutputLimit(written) => {
                            EvaluationError::output_too_large(&name, written, max_output, message_limit)
                        }
                        Failure::Stopped => EvaluationError::shutting_down(&name),
                    })?;
            let envelope = verdict(&name, ended.exit, &ended.stdout, &ended.stderr, &|| stop.is_set())?;
            Ok(Outcome { stdout: ended.stdout, stderr: ended.stderr, envelope })
        });
        run.await.unwrap_or_else(|error| Err(EvaluationError::unexpected(image, &error.to_string())))
    }
}

impl Drop for Ticket<'_> {
    fn drop(&mut self) {
        self.executor.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

struct Place {
    _permit: OwnedSemaphorePermit,
    running: Arc<AtomicUsize>,
}

impl Place {
    fn new(permit: OwnedSemaphorePermit, running: &Arc<AtomicUsize>) -> Self {
        running.fetch_add(1, Ordering::Relaxed);
        Self { _permit: permit, running: Arc::clone(running) }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.running.fetch_sub(1, Ordering::Relaxed);
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
