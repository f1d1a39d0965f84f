//! The rpc `EvaluateFunction`: one call, one process, one log line, and every error as its status.

use std::ffi::CString;
use std::future::Future;
use std::os::unix::ffi::OsStringExt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::server::{ClientStreamingService, Grpc};
use tonic::{Code, Request, Response, Status, Streaming, body::Body};
use tonic_prost::ProstCodec;

use engine::call::Outcome;
use engine::errors::EvaluationError;
use engine::executor::Executor;
use engine::log::{Level, Line};
use engine::log_excerpt::shorten;
use engine::metrics::Metrics;
use engine::panics;
use engine::process::Start;
use engine::rpc::evaluate::{LONGEST_TIMEOUT, code_name, field_overhead, shown, time_for};
use engine::rpc::messages::{EvaluateFunctionRequest, EvaluateFunctionResponse};
use engine::rpc::router::Evaluator;
use engine::rpc::status::status_of;
use engine::verdict::printable;

use crate::announced_size::AnnouncedSize;
use crate::token::Token;

const RUNTIME: &str = "pod";
const MAX_LOGGED_ERROR: usize = 4096;
const UPLOAD_TIMEOUT: Duration = Duration::from_secs(10);
/// W3C's names, as headers and, in capitals, as variables of the environment.
const TRACE_HEADERS: [&str; 2] = ["traceparent", "tracestate"];

pub struct Evaluation {
    pub executor: Executor,
    pub metrics: Arc<Metrics>,
    pub message_limit: usize,
    pub default_timeout: Duration,
    /// Whether functions are told which trace they belong to.
    pub passes_trace_on: bool,
    /// Turns true when calls under way must end.
    pub stopping: watch::Receiver<bool>,
    /// What callers must show, if anything.
    pub token: Option<Token>,
}

impl Evaluator for Evaluation {
    async fn serve(self: Arc<Self>, request: http::Request<Body>) -> http::Response<Body> {
        let limit = self.message_limit;
        let (parts, body) = request.into_parts();
        let (body, size) = AnnouncedSize::watch(body);
        let start = Arc::new(Start::new(self.stopping.clone()));
        let call = Call { evaluation: self, size, start, headers: parts.headers.clone() };
        let mut grpc = Grpc::new(ProstCodec::<EvaluateFunctionResponse, EvaluateFunctionRequest>::default())
            .max_decoding_message_size(limit)
            .max_encoding_message_size(usize::MAX);
        grpc.client_streaming(call, http::Request::from_parts(parts, body)).await
    }

    fn is_shown_a_wrong_token(&self, headers: &HeaderMap) -> bool {
        let is_shown = headers.contains_key(http::header::AUTHORIZATION);
        is_shown && self.token.as_ref().is_some_and(|token| token.fault(headers).is_some())
    }

    fn asked(&self) {
        self.executor.asked();
    }
}

impl Evaluation {
    async fn answer(
        &self,
        record: &mut Record<'_>,
        call: &Call,
        requests: &mut Streaming<EvaluateFunctionRequest>,
    ) -> Result<EvaluateFunctionResponse, EvaluationError> {
        // Before anything of the request is read.
        if let Some(why) = self.token.as_ref().and_then(|token| token.fault(&call.headers)) {
            return Err(EvaluationError::unauthenticated(format!("{why} (this pod has a token)")));
        }
        let ticket = self.executor.enter(&record.image, record.remaining())?;
        let _admitted = ticket.admitted().await;
        // Whoever is admitted and sends nothing keeps others waiting.
        let request = tokio::time::timeout(UPLOAD_TIMEOUT, self.read(call, requests)).await;
        let request = request.map_err(|_| EvaluationError::request_too_slow(&record.image, UPLOAD_TIMEOUT))??;
        record.request_bytes = call.size.load(Ordering::Relaxed);
        if !request.image.is_empty() {
            record.image = shown(&request.image);
        }
        panics::inject("task", &record.image);
        let environment = if self.passes_trace_on { trace_environment(&call.headers) } else { None };
        let (queue_wait, facts) = (&mut record.queue_wait, &mut record.facts);
        let outcome = ticket
            .run(&record.image, request.resource_list, environment, Arc::clone(&call.start), |turn| {
                *queue_wait = Some(turn.waited);
                self.metrics.waited(turn.waited);
                facts.extend(turn.origin.map(|origin| ("process", origin.name().to_owned())));
            })
            .await?;
        for failed in outcome.envelope.results.iter().filter(|result| result.is_error()) {
            Line::new(Level::Warning, "the function succeeded with a result of severity error")
                .with("image", &record.image)
                .with("result", printable(failed.to_string().as_bytes()))
                .write();
        }
        Ok(self.response(record, outcome))
    }

    async fn read(
        &self,
        call: &Call,
        requests: &mut Streaming<EvaluateFunctionRequest>,
    ) -> Result<EvaluateFunctionRequest, EvaluationError> {
        match requests.message().await {
            Ok(Some(request)) => Ok(request),
            Ok(None) => Err(EvaluationError::invalid_request("the request has no message".into())),
            Err(status) if status.code() == Code::OutOfRange => {
                Err(EvaluationError::message_too_large(call.size.load(Ordering::Relaxed), self.message_limit))
            }
            Err(status) => Err(EvaluationError::invalid_request(format!(
                "the request is no EvaluateFunctionRequest: {}",
                status.message()
            ))),
        }
    }

    fn response(&self, record: &mut Record<'_>, outcome: Outcome) -> EvaluateFunctionResponse {
        let size = outcome.stdout.len();
        let room = self.message_limit.saturating_sub(size + field_overhead(size));
        record.facts.push(("log_bytes", outcome.stderr.len().to_string()));
        let log = shorten(outcome.stderr, room.saturating_sub(field_overhead(room)));
        let response = EvaluateFunctionResponse { resource_list: Bytes::from(outcome.stdout), log: Bytes::from(log) };
        record.response_bytes = prost::Message::encoded_len(&response);
        response
    }
}

/// One call, with what its headers say.
struct Call {
    evaluation: Arc<Evaluation>,
    size: Arc<AtomicUsize>,
    start: Arc<Start>,
    headers: HeaderMap,
}

impl ClientStreamingService<EvaluateFunctionRequest> for Call {
    type Response = EvaluateFunctionResponse;
    type Future = Pin<Box<dyn Future<Output = Result<Response<EvaluateFunctionResponse>, Status>> + Send>>;

    fn call(&mut self, request: Request<Streaming<EvaluateFunctionRequest>>) -> Self::Future {
        let call = Call {
            evaluation: Arc::clone(&self.evaluation),
            size: Arc::clone(&self.size),
            start: Arc::clone(&self.start),
            headers: std::mem::take(&mut self.headers),
        };
        Box::pin(async move { call.run(request.into_inner()).await })
    }
}

impl Call {
    async fn run(
        self,
        mut requests: Streaming<EvaluateFunctionRequest>,
    ) -> Result<Response<EvaluateFunctionResponse>, Status> {
        let evaluation = &*self.evaluation;
        let mut record = Record::new(&evaluation.metrics, evaluation.executor.function());
        let deadline = record.started + time_for(&self.headers, evaluation.default_timeout);
        record.deadline = Some(deadline);
        let mut stopping = evaluation.stopping.clone();
        let answer = tokio::select! {
            biased;
            answer = panics::caught(evaluation.answer(&mut record, &self, &mut requests)) => {
                answer.unwrap_or_else(|| Err(EvaluationError::unexpected(&record.image, "panic")))
            }
            () = tokio::time::sleep_until(deadline) => {
                Err(EvaluationError::deadline_exceeded(&record.image, record.started.elapsed()))
            }
            _ = stopping.wait_for(|stopping| *stopping) => {
                Err(EvaluationError::shutting_down(&record.image, self.start.end()))
            }
        };
        record.request_bytes = self.size.load(Ordering::Relaxed);
        match answer {
            Ok(response) => {
                record.succeed();
                Ok(Response::new(response))
            }
            Err(error) => {
                record.fail(&error);
                Err(status_of(&error, &record.image, RUNTIME))
            }
        }
    }
}

/// Our own environment and the trace of the call; nothing when the call has none.
fn trace_environment(headers: &HeaderMap) -> Option<Vec<CString>> {
    headers.get(TRACE_HEADERS[0])?;
    let names = TRACE_HEADERS.map(str::to_ascii_uppercase);
    let inherited = std::env::vars_os().filter(|(name, _)| !names.iter().any(|known| name == known.as_str()));
    let mut environment: Vec<CString> = inherited
        .filter_map(|(name, value)| CString::new([name.into_vec(), b"=".to_vec(), value.into_vec()].concat()).ok())
        .collect();
    for (header, name) in TRACE_HEADERS.iter().zip(&names) {
        if let Some(value) = headers.get(*header) {
            environment.extend(CString::new([name.as_bytes(), b"=", value.as_bytes()].concat()));
        }
    }
    Some(environment)
}

/// What is known of one call, for its log line and its metrics. Dropped before its end, the caller went away.
struct Record<'a> {
    metrics: &'a Metrics,
    started: Instant,
    deadline: Option<Instant>,
    /// As the caller calls it; until that is known, and if it never is, the entrypoint.
    image: String,
    code: Option<&'static str>,
    request_bytes: usize,
    response_bytes: usize,
    queue_wait: Option<Duration>,
    facts: Vec<(&'static str, String)>,
}

impl<'a> Record<'a> {
    fn new(metrics: &'a Metrics, function: String) -> Self {
        Self {
            metrics,
            started: Instant::now(),
            deadline: None,
            image: function,
            code: None,
            request_bytes: 0,
            response_bytes: 0,
            queue_wait: None,
            facts: Vec::new(),
        }
    }

    /// Until its deadline.
    fn remaining(&self) -> Duration {
        self.deadline.map_or(LONGEST_TIMEOUT, |deadline| deadline.saturating_duration_since(Instant::now()))
    }

    fn succeed(&mut self) {
        self.code = Some("OK");
        self.metrics.exited("0");
        self.facts.push(("exit", "0".into()));
    }

    fn fail(&mut self, error: &EvaluationError) {
        self.code = Some(code_name(error.code));
        for (name, value) in &error.facts {
            if matches!(*name, "exit_code" | "signal") {
                self.metrics.exited(value);
            }
            self.facts.push((if *name == "exit_code" { "exit" } else { name }, value.clone()));
        }
        let message = shorten(error.message.clone().into_bytes(), MAX_LOGGED_ERROR);
        self.facts.push(("error", String::from_utf8_lossy(&message).into_owned()));
    }
}

impl Drop for Record<'_> {
    fn drop(&mut self) {
        let code = self.code.unwrap_or_else(|| {
            // A caller whose deadline passed goes away as well; whose timer was faster does not matter.
            let is_late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
            let (code, why) = if is_late {
                ("DEADLINE_EXCEEDED", "the deadline of the call passed; the function was stopped")
            } else {
                ("CANCELLED", "the caller went away; the function was stopped")
            };
            self.facts.push(("error", why.into()));
            code
        });
        let duration = self.started.elapsed();
        self.metrics.evaluated(code, duration, self.request_bytes, self.response_bytes);
        let level = if code == "OK" { Level::Info } else { Level::Warning };
        let mut line = Line::new(level, "evaluated")
            .with("image", &self.image)
            .with("code", code)
            .with("seconds", format_args!("{:.6}", duration.as_secs_f64()))
            .with("request_bytes", self.request_bytes)
            .with("response_bytes", self.response_bytes);
        if let Some(queue_wait) = self.queue_wait {
            line = line.with("queue_seconds", format_args!("{:.6}", queue_wait.as_secs_f64()));
        }
        for (name, value) in &self.facts {
            line = line.with(name, value);
        }
        line.write();
    }
}
