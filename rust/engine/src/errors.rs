//! Every way in which a call can fail: code and reason for machines, a complete message for people.
//!
//! The words are those of the runner's exec runtime: a user must not notice which of the two ran the function.

use std::time::Duration;

use tonic::Code;

use crate::verdict::{Exit, signal_name};

/// One call failed.
#[derive(Debug)]
pub struct EvaluationError {
    pub code: Code,
    pub reason: &'static str,
    pub message: String,
    pub facts: Vec<(&'static str, String)>,
    pub retry_after: Option<Duration>,
}

const SOON: Option<Duration> = Some(Duration::from_secs(1));
const LONGEST_RETRY: Duration = Duration::from_secs(30);

impl EvaluationError {
    fn new(code: Code, reason: &'static str, message: String) -> Self {
        Self { code, reason, message, facts: Vec::new(), retry_after: None }
    }

    fn fact(mut self, name: &'static str, value: &(impl ToString + ?Sized)) -> Self {
        self.facts.push((name, value.to_string()));
        self
    }

    /// The request itself makes no sense.
    pub fn invalid_request(message: String) -> Self {
        Self::new(Code::InvalidArgument, "INVALID_REQUEST", message)
    }

    /// The caller does not show a token that is accepted here.
    pub fn unauthenticated(message: String) -> Self {
        Self::new(Code::Unauthenticated, "UNAUTHENTICATED", message)
    }

    /// The function ran and ended with a non-zero exit code or by a signal.
    pub fn function_failed(image: &str, exit: Exit, results: &[String], stderr: &str) -> Self {
        let ending = match exit {
            Exit::Code(code) => format!("failed with exit code {code}"),
            Exit::Signal(number) => {
                let hint = if number == libc::SIGKILL { " (out of memory?)" } else { "" };
                format!("was killed by {}{hint}", signal_name(number))
            }
        };
        let mut headline = format!("function \"{image}\" {ending}");
        if !results.is_empty() {
            headline.push_str("\nresults:");
            for result in results {
                headline.push_str("\n  ");
                headline.push_str(result);
            }
        }
        let error = Self::new(Code::Internal, "FUNCTION_FAILED", with_stderr(headline, stderr));
        match exit {
            Exit::Code(code) => error.fact("exit_code", &code),
            Exit::Signal(number) => error.fact("signal", &signal_name(number)),
        }
    }

    /// The function ended well, but what it wrote is no `ResourceList`.
    pub fn invalid_output(image: &str, why: &str, stderr: &str) -> Self {
        let headline = format!("function \"{image}\" exited with code 0, but its output is not a ResourceList: {why}");
        Self::new(Code::Internal, "INVALID_OUTPUT", with_stderr(headline, stderr)).fact("exit_code", &0)
    }

    /// The function's executable could not be started.
    pub fn cannot_execute(image: &str, executable: &str, why: &str) -> Self {
        let message = format!("function \"{image}\" cannot be executed: {executable}: {why}");
        Self::new(Code::Internal, "CANNOT_EXECUTE", message).fact("executable", &executable)
    }

    /// The function wrote more than an answer may hold; it was stopped at the limit.
    pub fn output_too_large(image: &str, written: usize, room: usize, limit: usize) -> Self {
        let message = format!(
            "function \"{image}\" wrote at least {written} bytes, more than the {room} that fit into a message of {limit} \
             bytes; it was stopped. Raise --max-request-body-size here and in porch-server, or make the package smaller"
        );
        Self::new(Code::ResourceExhausted, "OUTPUT_TOO_LARGE", message).fact("limit", &limit)
    }

    /// The request is larger than the limit.
    pub fn message_too_large(size: usize, limit: usize) -> Self {
        let message = format!(
            "the request has {size} bytes, more than the limit of {limit} bytes set by --max-request-body-size; raise it \
             here and in porch-server, or make the package smaller"
        );
        Self::new(Code::ResourceExhausted, "MESSAGE_TOO_LARGE", message).fact("size", &size).fact("limit", &limit)
    }

    /// Too many calls wait already.
    pub fn queue_full(function: &str, waiting: usize) -> Self {
        let message = format!(
            "function \"{function}\" has {waiting} calls waiting already (--max-queue-length); try again later"
        );
        let error = Self::new(Code::ResourceExhausted, "QUEUE_FULL", message).fact("waiting", &waiting);
        Self { retry_after: SOON, ..error }
    }

    /// The call's turn would come too late for its deadline.
    pub fn too_busy(function: &str, waiting: usize, expected: Duration) -> Self {
        let seconds = format!("{:.1}", expected.as_secs_f64());
        let message = format!(
            "function \"{function}\" is not run: {waiting} calls wait already, its turn would come in about {seconds} s, \
             too late for its deadline; try again later"
        );
        let error = Self::new(Code::ResourceExhausted, "TOO_BUSY", message)
            .fact("waiting", &waiting)
            .fact("expected_seconds", &seconds);
        Self { retry_after: SOON.map(|soon| expected.clamp(soon, LONGEST_RETRY)), ..error }
    }

    /// The machine has no process, file or memory left to start the function with.
    pub fn out_of_resources(image: &str, why: &str) -> Self {
        let message = format!("function \"{image}\" could not be started for now: {why}; try again later");
        Self { retry_after: SOON, ..Self::new(Code::Unavailable, "OUT_OF_RESOURCES", message) }
    }

    /// The call's time was over before the function's answer was there.
    pub fn deadline_exceeded(image: &str, after: Duration) -> Self {
        let message = format!(
            "{} did not answer before the deadline of the call; it was stopped after {:.1}s",
            named(image),
            after.as_secs_f64()
        );
        Self::new(Code::DeadlineExceeded, "DEADLINE_EXCEEDED", message)
    }

    /// The caller has its turn, but its request does not come.
    pub fn request_too_slow(image: &str, after: Duration) -> Self {
        let message = format!(
            "function \"{image}\": the request did not arrive within {}s of its turn, and others wait; try again",
            after.as_secs()
        );
        Self { retry_after: SOON, ..Self::new(Code::Unavailable, "REQUEST_TOO_SLOW", message) }
    }

    /// Nothing came of a request for so long that is not whole: it must not take its part of the memory for ever.
    pub fn upload_stalled(received: usize, size: usize, after: Duration) -> Self {
        let message = format!(
            "the request stopped after {received} of {size} bytes: nothing came for {}s; try again",
            after.as_secs()
        );
        Self { retry_after: SOON, ..Self::new(Code::Unavailable, "REQUEST_TOO_SLOW", message) }
    }

    /// The runner, which decides what becomes of calls, says nothing any more.
    pub fn runner_silent(image: &str, since: Duration) -> Self {
        let message = format!(
            "{} is not run now: the runner has not answered its front for {}s; try again later",
            named(image),
            since.as_secs()
        );
        Self { retry_after: SOON, ..Self::new(Code::Unavailable, "RUNNER_SILENT", message) }
    }

    /// The pod is stopping and the call could not end in time; whoever calls again wants to know how far it came.
    pub fn shutting_down(image: &str, is_started: bool) -> Self {
        let what = if is_started { "stopped" } else { "not started" };
        let message = format!("function \"{image}\" was {what} because its pod is shutting down; try again");
        let error = Self::new(Code::Unavailable, "SHUTTING_DOWN", message).fact("started", &is_started);
        Self { retry_after: SOON, ..error }
    }

    /// The runner is stopping and the call could not end in time.
    pub fn runner_shutting_down(image: &str) -> Self {
        let message = format!("{} was stopped because this runner is shutting down; try again", named(image));
        Self { retry_after: SOON, ..Self::new(Code::Unavailable, "SHUTTING_DOWN", message) }
    }

    /// The requests under way take all the memory that they may have.
    pub fn overloaded(image: &str, size: usize, used: usize, limit: usize) -> Self {
        let message = format!(
            "{} is not run now: the runner is overloaded. The requests that it has take {used} bytes, \
             and with this one of {size} bytes more than {limit} (--max-request-memory); try again later",
            named(image)
        );
        let error = Self::new(Code::ResourceExhausted, "OVERLOADED", message)
            .fact("size", &size)
            .fact("used", &used)
            .fact("limit", &limit);
        Self { retry_after: SOON, ..error }
    }

    /// A defect of this program itself.
    pub fn unexpected(image: &str, what: &str) -> Self {
        let message = format!("function \"{image}\": unexpected {what} in the wrapper server; its log has the details");
        Self::new(Code::Internal, "UNEXPECTED", message)
    }
}

/// Of a request that was not read to its end, the image may not be known.
fn named(image: &str) -> String {
    if image.is_empty() { "the function".into() } else { format!("function \"{image}\"") }
}

fn with_stderr(headline: String, stderr: &str) -> String {
    let text = stderr.trim_matches('\n');
    if text.trim().is_empty() { headline } else { format!("{headline}\nstderr:\n{text}") }
}
