//! The server of a pod that has no function yet: it is there, and that is all it says.
//!
//! The service that evaluates functions is `NOT_SERVING`: by that the runner tells this server from another wrapper server
//! without a function, and from the next container of the pod. It holds nothing, and ends immediately on a signal.

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
