//! What an ended function's answer is: the first four rows of the function protocol.

use crate::envelope::{self, Envelope};
use crate::errors::EvaluationError;

/// How a process ended by itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Exit {
    Code(i32),
    Signal(i32),
}

impl Exit {
    pub fn is_success(self) -> bool {
        self == Exit::Code(0)
    }
}

/// The envelope, or the error that the function's ending stands for.
pub fn verdict(
    image: &str,
    exit: Exit,
    stdout: &[u8],
    stderr: &[u8],
    is_cancelled: &dyn Fn() -> bool,
) -> Result<Envelope, EvaluationError> {
    if !exit.is_success() {
        let results = envelope::parse(stdout, is_cancelled).map(|envelope| envelope.results).unwrap_or_default();
        let results: Vec<String> = results.iter().map(|result| printable(result.to_string().as_bytes())).collect();
        return Err(EvaluationError::function_failed(image, exit, &results, &printable(stderr)));
    }
    if let Some(envelope) = envelope::recognise(stdout) {
        return Ok(envelope);
    }
    envelope::parse(stdout, is_cancelled)
        .map_err(|why| EvaluationError::invalid_output(image, &why, &printable(stderr)))
}

/// Text for a person, whatever bytes a function wrote: control characters other than tab and newline go.
pub fn printable(text: &[u8]) -> String {
    let mut text = String::from_utf8_lossy(text).into_owned();
    text.retain(|character| (character >= ' ' && character != '\x7f') || character == '\n' || character == '\t');
    text
}

/// SIGSEGV for 11.
pub fn signal_name(number: i32) -> String {
    let name = match number {
        libc::SIGHUP => "SIGHUP",
        libc::SIGINT => "SIGINT",
        libc::SIGQUIT => "SIGQUIT",
        libc::SIGILL => "SIGILL",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGKILL => "SIGKILL",
        libc::SIGUSR1 => "SIGUSR1",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGUSR2 => "SIGUSR2",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGALRM => "SIGALRM",
        libc::SIGTERM => "SIGTERM",
        libc::SIGSTKFLT => "SIGSTKFLT",
        libc::SIGXCPU => "SIGXCPU",
        libc::SIGXFSZ => "SIGXFSZ",
        libc::SIGVTALRM => "SIGVTALRM",
        libc::SIGPROF => "SIGPROF",
        libc::SIGIO => "SIGIO",
        libc::SIGPWR => "SIGPWR",
        libc::SIGSYS => "SIGSYS",
        _ => return format!("signal {number}"),
    };
    name.to_owned()
}
