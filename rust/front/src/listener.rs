//! Accepts connections: in plain text, or by TLS with the credentials in force.
//!
//! A client that does not get as far as HTTP/2 is disconnected: it must not hold a descriptor, or the turn of another.

use std::collections::VecDeque;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use engine::log::{Level, Line};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Sleep, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::{Connected, TcpConnectInfo, TcpIncoming};

use crate::credentials::{Credentials, report_failed_handshake};

const KEEPALIVE: Duration = Duration::from_secs(60);
/// After a connection could not be accepted, which is for lack of descriptors, mostly.
const PAUSE: Duration = Duration::from_millis(100);
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// With one more in progress, the oldest is aborted.
const MAX_HANDSHAKES: usize = 256;
/// Connections that are accepted and not yet served.
const BACKLOG: usize = 16;
/// What a client of HTTP/2 sends first: the preface and the header of its settings.
const PREFACE_BYTES: usize = 24 + 9;

/// A connection that is ready for HTTP/2, for a limited time.
pub struct Connection {
    stream: Stream,
    /// When the client must have begun; nothing once it has.
    begin: Option<Pin<Box<Sleep>>>,
    received: usize,
}

enum Stream {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Accept connections until the handle is aborted, which closes the listening socket.
pub fn accept(
    listener: std::net::TcpListener,
    credentials: Arc<Credentials>,
) -> io::Result<(ReceiverStream<io::Result<Connection>>, AbortHandle)> {
    listener.set_nonblocking(true)?;
    let incoming = TcpIncoming::from(TcpListener::from_std(listener)?);
    let incoming = incoming.with_nodelay(Some(true)).with_keepalive(Some(KEEPALIVE));
    let (accepted, connections) = mpsc::channel(BACKLOG);
    let task = tokio::spawn(accept_all(incoming, credentials, accepted));
    Ok((ReceiverStream::new(connections), task.abort_handle()))
}

async fn accept_all(
    mut incoming: TcpIncoming,
    credentials: Arc<Credentials>,
    accepted: mpsc::Sender<io::Result<Connection>>,
) {
    let mut handshakes = JoinSet::new();
    let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
    while let Some(connection) = incoming.next().await {
        let stream = match connection {
            Ok(stream) => stream,
            Err(error) => {
                Line::new(Level::Warning, "a connection cannot be accepted").with("error", error).write();
                sleep(PAUSE).await;
                continue;
            }
        };
        if let Some(config) = credentials.tls() {
            while handshakes.try_join_next().is_some() {}
            oldest_first.retain(|handshake| !handshake.is_finished());
            if oldest_first.len() >= MAX_HANDSHAKES
                && let Some(oldest) = oldest_first.pop_front()
            {
                oldest.abort();
            }
            let handshake = shake_hands(TlsAcceptor::from(config), stream, accepted.clone());
            oldest_first.push_back(handshakes.spawn(handshake));
        } else {
            let _ = accepted.send(Ok(Connection::new(Stream::Plain(stream)))).await;
        }
    }
}

async fn shake_hands(acceptor: TlsAcceptor, stream: TcpStream, accepted: mpsc::Sender<io::Result<Connection>>) {
    let peer = stream.peer_addr().ok();
    match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => {
            let _ = accepted.send(Ok(Connection::new(Stream::Tls(Box::new(stream))))).await;
        }
        Ok(Err(error)) => report_failed_handshake(peer, error),
        Err(_) => report_failed_handshake(peer, format!("not finished within {}s", HANDSHAKE_TIMEOUT.as_secs())),
    }
}

impl Connection {
    fn new(stream: Stream) -> Self {
        Self { stream, begin: Some(Box::pin(sleep(HANDSHAKE_TIMEOUT))), received: 0 }
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        match &self.stream {
            Stream::Plain(stream) => stream.connect_info(),
            Stream::Tls(stream) => stream.get_ref().0.connect_info(),
        }
    }
}

/// Call a method of the stream, whichever it is.
macro_rules! delegate {
    ($connection:expr, $method:ident, $($argument:expr),*) => {
        match &mut $connection.stream {
            Stream::Plain(stream) => Pin::new(stream).$method($($argument),*),
            Stream::Tls(stream) => Pin::new(stream.as_mut()).$method($($argument),*),
        }
    };
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = delegate!(self, poll_read, context, buffer);
        if let Some(begin) = &mut self.begin {
            if read.is_pending() && begin.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            self.received += buffer.filled().len() - before;
            if self.received >= PREFACE_BYTES {
                self.begin = None;
            }
        }
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        delegate!(self, poll_write, context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        delegate!(self, poll_write_vectored, context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        match &self.stream {
            Stream::Plain(stream) => stream.is_write_vectored(),
            Stream::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, poll_flush, context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, poll_shutdown, context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_begin_is_disconnected_and_one_that_has_begun_is_not() {
        for (sent, is_kept) in [(0, false), (PREFACE_BYTES - 1, false), (PREFACE_BYTES, true)] {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
            let (mut connections, _) = accept(listener, Arc::default()).unwrap();
            let mut connection = connections.next().await.unwrap().unwrap();
            client.write_all(&vec![b'x'; sent]).await.unwrap();
            connection.read_exact(&mut vec![0; sent]).await.unwrap();
            let next = timeout(2 * HANDSHAKE_TIMEOUT, connection.read_u8()).await;
            assert_eq!(next.is_err(), is_kept, "{sent} bytes");
        }
    }
}
