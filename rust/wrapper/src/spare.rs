//! The server of a pod that has no function yet: it is there, and that is all it says.
//!
//! Of the service that evaluates functions its health knows nothing, so that whoever asks for that one is answered by the
//! next container of the pod, never by this one. It holds nothing, and ends at once when it is told to.

use std::io;
use std::sync::Arc;

use http::{Request, Response};
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tonic::Status;
use tonic::body::Body;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use engine::log::{Level, Line};
use engine::rpc::health::Health;
use engine::rpc::messages::ServingStatus;
use engine::rpc::router::{Evaluator, router};

/// Until a signal asks for the end.
pub async fn serve(listener: TcpListener) -> io::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Line::new(Level::Info, "waiting for a function")
        .with("address", listener.local_addr()?)
        .with("version", env!("CARGO_PKG_VERSION"))
        .write();
    let health = Arc::new(Health::of_no_function(ServingStatus::Serving));
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let serving = Server::builder().serve_with_incoming(router(Arc::new(NoFunction), health), incoming);
    tokio::select! {
        ended = serving => ended.map_err(io::Error::other)?,
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
    Line::new(Level::Info, "stopped").write();
    Ok(())
}

/// Who calls it has the wrong pod, and may find the right one by now.
struct NoFunction;

impl Evaluator for NoFunction {
    async fn serve(self: Arc<Self>, _request: Request<Body>) -> Response<Body> {
        Status::unavailable("this pod has no function yet").into_http()
    }
}
