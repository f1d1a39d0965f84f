//! Who is called, with what: connections that last, and one call over one of them.
//!
//! The request is one buffer that all calls share. Of an answer only its size is looked at; it is dropped as it comes.
//! A connection that breaks is not made anew: the calls that follow fail, and nothing that was measured is of use.

use std::error::Error;
use std::future::poll_fn;
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{BufMut, Bytes, BytesMut};
use h2::RecvStream;
use h2::client::{self, SendRequest};
use http::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue, TE, USER_AGENT};
use http::{HeaderMap, Method, Request, StatusCode, Uri};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::flags::Flags;
use crate::status::{CANCELLED, DEADLINE_EXCEEDED, INTERNAL, RESOURCE_EXHAUSTED, Status, UNKNOWN};

pub const MAX_TIMEOUT: Duration = Duration::from_secs(120);
/// Calls under way.
pub const MAX_OUTSTANDING: u16 = 20_000;

const GRPC_TIMEOUT: &str = "grpc-timeout";
const METHOD: &str = "/evaluator.FunctionEvaluator/EvaluateFunction";
const MAX_MESSAGE_BYTES: usize = 64 << 20;
const PREFIX_BYTES: usize = 5;
/// Any answer fits, so nobody waits for a window.
const STREAM_WINDOW: u32 = (64 << 20) + 5;
const CONNECTION_WINDOW: u32 = 1 << 30;

#[derive(Clone)]
struct Server {
    sender: SendRequest<Bytes>,
    uri: Uri,
}

pub struct Target {
    servers: Vec<Server>,
    request: Bytes,
    headers: HeaderMap,
    timeout: Duration,
}

impl Target {
    /// Addresses have commas between them.
    pub async fn connect(flags: &Flags, request: &Bytes) -> Result<Self, Box<dyn Error>> {
        let tls = if flags.ca.is_empty() { None } else { Some(tls(&flags.ca)?) };
        let mut servers = Vec::new();
        for address in flags.addresses.split(',') {
            let server = Server::connect(address, tls.as_ref()).await;
            servers.push(server.map_err(|error| format!("{address}: {error}"))?);
        }
        let mut headers = HeaderMap::from_iter([
            (CONTENT_TYPE, HeaderValue::from_static("application/grpc")),
            (USER_AGENT, HeaderValue::from_static("krm-runner-load")),
            (TE, HeaderValue::from_static("trailers")),
        ]);
        if !flags.token.is_empty() {
            headers.insert(AUTHORIZATION, HeaderValue::try_from(format!("Bearer {}", flags.token))?);
        }
        Ok(Self { servers, request: request.clone(), headers, timeout: MAX_TIMEOUT }.with_timeout(MAX_TIMEOUT))
    }

    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.headers.insert(GRPC_TIMEOUT, header(milliseconds(timeout)));
        self.timeout = timeout;
        self
    }

    /// One call to each server.
    pub async fn call_each(&self) -> Result<(), Status> {
        for turn in 0..self.servers.len() {
            self.caller(turn).call(Instant::now()).await?;
        }
        Ok(())
    }

    /// Calls one of the servers; turn says which.
    pub fn caller(&self, turn: usize) -> Caller {
        let Server { sender, uri } = self.servers[turn % self.servers.len()].clone();
        let mut head = Request::new(());
        *head.method_mut() = Method::POST;
        *head.uri_mut() = uri;
        *head.headers_mut() = self.headers.clone();
        Caller { sender, head, request: self.request.clone(), timeout: self.timeout }
    }
}

impl Server {
    async fn connect(address: &str, tls: Option<&TlsConnector>) -> Result<Self, Box<dyn Error>> {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let uri = Uri::builder().scheme(scheme).authority(address).path_and_query(METHOD).build()?;
        let socket = TcpStream::connect(address)?;
        socket.set_nodelay(true)?;
        socket.set_nonblocking(true)?;
        let socket = tokio::net::TcpStream::from_std(socket)?;
        let sender = if let Some(tls) = tls {
            let name = ServerName::try_from(uri.host().unwrap_or_default().to_owned())?;
            Self::speak(tls.connect(name, socket).await?).await?
        } else {
            Self::speak(socket).await?
        };
        Ok(Self { sender, uri })
    }

    async fn speak<S>(socket: S) -> Result<SendRequest<Bytes>, h2::Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = client::Builder::new()
            .initial_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .enable_push(false)
            // Answers that come after their deadline are dropped as well: they are no reason to close the connection.
            .max_concurrent_reset_streams(MAX_OUTSTANDING.into())
            .max_local_error_reset_streams(None)
            .handshake(socket)
            .await?;
        // Its errors are those of its calls.
        tokio::spawn(async { _ = connection.await });
        Ok(sender)
    }
}

/// Trusts the CAs of a file.
fn tls(ca: &str) -> Result<TlsConnector, Box<dyn Error>> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(ca)? {
        roots.add(certificate?)?;
    }
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Calls one server, one call at a time.
pub struct Caller {
    sender: SendRequest<Bytes>,
    head: Request<()>,
    request: Bytes,
    timeout: Duration,
}

impl Caller {
    /// The time of the call began at `begin`, and so did its deadline.
    pub async fn call(&mut self, begin: Instant) -> Result<(), Status> {
        let deadline = begin + self.timeout;
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(late());
        }
        let mut head = self.head.clone();
        let timeout = milliseconds(left);
        // A header that was sent before costs a byte, on both sides.
        if timeout != milliseconds(self.timeout) {
            head.headers_mut().insert(GRPC_TIMEOUT, header(timeout));
        }
        match tokio::time::timeout_at(deadline.into(), self.exchange(head)).await {
            Err(_) => Err(late()),
            // Who serves the call may have been the first to notice.
            Ok(Err(status)) if status.code == CANCELLED && Instant::now() >= deadline => Err(late()),
            Ok(result) => result,
        }
    }

    /// Dropped before its end, it is cancelled.
    async fn exchange(&mut self, head: Request<()>) -> Result<(), Status> {
        poll_fn(|context| self.sender.poll_ready(context)).await?;
        let (answer, mut request) = self.sender.send_request(head, false)?;
        request.send_data(self.request.clone(), true)?;
        let (head, mut body) = answer.await?.into_parts();
        if let Some(result) = Status::read(&head.headers) {
            return result.and(Err(Status::new(INTERNAL, "no answer, and no reason")));
        }
        if head.status != StatusCode::OK {
            return Err(Status::new(UNKNOWN, format!("HTTP status {}", head.status)));
        }
        let whole = drain(&mut body).await?;
        let trailers = body.trailers().await?.unwrap_or_default();
        Status::read(&trailers).unwrap_or_else(|| Err(Status::new(INTERNAL, "an answer without a status")))?;
        whole
    }
}

/// Drops an answer as it comes. Its own status goes before what is wrong with its message.
async fn drain(body: &mut RecvStream) -> Result<Result<(), Status>, Status> {
    let mut prefix = [0; PREFIX_BYTES];
    let mut received = 0;
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        // It fails if the stream is over: then nobody waits for it.
        _ = body.flow_control().release_capacity(chunk.len());
        if let Some(missing) = prefix.get_mut(received..) {
            missing.iter_mut().zip(&chunk).for_each(|(to, from)| *to = *from);
        }
        received += chunk.len();
        if received > PREFIX_BYTES + MAX_MESSAGE_BYTES {
            return Err(Status::new(RESOURCE_EXHAUSTED, "an answer that is too large"));
        }
    }
    let [compressed, length @ ..] = prefix;
    Ok(match u32::from_be_bytes(length) as usize {
        0 => Err(Status::new(UNKNOWN, "an empty answer")),
        length if compressed == 0 && received == PREFIX_BYTES + length => Ok(()),
        _ => Err(Status::new(INTERNAL, "an answer that is not one whole message, uncompressed")),
    })
}

/// The request as it is sent, encoded once for all calls.
pub fn encode(image: &str, resource_list: &[u8]) -> Result<Bytes, Status> {
    let mut message = BytesMut::with_capacity(resource_list.len() + image.len() + 64);
    message.put_bytes(0, PREFIX_BYTES);
    for (number, value) in [(1, resource_list), (2, image.as_bytes())] {
        message.put_u8(number << 3 | 2);
        let mut length = value.len();
        while length >= 0x80 {
            message.put_u8(0x80 | length.to_le_bytes()[0]);
            length >>= 7;
        }
        message.put_u8(length.to_le_bytes()[0]);
        message.put_slice(value);
    }
    let length = message.len() - PREFIX_BYTES;
    match u32::try_from(length) {
        Ok(prefix) if length <= MAX_MESSAGE_BYTES => message[1..PREFIX_BYTES].copy_from_slice(&prefix.to_be_bytes()),
        _ => return Err(Status::new(RESOURCE_EXHAUSTED, "a request that is too large")),
    }
    Ok(message.freeze())
}

fn late() -> Status {
    Status::new(DEADLINE_EXCEEDED, "context deadline exceeded")
}

fn milliseconds(timeout: Duration) -> u128 {
    timeout.as_nanos().div_ceil(1_000_000)
}

fn header(milliseconds: u128) -> HeaderValue {
    HeaderValue::try_from(format!("{milliseconds}m")).expect("digits and a letter")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_a_message_with_its_prefix() {
        assert_eq!(encode("i", b"list").unwrap(), &b"\0\0\0\0\x09\x0a\x04list\x12\x01i"[..]);
        let long = encode("", &[b'x'; 300]).unwrap();
        assert_eq!(long[..8], *b"\0\0\0\x01\x31\x0a\xac\x02");
        assert_eq!(long[308..], *b"\x12\0");
        assert!(encode("", &vec![0; MAX_MESSAGE_BYTES]).is_err());
    }

    #[test]
    fn timeouts_are_whole_milliseconds() {
        assert_eq!(header(milliseconds(MAX_TIMEOUT)), "120000m");
        assert_eq!(header(milliseconds(Duration::from_micros(1001))), "2m");
        assert_eq!(header(milliseconds(Duration::from_nanos(1))), "1m");
    }
}
