//! Health in plain text on a port of its own, and nothing else: probes of the kubelet speak no TLS.

use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::TcpListener;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use engine::rpc::health::{self, Health};
use http::{Request, Response};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::transport::Server;

use crate::listener;

/// Probes have one each.
const MAX_STREAMS: u32 = 64;
const WINDOW: u32 = 64 * 1024;
const KEEPALIVE: Duration = Duration::from_secs(60);

/// Serve until the process ends.
pub fn serve(listener: TcpListener, health: Arc<Health>) -> io::Result<()> {
    let (connections, _) = listener::accept(listener, Arc::default())?;
    let serving = Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_concurrent_streams(MAX_STREAMS)
        .http2_keepalive_interval(Some(KEEPALIVE))
        .serve_with_incoming(HealthAlone(health), connections);
    tokio::spawn(serving);
    Ok(())
}

#[derive(Clone)]
struct HealthAlone(Arc<Health>);

impl Service<Request<Body>> for HealthAlone {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let health = Arc::clone(&self.0);
        Box::pin(async move {
            let path = request.uri().path().trim_start_matches('/').to_owned();
            match path.split_once('/') {
                Some((health::SERVICE, method)) => Ok(health.serve(method, request).await),
                _ => Ok(Status::unimplemented("this port serves health alone").into_http()),
            }
        })
    }
}
