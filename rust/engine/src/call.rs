//! One call that has its turn: which process serves it, and what its ending means.
//!
//! A process in standby if there is one that is of use, else one on demand; whoever calls does not notice which.

use std::ffi::CString;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;

use crate::envelope::Envelope;
use crate::errors::EvaluationError;
use crate::forecast::Forecast;
use crate::memory_forecast::MemoryForecast;
use crate::metrics::Metrics;
use crate::panics;
use crate::places::{Member, Places};
use crate::process::child::Function;
use crate::process::execution::{Ended, Failure, execute};
use crate::process::{Start, Stop};
use crate::reserve::Reserve;
use crate::verdict::{Exit, verdict};

/// Where the process of a call came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Origin {
    OnDemand,
    Standby,
}

impl Origin {
    pub fn name(self) -> &'static str {
        match self {
            Self::OnDemand => "on-demand",
            Self::Standby => "standby",
        }
    }
}

/// What a function that succeeded left.
pub struct Outcome {
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub envelope: Envelope,
}

/// Everything that a worker needs to know.
pub struct Call {
    pub function: Arc<Function>,
    pub places: Arc<Places>,
    pub member: Arc<Member>,
    pub memory_forecast: Arc<Mutex<MemoryForecast>>,
    pub reserve: Option<Arc<Reserve>>,
    pub metrics: Arc<Metrics>,
    pub image: String,
    pub input: Bytes,
    pub environment: Option<Vec<CString>>,
    pub max_output: usize,
    pub max_memory: u64,
    pub message_limit: usize,
    pub start: Arc<Start>,
    pub stop: Arc<Stop>,
}

impl Call {
    pub fn run(&self) -> (Option<Origin>, Result<Outcome, EvaluationError>) {
        if !self.start.begin() {
            return (None, Err(self.over(false)));
        }
        let began = Instant::now();
        let (origin, ended) = self.execute();
        self.metrics.executed(origin, began.elapsed());
        if let Some(reserve) = self.usable_reserve() {
            reserve.served();
        }
        self.learn_memory(&ended);
        let learn = lesson(&ended);
        // The verdict keeps the place as well.
        let result = self.conclude(ended);
        learn(&mut self.member.forecast(), began.elapsed());
        (Some(origin), result)
    }

    fn learn_memory(&self, ended: &Result<Ended, Failure>) {
        let Ok(ended) = ended else { return };
        let mut forecast = self.memory_forecast.lock().unwrap_or_else(PoisonError::into_inner);
        match (ended.exit, ended.peak_memory) {
            // Not by us.
            (Exit::Signal(libc::SIGKILL), _) => forecast.was_killed(self.input.len(), self.max_memory),
            (_, Some(peak)) if !ended.ignored_input => forecast.learn(self.input.len(), peak),
            _ => {}
        }
    }

    /// None for a call with an environment of its own.
    fn usable_reserve(&self) -> Option<&Reserve> {
        self.reserve.as_deref().filter(|_| self.environment.is_none())
    }

    /// By the process in standby, if there is one that is of use.
    fn execute(&self) -> (Origin, Result<Ended, Failure>) {
        if let Some(reserve) = self.usable_reserve()
            && self.stop.arm().is_ok()
            && let Some((process, identity)) = reserve.take()
        {
            let (child, feed) = process.feed(&self.input);
            panics::inject("worker", &self.image);
            let ended = execute(child, feed, &self.input, self.max_output, &self.stop);
            let Ok(Ended { ignored_input: true, stdout, .. }) = &ended else { return (Origin::Standby, ended) };
            let is_answer = !stdout.is_empty();
            reserve.mark(identity, if is_answer { "wrote to stdout" } else { "ended" });
            if is_answer {
                return (Origin::Standby, ended);
            }
            // It cannot have worked: it read nothing and wrote nothing.
        }
        let start = || {
            self.stop.arm()?;
            self.function.start(self.environment.as_deref(), &self.input)
        };
        let started = start().or_else(|error| {
            let gave_way = is_lack(&error) && self.places.reserves.give_way();
            if gave_way { start() } else { Err(error) }
        });
        let ended = started.map_err(Failure::Start).and_then(|(child, feed)| {
            panics::inject("worker", &self.image);
            execute(child, feed, &self.input, self.max_output, &self.stop)
        });
        (Origin::OnDemand, ended)
    }

    fn conclude(&self, ended: Result<Ended, Failure>) -> Result<Outcome, EvaluationError> {
        let ended = ended.map_err(|failure| match failure {
            Failure::Start(error) => cannot_start(&self.image, &self.function, &error),
            Failure::OutputLimit(written) => {
                EvaluationError::output_too_large(&self.image, written, self.max_output, self.message_limit)
            }
            Failure::Stopped => self.over(true),
        })?;
        let envelope = verdict(&self.image, ended.exit, &ended.stdout, &ended.stderr, &|| self.stop.is_set())?;
        Ok(Outcome { stdout: ended.stdout, stderr: ended.stderr, envelope })
    }

    /// Whoever ended the call may have an answer of their own, and then nobody reads this.
    fn over(&self, is_started: bool) -> EvaluationError {
        EvaluationError::shutting_down(&self.image, is_started)
    }
}

/// What the time that a call took says of those to come.
fn lesson(ended: &Result<Ended, Failure>) -> fn(&mut Forecast, Duration) {
    match ended {
        Ok(_) | Err(Failure::OutputLimit(_)) => Forecast::learn,
        Err(Failure::Stopped) => Forecast::learn_at_least,
        // It never ran.
        Err(Failure::Start(_)) => |_, _| (),
    }
}

/// Why the kernel refused, in the words of someone who can mend it.
pub fn cannot_start(image: &str, function: &Function, error: &io::Error) -> EvaluationError {
    if is_lack(error) {
        return EvaluationError::out_of_resources(image, &reason(error));
    }
    let path = function.entrypoint.path();
    let why = match error.raw_os_error() {
        _ if function.is_configured && path.symlink_metadata().is_err() => {
            "there is no such file; install it there or take it out of the configuration".into()
        }
        Some(libc::ENOENT) if function.is_configured => {
            "the interpreter that its first line names, its dynamic loader, or the file it links to is missing".into()
        }
        Some(libc::ENOENT) => {
            "the interpreter that its first line names, its dynamic loader, or the file itself is missing".into()
        }
        Some(libc::EACCES) if path.is_dir() => "it is a directory".into(),
        Some(libc::EACCES) => "it is not executable for this user; chmod +x it".into(),
        Some(libc::ENOEXEC) => "bad format: neither a program for this machine nor a script that starts with #!".into(),
        _ => reason(error),
    };
    EvaluationError::cannot_execute(image, &function.entrypoint.name(), &why)
}

/// Of processes, memory or descriptors: it may be there later.
fn is_lack(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::ENOMEM | libc::EMFILE | libc::ENFILE))
}

/// The system's words, without the number that is put after them.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}
