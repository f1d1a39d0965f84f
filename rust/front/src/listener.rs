//! Accepts the callers' connections: in plain text, or by TLS with the credentials in force.

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
use tokio::time::{sleep, timeout};
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
const MAX_HANDSHAKES: usize = 1024;
/// Connections that are accepted and not yet served.
const BACKLOG: usize = 16;

/// A connection that is ready for HTTP/2.
pub enum Connection {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

/// Wrap a listening socket as every port of this program is set up.
pub fn incoming(listener: std::net::TcpListener) -> io::Result<TcpIncoming> {
    listener.set_nonblocking(true)?;
    let listener = TcpListener::from_std(listener)?;
    Ok(TcpIncoming::from(listener).with_nodelay(Some(true)).with_keepalive(Some(KEEPALIVE)))
}

/// Accept connections until the handle is aborted, which closes the listening socket.
pub fn accept(
    incoming: TcpIncoming,
    credentials: Arc<Credentials>,
) -> (ReceiverStream<io::Result<Connection>>, AbortHandle) {
    let (accepted, connections) = mpsc::channel(BACKLOG);
    let task = tokio::spawn(accept_all(incoming, credentials, accepted));
    (ReceiverStream::new(connections), task.abort_handle())
}

async fn accept_all(
    mut incoming: TcpIncoming,
    credentials: Arc<Credentials>,
    accepted: mpsc::Sender<io::Result<Connection>>,
) {
    let mut handshakes = JoinSet::new();
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
            if handshakes.len() >= MAX_HANDSHAKES {
                handshakes.join_next().await;
            }
            handshakes.spawn(shake_hands(TlsAcceptor::from(config), stream, accepted.clone()));
        } else {
            let _ = accepted.send(Ok(Connection::Plain(stream))).await;
        }
    }
}

async fn shake_hands(acceptor: TlsAcceptor, stream: TcpStream, accepted: mpsc::Sender<io::Result<Connection>>) {
    let peer = stream.peer_addr().ok();
    match timeout(HANDSHAKE_TIMEOUT, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => {
            let _ = accepted.send(Ok(Connection::Tls(Box::new(stream)))).await;
        }
        Ok(Err(error)) => report_failed_handshake(peer, error),
        Err(_) => report_failed_handshake(peer, "it took too long"),
    }
}

impl Connected for Connection {
    type ConnectInfo = TcpConnectInfo;

    fn connect_info(&self) -> TcpConnectInfo {
        match self {
            Self::Plain(stream) => stream.connect_info(),
            Self::Tls(stream) => stream.get_ref().0.connect_info(),
        }
    }
}

/// Call a method of the stream, whichever it is.
macro_rules! delegate {
    ($connection:expr, $method:ident, $($argument:expr),*) => {
        match $connection.get_mut() {
            Connection::Plain(stream) => Pin::new(stream).$method($($argument),*),
            Connection::Tls(stream) => Pin::new(stream.as_mut()).$method($($argument),*),
        }
    };
}

impl AsyncRead for Connection {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        delegate!(self, poll_read, context, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        delegate!(self, poll_write, context, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        pieces: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        delegate!(self, poll_write_vectored, context, pieces)
    }

    fn is_write_vectored(&self) -> bool {
        match self {
            Self::Plain(stream) => stream.is_write_vectored(),
            Self::Tls(stream) => stream.is_write_vectored(),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, poll_flush, context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        delegate!(self, poll_shutdown, context)
    }
}
