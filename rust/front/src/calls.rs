//! One call from its arrival to its answer.
//!
//! A call of an image that the runner has said is a local function is executed here at once. Of any other the runner is
//! asked, and says what to do: execute it, forward it to a pod, refuse it. One that may go to a pod by a promise is on its way
//! there, or answered, when the runner hears of it.

use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use engine::call::Outcome;
use engine::errors::EvaluationError;
use engine::log::{Level, Line};
use engine::panics;
use engine::process::Start;
use engine::rpc::evaluate::{LONGEST_TIMEOUT, time_for, timeout_of};
use engine::rpc::messages::EvaluateFunctionResponse;
use engine::rpc::router::Evaluator;
use http::request::Parts;
use http::{HeaderMap, Request, Response};
use prost::Message;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tonic::body::Body;
use tonic::transport::server::TcpConnectInfo;
use tonic::{Code, Status};

use crate::credentials::Credentials;
use crate::functions::{Functions, LocalFunction};
use crate::incoming::{Budget, Incoming, LONGEST_IMAGE, PREFIX, Seen, read};
use crate::link::{AFTER_THE_ANSWER, LATER, Link};
use crate::messages::{self, Answered, Call, Forwarded, News, Refuse, Sampler};
use crate::pods::{Passed, Pods, forward};
use crate::promises::{Place, Promises};
use crate::pulse::Pulse;
use crate::questions::{Answer, Questions};
use crate::record::Record;
use crate::reply::Reply;
use crate::trace::Trace;

/// How long after a call's deadline the runner may still tell its caller why.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long before the caller's deadline it is answered in any case. The runner's own margin is larger.
const BEFORE_THE_DEADLINE: Duration = Duration::from_millis(5);
/// So much of its time must be left to a call whose answer is told later: the runner waits for it no longer.
const IN_TIME: Duration = Duration::from_secs(1);

pub struct Front {
    pub link: Link,
    pub functions: Functions,
    pub questions: Arc<Questions>,
    pub pods: Pods,
    pub promises: Promises,
    pub pulse: Arc<Pulse>,
    pub credentials: Arc<Credentials>,
    /// Nothing where calls are not traced.
    pub sampler: Option<Sampler>,
    pub logs_payloads: bool,
    pub budget: Budget,
    pub message_limit: usize,
    pub default_timeout: Duration,
    /// Turns true when calls that are executed must end.
    pub cancelling: watch::Receiver<bool>,
    pub census: Arc<Census>,
}

/// How many calls there are.
#[derive(Default)]
pub struct Census {
    /// Since the start.
    pub arrived: AtomicU64,
    /// Until the last byte of their answer has left.
    pub present: AtomicUsize,
    /// Executed without a question to the runner.
    pub unasked: AtomicUsize,
}

/// Counts for as long as it lives.
struct Counted(Arc<Census>, fn(&Census) -> &AtomicUsize);

impl Counted {
    fn new(census: &Arc<Census>, counter: fn(&Census) -> &AtomicUsize) -> Self {
        counter(census).fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(census), counter)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        (self.1)(&self.0).fetch_sub(1, Ordering::Relaxed);
    }
}

impl Evaluator for Front {
    async fn serve(self: Arc<Self>, request: Request<Body>) -> Response<Body> {
        self.census.arrived.fetch_add(1, Ordering::Relaxed);
        let present = Counted::new(&self.census, |census| &census.present);
        let (parts, body) = request.into_parts();
        // Before anything of its message is read. A stranger decides nothing about traces.
        let fault = self.credentials.fault(&parts.headers);
        let sampler = self.sampler.filter(|_| fault.is_none());
        let trace = sampler.map(|sampler| Trace::begin(&sampler, &parts.headers));
        let record = Record::new(self.link.clone(), time_for(&parts.headers, self.default_timeout), trace);
        if let Some(why) = fault {
            return refuse(record, why, &parts).into_http();
        }
        match self.answer(record, &parts.headers, body).await {
            Ok(reply) => reply.into_response(present),
            Err(status) => status.into_http(),
        }
    }
}

enum Event {
    /// To tell the runner.
    Time,
    Answer(Answer),
    Passed(Passed),
    Silence,
}

impl Front {
    async fn answer(&self, mut record: Record, headers: &HeaderMap, body: Body) -> Result<Reply, Status> {
        let seen = Seen::default();
        let mut cancelling = self.cancelling.clone();
        let read = tokio::select! {
            biased;
            read = read(body, headers, self.message_limit, &self.budget, &seen) => read,
            () = sleep_until(record.deadline) => {
                Err(EvaluationError::deadline_exceeded(&record.image, record.started.elapsed()))
            }
            _ = cancelling.wait_for(|cancelling| *cancelling) => {
                Err(EvaluationError::runner_shutting_down(&record.image))
            }
        };
        record.received(seen.size());
        record.image = seen.image();
        let incoming = match read {
            Ok(incoming) => incoming,
            Err(error) => return Err(record.fail(&error)),
        };
        record.received(incoming.message_size());
        if self.logs_payloads {
            log_payload("request", &record.image, &incoming.request.resource_list);
        }
        let length = incoming.request.image.chars().count();
        if length > LONGEST_IMAGE {
            // So long a name is not worth a question.
            let why = format!("the image has {length} characters; {LONGEST_IMAGE} are allowed");
            let why = format!("\"{}\" is no valid image: {why}", record.image);
            return Err(record.fail(&EvaluationError::invalid_request(why)));
        }
        panics::inject("task", &incoming.request.image);
        match self.functions.of_image(&incoming.request.image) {
            Some(function) => {
                let _unasked = Counted::new(&self.census, |census| &census.unasked);
                record.execute(&function.name, None);
                self.execute(record, &function, incoming).await
            }
            None => self.ask(record, headers, incoming).await,
        }
    }

    async fn execute(&self, mut record: Record, function: &LocalFunction, incoming: Incoming) -> Result<Reply, Status> {
        // The function's input is a part of it, and may go as soon as that is written.
        let Incoming { framed, request, share: _share } = incoming;
        drop(framed);
        let mut cancelling = self.cancelling.clone();
        let deadline = record.deadline;
        let outcome = tokio::select! {
            biased;
            outcome = self.run(&mut record, function, request.resource_list) => outcome,
            () = sleep_until(deadline) => {
                Err(EvaluationError::deadline_exceeded(&record.image, record.started.elapsed()))
            }
            _ = cancelling.wait_for(|cancelling| *cancelling) => {
                Err(EvaluationError::runner_shutting_down(&record.image))
            }
        };
        match outcome {
            Ok(outcome) => {
                record.succeed(&outcome);
                if self.logs_payloads {
                    log_payload("response", &record.image, &outcome.stdout);
                }
                let reply = Reply::of(outcome, self.message_limit);
                record.answered(reply.message_size);
                Ok(reply)
            }
            Err(error) => Err(record.fail(&error)),
        }
    }

    async fn run(
        &self,
        record: &mut Record,
        function: &LocalFunction,
        list: Bytes,
    ) -> Result<Outcome, EvaluationError> {
        let ticket = function.executor.enter(&record.image, record.remaining())?;
        let start = Arc::new(Start::new(self.cancelling.clone()));
        let mut turn = None;
        let outcome = ticket.run(&record.image, list, None, start, |had| turn = Some(had)).await;
        if let Some(turn) = turn {
            record.had_turn(turn);
        }
        outcome
    }

    async fn ask(&self, mut record: Record, headers: &HeaderMap, incoming: Incoming) -> Result<Reply, Status> {
        if let Some(since) = self.pulse.silence() {
            return Err(record.fail(&EvaluationError::runner_silent(&record.image, since)));
        }
        let mut question = self.questions.open(&self.link);
        record.hand_over();
        // A runner that does not keep up is asked: it must not have more and more to hear of.
        let place = if self.link.is_behind() { None } else { self.promises.take(&incoming.request.image) };
        let news = News::Call(call(question.id, &record, headers, &incoming, place.as_ref()));
        let mut connection = place.as_ref().map_or(0, Place::connection);
        let mut forwarding = place.map(|place| {
            let (mut order, by) = place.order(question.id, record.remaining());
            order.headers.extend(record.trace_headers());
            Box::pin(forward(by, order, incoming.framed.clone(), self.message_limit))
        });
        let mut news = Some(news);
        let last_moment = last_moment(&record, headers);
        loop {
            let event = tokio::select! {
                biased;
                answer = question.next() => Event::Answer(answer),
                passed = async { forwarding.as_mut().expect("only then").await }, if forwarding.is_some() => {
                    Event::Passed(passed)
                }
                () = sleep_until(last_moment) => Event::Silence,
                // A promised pod has the call before the runner hears of it.
                () = ready(()), if news.is_some() => Event::Time,
            };
            if let Some(news) = news.take() {
                self.link.tell(news);
            }
            match event {
                Event::Time => {}
                Event::Answer(Answer::Run(run, edition)) => {
                    question.settle();
                    record.execute(&run.function, Some(run.id));
                    let function = match self.functions.named(&run, &incoming.request.image, edition) {
                        Ok(function) => function,
                        Err(error) => {
                            return Err(
                                record.fail(&EvaluationError::out_of_resources(&record.image, &error.to_string()))
                            );
                        }
                    };
                    return self.execute(record, &function, incoming).await;
                }
                Event::Answer(Answer::Forward(mut order, by)) => {
                    connection = order.connection;
                    order.headers.extend(record.trace_headers());
                    let passing = forward(by, order, incoming.framed.clone(), self.message_limit);
                    forwarding = Some(Box::pin(passing));
                }
                Event::Answer(Answer::Refuse(refuse)) => {
                    question.settle();
                    return Err(status_of(refuse));
                }
                Event::Passed(Passed::Answered { framed, log_bytes }) => {
                    if self.logs_payloads
                        && let Ok(response) = EvaluateFunctionResponse::decode(framed.slice(PREFIX..))
                    {
                        log_payload("response", &record.image, &response.resource_list);
                    }
                    let reply = Reply::passed_on(framed);
                    let answered = Answered {
                        response_bytes: reply.message_size as u64,
                        log_bytes: log_bytes as u64,
                        seconds: record.started.elapsed().as_secs_f64(),
                    };
                    let news =
                        Forwarded { id: question.id, connection, outcome: Some(messages::Outcome::Answered(answered)) };
                    // The runner has nothing to decide, unless somebody waits, or its own clock would say otherwise.
                    let can_wait = self.promises.are_made_to(&incoming.request.image) && record.remaining() > IN_TIME;
                    self.link.tell_within(News::Forwarded(news), if can_wait { LATER } else { AFTER_THE_ANSWER });
                    // Not before the runner was told one or the other: it holds the pod until then.
                    question.settle();
                    return Ok(reply);
                }
                Event::Passed(Passed::Status(status)) => {
                    forwarding = None;
                    self.tell_of(question.id, connection, messages::Outcome::Status(status));
                }
                Event::Passed(Passed::Trouble(trouble)) => {
                    forwarding = None;
                    self.tell_of(question.id, connection, messages::Outcome::Trouble(trouble));
                }
                Event::Silence => {
                    let why = format!("function \"{}\" had no answer before the deadline of the call", record.image);
                    return Err(Status::deadline_exceeded(why));
                }
            }
        }
    }

    fn tell_of(&self, id: u64, connection: u64, outcome: messages::Outcome) {
        self.link.tell(News::Forwarded(Forwarded { id, connection, outcome: Some(outcome) }));
    }
}

/// The answer to a caller without a token that is accepted.
fn refuse(mut record: Record, why: &str, parts: &Parts) -> Status {
    let message = format!("{why} (this runner has --auth-token-file)");
    let status = record.fail(&EvaluationError::unauthenticated(message));
    let peer = parts.extensions.get::<TcpConnectInfo>().and_then(TcpConnectInfo::remote_addr);
    record.note("peer", peer.map_or_else(|| "unknown".to_owned(), |peer| peer.to_string()));
    status
}

fn log_payload(event: &str, image: &str, list: &[u8]) {
    let list = String::from_utf8_lossy(list);
    Line::new(Level::Debug, event).with("image", image).with("resource_list", list).write_with_timeout();
}

/// When the caller is answered, whether the runner has said anything or not: before the deadline that the caller set, at
/// which the server would answer CANCELLED in our place.
fn last_moment(record: &Record, headers: &HeaderMap) -> Instant {
    match timeout_of(headers) {
        Some(timeout) => record.started + timeout.min(LONGEST_TIMEOUT).saturating_sub(BEFORE_THE_DEADLINE),
        None => record.deadline + PATIENCE,
    }
}

fn call(id: u64, record: &Record, headers: &HeaderMap, incoming: &Incoming, place: Option<&Place>) -> Call {
    let timeout =
        timeout_of(headers).map(|timeout| timeout.min(LONGEST_TIMEOUT).saturating_sub(record.started.elapsed()));
    Call {
        id,
        image: incoming.request.image.clone(),
        message_bytes: incoming.message_size() as u64,
        timeout_seconds: timeout.map(|timeout| timeout.as_secs_f64()),
        span: record.span(),
        is_promised: place.is_some(),
        connection: place.map_or(0, Place::connection),
        said_at: monotonic_seconds(),
    }
}

/// The clock of the runner's event loop.
fn monotonic_seconds() -> f64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: it is written, and no longer than the call.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    #[expect(clippy::cast_precision_loss, reason = "a machine is up for less than 2^52 nanoseconds that matter")]
    (now.tv_sec as f64 + now.tv_nsec as f64 / 1e9)
}

fn status_of(refuse: Refuse) -> Status {
    Status::with_details(Code::from(refuse.code), refuse.message, refuse.details.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_caller_is_answered_before_the_deadline_that_it_set_and_after_the_runners_own_margin() {
        let mut headers = HeaderMap::new();
        headers.insert("grpc-timeout", "500m".parse().unwrap());
        let record = Record::new(Link::to_nobody(), time_for(&headers, Duration::from_secs(600)), None);
        let moment = last_moment(&record, &headers);
        assert!(moment < record.started + Duration::from_millis(500));
        assert!(moment > record.deadline, "the runner has a little time to say why");
        assert_eq!(last_moment(&record, &HeaderMap::new()), record.deadline + PATIENCE);
    }
}
