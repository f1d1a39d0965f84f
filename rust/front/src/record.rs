//! What is known of one call that is executed here: the runner hears it when the call is over, however it ended.

use std::collections::HashMap;
use std::time::Duration;

use engine::call::Outcome;
use engine::errors::EvaluationError;
use engine::executor::Turn;
use engine::log_excerpt::shorten;
use engine::rpc::evaluate::code_name;
use engine::rpc::status::status_of;
use engine::verdict::printable;
use tokio::time::Instant;
use tonic::Status;

use crate::link::Link;
use crate::messages::{Ended, Header, News, Span};
use crate::trace::Trace;

const MAX_LOGGED_ERROR: usize = 4096;
/// Of severity error, of a function that succeeded: the caller has them all.
const MOST_RESULTS: usize = 100;
const RUNTIME: &str = "exec";
/// Errors of functions whose process ended by itself.
const OWN_ENDINGS: [&str; 2] = ["FUNCTION_FAILED", "INVALID_OUTPUT"];

/// Dropped before its end, the caller went away.
pub struct Record {
    link: Link,
    pub started: Instant,
    pub deadline: Instant,
    /// As the caller calls it, for messages.
    pub image: String,
    ended: Ended,
    turn: Option<Turn>,
    trace: Option<Trace>,
    /// The runner has the call, and tells its end itself.
    is_handed_over: bool,
}

impl Record {
    pub fn new(link: Link, time: Duration, trace: Option<Trace>) -> Self {
        let started = Instant::now();
        Self {
            link,
            started,
            deadline: started + time,
            image: String::new(),
            ended: Ended::default(),
            turn: None,
            trace,
            is_handed_over: false,
        }
    }

    /// What is reported of the call's span; nothing if it is not traced.
    pub fn span(&self) -> Option<Span> {
        self.trace.as_ref().and_then(Trace::sampled)
    }

    /// The headers that a pod gets with the call.
    pub fn trace_headers(&self) -> impl Iterator<Item = Header> {
        self.trace.iter().flat_map(Trace::headers)
    }

    /// Add a fact to the call's log line.
    pub fn note(&mut self, name: &str, value: String) {
        self.ended.facts.insert(name.to_owned(), value);
    }

    /// Until its deadline.
    pub fn remaining(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    pub fn received(&mut self, message_bytes: usize) {
        self.ended.request_bytes = message_bytes as u64;
    }

    /// The runner decides what becomes of it.
    pub fn hand_over(&mut self) {
        self.is_handed_over = true;
    }

    /// It is executed here, after all, by this number if the runner knows it.
    pub fn execute(&mut self, function: &str, id: Option<u64>) {
        self.is_handed_over = false;
        function.clone_into(&mut self.ended.function);
        self.ended.id = id.unwrap_or_default();
    }

    pub fn had_turn(&mut self, turn: Turn) {
        self.ended.queue_seconds = Some(turn.waited.as_secs_f64());
        self.turn = Some(turn);
    }

    pub fn succeed(&mut self, outcome: &Outcome) {
        "OK".clone_into(&mut self.ended.code);
        let failed = outcome.envelope.results.iter().filter(|result| result.is_error()).take(MOST_RESULTS);
        self.ended.failed_results = failed.map(|result| excerpt(&printable(result.to_string().as_bytes()))).collect();
        let facts = [("exit", "0".to_owned()), ("log_bytes", outcome.stderr.len().to_string())];
        self.ended.facts = facts.map(|(name, value)| (name.to_owned(), value)).into();
        self.note_process();
    }

    pub fn answered(&mut self, message_bytes: usize) {
        self.ended.response_bytes = message_bytes as u64;
    }

    /// The status that stands for the error.
    pub fn fail(&mut self, error: &EvaluationError) -> Status {
        code_name(error.code).clone_into(&mut self.ended.code);
        let facts = error.facts.iter().map(|(name, value)| {
            let name = if *name == "exit_code" { "exit" } else { name };
            (name.to_owned(), value.clone())
        });
        self.ended.facts = facts.collect::<HashMap<_, _>>();
        self.ended.error = excerpt(&error.message);
        if OWN_ENDINGS.contains(&error.reason) {
            self.note_process();
        }
        let runtime = if self.ended.function.is_empty() { "" } else { RUNTIME };
        status_of(error, &self.image, runtime)
    }

    fn note_process(&mut self) {
        if let Some(Turn { origin: Some(origin), took, .. }) = &self.turn {
            origin.name().clone_into(&mut self.ended.process);
            self.ended.execution_seconds = took.as_secs_f64();
        }
    }
}

/// As much as a line of the log holds.
fn excerpt(text: &str) -> String {
    String::from_utf8_lossy(&shorten(text.as_bytes().to_vec(), MAX_LOGGED_ERROR)).into_owned()
}

impl Drop for Record {
    fn drop(&mut self) {
        if self.is_handed_over {
            return;
        }
        let mut ended = std::mem::take(&mut self.ended);
        if ended.code.is_empty() {
            // A caller whose deadline passed goes away as well; whose timer was faster does not matter.
            let (code, why) = if Instant::now() >= self.deadline {
                ("DEADLINE_EXCEEDED", "the deadline of the call passed; the function was stopped")
            } else {
                ("CANCELLED", "the caller went away; the function was stopped")
            };
            code.clone_into(&mut ended.code);
            why.clone_into(&mut ended.error);
        }
        ended.image = std::mem::take(&mut self.image);
        ended.span = self.span();
        ended.seconds = self.started.elapsed().as_secs_f64();
        self.link.tell(News::Ended(ended));
    }
}
