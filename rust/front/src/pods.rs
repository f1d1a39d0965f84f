//! Lasting connections to the wrapper servers of pods: calls are passed on by them, and the runner's questions whether they
//! serve.
//!
//! Which pod, and what a failure means for the call, is the runner's business; here it only matters how far the call came.

use std::collections::HashMap;
use std::error::Error;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use engine::rpc::evaluate::METHOD;
use engine::rpc::messages::{EvaluateFunctionResponse, HealthCheckRequest};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prost::Message;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tonic::{Code, Status};

use crate::incoming::PREFIX;
use crate::messages::{self, AskHealth, Forward, Header, Said, Trouble};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// A pod whose node is gone does not say so.
const KEEPALIVE: Duration = Duration::from_secs(20);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// An answer of megabytes comes without a pause, in frames as large as the wrapper's.
const STREAM_WINDOW: u32 = 8 * 1024 * 1024;
const CONNECTION_WINDOW: u32 = 64 * 1024 * 1024;
const FRAME_SIZE: u32 = 256 * 1024;
/// Between two attempts to reach a pod that is just being started.
const NEXT_ATTEMPT: Duration = Duration::from_millis(50);
/// The same where nothing but a container is: it is there in a fifth of a second.
const NEXT_HURRIED_ATTEMPT: Duration = Duration::from_millis(10);
/// How long an answer of DNS is used: a pod that is just being started is tried many times a second.
const NAME_HOLDS: Duration = Duration::from_secs(2);
/// That are looked up: without an answer from DNS each takes a thread for half a minute.
pub const NAMES_AT_ONCE: usize = 16;
static NAMES: Semaphore = Semaphore::const_new(NAMES_AT_ONCE);
const CHECK: &str = "/grpc.health.v1.Health/Check";
const LONGEST_HEALTH: usize = 1024;
/// As gRPC writes it, a timeout has at most eight digits.
const MOST_MILLISECONDS: u128 = 99_999_999;

/// One end of an open connection.
#[derive(Clone)]
struct Sender {
    requests: SendRequest<Full<Bytes>>,
    /// Whether it was given up because nothing came back any more.
    fell_silent: Arc<AtomicBool>,
}

/// What became of a call.
pub enum Passed {
    Answered { framed: Bytes, log_bytes: usize },
    Status(messages::Status),
    Trouble(Trouble),
}

#[derive(Default)]
pub struct Pods {
    connections: Mutex<HashMap<u64, Arc<Connection>>>,
}

/// To one pod, by one way; made when it is needed.
pub struct Connection {
    address: String,
    /// Under way.
    calls: AtomicU64,
    state: tokio::sync::Mutex<State>,
}

/// A call that is with a pod, or on its way there, for as long as this lives.
pub struct Engaged(Arc<Connection>);

impl Drop for Engaged {
    fn drop(&mut self) {
        self.0.calls.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct State {
    sender: Option<Sender>,
    /// How many there were.
    number: u64,
    /// Why there is none, and since when.
    failure: Option<(Instant, Trouble)>,
    /// What its name stands for, and since when that is known.
    found: Option<(Instant, Vec<SocketAddr>)>,
}

/// What is sent by a connection.
struct Sent<'a> {
    method: &'static str,
    authority: &'a str,
    headers: &'a [Header],
    framed: Bytes,
    /// Of the answer.
    limit: usize,
    time: Duration,
}

/// A message that was answered, or the status that came instead.
type Answer = Result<Bytes, Status>;

/// Send a message to a pod, and wait for its answer, which has at most so many bytes.
pub async fn forward(by: Engaged, order: Forward, framed: Bytes, message_limit: usize) -> Passed {
    let time = seconds(order.timeout_seconds);
    let (authority, headers) = (order.authority.as_str(), order.headers.as_slice());
    let message = Sent { method: METHOD, authority, headers, framed, limit: message_limit, time };
    match timeout(time, by.0.call(&message)).await {
        Ok(Ok(answer)) => answer.map_or_else(|ended| Passed::Status(status(&ended)), answered),
        Ok(Err(trouble)) => Passed::Trouble(trouble),
        Err(_) => Passed::Status(status(&Status::deadline_exceeded("the time of the call is over"))),
    }
}

/// Whether a pod's wrapper server serves.
pub async fn ask_health(connection: Arc<Connection>, order: AskHealth) -> Said {
    let time = seconds(order.timeout_seconds);
    let end = Instant::now() + time;
    let (authority, headers) = (order.authority.as_str(), order.headers.as_slice());
    let pause = if order.hurried { NEXT_HURRIED_ATTEMPT } else { NEXT_ATTEMPT };
    let question = framed(&HealthCheckRequest { service: order.service });
    loop {
        let time = end.saturating_duration_since(Instant::now());
        let framed = question.clone();
        let message = Sent { method: CHECK, authority, headers, framed, limit: LONGEST_HEALTH, time };
        let trouble = match timeout(time, connection.call(&message)).await {
            Ok(Ok(Ok(framed))) => return Said::Response(framed.slice(PREFIX..).to_vec()),
            Ok(Ok(Err(ended))) => return Said::Status(status(&ended)),
            Ok(Err(trouble)) => trouble,
            Err(_) => return Said::Status(status(&Status::deadline_exceeded("it does not answer in time"))),
        };
        let is_worth_another = order.patiently && !trouble.reached && !trouble.is_unnamed;
        if !is_worth_another || Instant::now() + pause >= end {
            return Said::Trouble(trouble);
        }
        sleep(pause).await;
    }
}

/// A message as gRPC sends it.
fn framed(message: &impl Message) -> Bytes {
    let size = message.encoded_len();
    let mut framed = BytesMut::with_capacity(PREFIX + size);
    framed.put_u8(0);
    framed.put_u32(u32::try_from(size).unwrap_or(u32::MAX));
    message.encode(&mut framed).expect("the buffer grows");
    framed.freeze()
}

fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number).unwrap_or(Duration::ZERO)
}

impl Pods {
    /// Calls under way keep it for as long as they need it.
    pub fn disconnect(&self, number: u64) {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner).remove(&number);
    }

    /// The one of that number.
    pub fn connection(&self, number: u64, address: &str) -> Arc<Connection> {
        let mut connections = self.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let made = || Connection { address: address.to_owned(), calls: AtomicU64::new(0), state: <_>::default() };
        Arc::clone(connections.entry(number).or_insert_with(|| Arc::new(made())))
    }
}

impl Connection {
    /// One more call.
    pub fn engage(connection: &Arc<Self>) -> Engaged {
        connection.calls.fetch_add(1, Ordering::Relaxed);
        Engaged(Arc::clone(connection))
    }

    /// How many calls it has.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    async fn call(&self, message: &Sent<'_>) -> Result<Answer, Trouble> {
        let asked = Instant::now();
        let mut is_fresh = false;
        loop {
            let (mut sender, number) = self.sender(asked, &mut is_fresh).await?;
            let request = request(message, &self.address)?;
            let broken =
                |error: &hyper::Error| broken(error, error.is_timeout() || sender.fell_silent.load(Ordering::Relaxed));
            match sender.requests.send_request(request).await {
                Ok(response) => return read(response, message.limit, broken).await,
                // It had ended already: nobody has seen the call.
                Err(error) if error.is_canceled() && !is_fresh => self.drop_sender(number).await,
                Err(error) => {
                    self.drop_sender(number).await;
                    return Err(broken(&error));
                }
            }
        }
    }

    /// One that is open, as far as is known; `is_fresh` says whether it was made for this.
    async fn sender(&self, asked: Instant, is_fresh: &mut bool) -> Result<(Sender, u64), Trouble> {
        let mut state = self.state.lock().await;
        if let Some(sender) = state.sender.as_ref().filter(|sender| !sender.requests.is_closed()) {
            return Ok((sender.clone(), state.number));
        }
        // Who waited for an attempt that failed does not make the same one again.
        if let Some((_, trouble)) = state.failure.as_ref().filter(|(failed, _)| *failed > asked) {
            return Err(trouble.clone());
        }
        *is_fresh = true;
        match self.connect(&mut state).await {
            Ok(sender) => {
                *state = State { sender: Some(sender.clone()), number: state.number + 1, ..State::default() };
                Ok((sender, state.number))
            }
            Err(trouble) => {
                state.failure = Some((Instant::now(), trouble.clone()));
                Err(trouble)
            }
        }
    }

    async fn connect(&self, state: &mut State) -> Result<Sender, Trouble> {
        if let Some((_, addresses)) = state.found.as_ref().filter(|(found, _)| found.elapsed() < NAME_HOLDS) {
            return connect(addresses).await;
        }
        let addresses = find(&self.address).await?;
        let (_, addresses) = state.found.insert((Instant::now(), addresses));
        connect(addresses).await
    }

    /// That one, and not one that took its place.
    async fn drop_sender(&self, number: u64) {
        let mut state = self.state.lock().await;
        if state.number == number {
            state.sender = None;
        }
    }
}

async fn find(address: &str) -> Result<Vec<SocketAddr>, Trouble> {
    // As people know it: a dot at the end says that it is the whole name.
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host).trim_end_matches('.');
    let unnamed = |_| Trouble { why: format!("the name {host} is not known"), reached: false, is_unnamed: true };
    timeout(CONNECT_TIMEOUT, look_up(address.to_owned()))
        .await
        .map_err(|_| unnamed(io::Error::from(io::ErrorKind::TimedOut)))?
        .map_err(unnamed)
}

async fn connect(addresses: &[SocketAddr]) -> Result<Sender, Trouble> {
    let late = |_| unreached("it does not accept connections");
    let connecting = TcpStream::connect(addresses);
    let stream = timeout(CONNECT_TIMEOUT, connecting).await.map_err(late)?.map_err(|error| refused(&error))?;
    let _ = stream.set_nodelay(true);
    let shaking = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_SIZE)
        .keep_alive_interval(KEEPALIVE)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .handshake(TokioIo::new(stream));
    let shaken = timeout(CONNECT_TIMEOUT, shaking).await.map_err(late)?;
    let (requests, connection) = shaken.map_err(|error| unreached(&format!("no connection: {error}")))?;
    let sender = Sender { requests, fell_silent: Arc::default() };
    let fell_silent = Arc::clone(&sender.fell_silent);
    // Whoever has a call on it is told that it broke, and not why.
    tokio::spawn(async move {
        if connection.await.is_err_and(|error| error.is_timeout()) {
            fell_silent.store(true, Ordering::Relaxed);
        }
    });
    Ok(sender)
}

/// Who gives up leaves the question to its thread, and that in its place.
async fn look_up(address: String) -> io::Result<Vec<SocketAddr>> {
    let place = NAMES.acquire().await.map_err(io::Error::other)?;
    let looking = tokio::spawn(async move {
        let _place = place;
        Ok(tokio::net::lookup_host(address).await?.collect())
    });
    looking.await.map_err(io::Error::other)?
}

fn request(message: &Sent<'_>, address: &str) -> Result<Request<Full<Bytes>>, Trouble> {
    let Sent { method, authority, time, .. } = message;
    let authority = if authority.is_empty() { address } else { authority };
    let timeout = match time.as_millis() {
        milliseconds @ ..=MOST_MILLISECONDS => format!("{milliseconds}m"),
        _ => format!("{}S", time.as_secs().min(99_999_999)),
    };
    let mut request = Request::post(format!("http://{authority}{method}"))
        .header(http::header::CONTENT_TYPE, "application/grpc")
        .header(http::header::TE, "trailers")
        .header(http::header::USER_AGENT, concat!("krm-runner/", env!("CARGO_PKG_VERSION")))
        .header("grpc-timeout", timeout)
        .body(Full::new(message.framed.clone()))
        .map_err(|error| unreached(&format!("no call can be made to {authority}: {error}")))?;
    for header in message.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(&header.name), HeaderValue::try_from(&header.value)) {
            request.headers_mut().append(name, value);
        }
    }
    Ok(request)
}

async fn read(
    response: Response<Incoming>,
    limit: usize,
    broken: impl Fn(&hyper::Error) -> Trouble,
) -> Result<Answer, Trouble> {
    let (parts, mut body) = response.into_parts();
    if parts.status != http::StatusCode::OK {
        let why = format!("something before it answered with HTTP status {}", parts.status.as_u16());
        return Err(Trouble { why, reached: true, is_unnamed: false });
    }
    let mut answer = BytesMut::new();
    let mut only = Bytes::new();
    let mut trailers = HeaderMap::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| broken(&error))?;
        let data = match frame.into_data() {
            Ok(data) => data,
            Err(frame) => {
                trailers = frame.into_trailers().unwrap_or_default();
                continue;
            }
        };
        if only.is_empty() && answer.is_empty() {
            only = data;
        } else {
            answer.extend_from_slice(&std::mem::take(&mut only));
            answer.extend_from_slice(&data);
        }
        if only.len() + answer.len() > limit + PREFIX {
            // In gRPC's words, which the runner knows.
            let text = format!("Received message larger than max ({} vs. {limit})", only.len() + answer.len());
            return Ok(Err(Status::resource_exhausted(text)));
        }
    }
    let framed = if answer.is_empty() { only } else { answer.freeze() };
    // Where there is no message the status may stand in the headers.
    let ended = Status::from_header_map(&trailers).or_else(|| Status::from_header_map(&parts.headers));
    match ended {
        Some(ended) if ended.code() == Code::Ok && is_whole(&framed) => Ok(Ok(framed)),
        Some(ended) if ended.code() == Code::Ok => Ok(Err(no_response())),
        Some(ended) => Ok(Err(ended)),
        None => Err(Trouble {
            why: "its connection broke in the middle of the call".into(),
            reached: true,
            is_unnamed: false,
        }),
    }
}

fn answered(framed: Bytes) -> Passed {
    match EvaluateFunctionResponse::decode(framed.slice(PREFIX..)) {
        Ok(response) => Passed::Answered { log_bytes: response.log.len(), framed },
        Err(_) => Passed::Status(status(&no_response())),
    }
}

fn no_response() -> Status {
    Status::internal("what it sent is no response")
}

fn is_whole(framed: &[u8]) -> bool {
    framed.len() >= PREFIX && framed[0] == 0 && announced(framed) == framed.len() - PREFIX
}

fn announced(framed: &[u8]) -> usize {
    u32::from_be_bytes([framed[1], framed[2], framed[3], framed[4]]) as usize
}

fn status(status: &Status) -> messages::Status {
    messages::Status {
        code: status.code() as i32,
        message: status.message().to_owned(),
        details: status.details().to_vec(),
    }
}

fn unreached(why: &str) -> Trouble {
    Trouble { why: why.to_owned(), reached: false, is_unnamed: false }
}

fn refused(error: &io::Error) -> Trouble {
    unreached(&match error.kind() {
        io::ErrorKind::ConnectionRefused => "its port refuses connections".into(),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => "there is no way to its address".into(),
        io::ErrorKind::TimedOut => "it does not accept connections".into(),
        _ => format!("no connection: {error}"),
    })
}

/// A connection that was there; when in doubt the call counts as one that reached the function.
fn broken(error: &hyper::Error, fell_silent: bool) -> Trouble {
    let reason = source::<h2::Error>(error);
    let reached = !error.is_canceled() && !reason.is_some_and(was_not_looked_at);
    let why = if !reached {
        "it takes no calls any more".into()
    } else if fell_silent || source::<io::Error>(error).is_some_and(|error| error.kind() == io::ErrorKind::TimedOut) {
        "it does not answer any more, or the network to it is gone".into()
    } else if reason.is_some_and(h2::Error::is_reset) {
        "the call was broken off".into()
    } else {
        "its connection broke in the middle of the call".into()
    };
    Trouble { why, reached, is_unnamed: false }
}

/// By HTTP/2's own rules: refused, or behind the last one that the other end takes before it goes.
fn was_not_looked_at(error: &h2::Error) -> bool {
    let goes = error.is_go_away() && error.is_remote() && error.reason() == Some(h2::Reason::NO_ERROR);
    goes || error.reason() == Some(h2::Reason::REFUSED_STREAM)
}

fn source<T: Error + 'static>(error: &dyn Error) -> Option<&T> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(found) = error.downcast_ref::<T>() {
            return Some(found);
        }
        cause = error.source();
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_a_name_stands_for_is_asked_again_after_a_while() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addresses = vec![listener.local_addr().unwrap()];
        let connection = Pods::default().connection(1, "no-such-name.invalid.:9446");
        for (age, is_known) in [(Duration::ZERO, true), (NAME_HOLDS, false)] {
            let found = Instant::now().checked_sub(age).map(|since| (since, addresses.clone()));
            *connection.state.lock().await = State { found, ..State::default() };
            let reached = connection.sender(Instant::now(), &mut false).await;
            assert_eq!(reached.as_ref().err().map(|trouble| trouble.is_unnamed), (!is_known).then_some(true));
        }
    }
}
