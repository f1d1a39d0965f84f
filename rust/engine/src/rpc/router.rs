//! Which service a request is for.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, Request, Response};
use tonic::Status;
use tonic::body::Body;
use tower_service::Service;

use super::evaluate;
use super::health::{self, Health};
use super::time_limit::time_limited;

/// The descriptors of what is served, for reflection; `make proto` writes them.
const DESCRIPTORS: &[u8] = include_bytes!("descriptors.bin");
/// Reflection is open to everybody; a request has the name of a symbol or a file.
const LARGEST_REFLECTION_REQUEST: usize = 16 * 1024;
/// Of all questions of a stream.
const REFLECTION_TIMEOUT: Duration = Duration::from_secs(60);

/// Who answers `EvaluateFunction`.
pub trait Evaluator: Send + Sync + 'static {
    fn serve(self: Arc<Self>, request: Request<Body>) -> impl Future<Output = Response<Body>> + Send;

    /// Whether whoever asks for health shows a token, and not the right one.
    fn is_shown_a_wrong_token(&self, _headers: &HeaderMap) -> bool {
        false
    }

    /// Somebody has been told about health.
    fn asked(&self) {}
}

/// Serves everything on the port.
pub struct Router<E, V1, V1Alpha> {
    evaluation: Arc<E>,
    health: Arc<Health>,
    reflection: V1,
    old_reflection: V1Alpha,
}

type Answer = Pin<Box<dyn Future<Output = Result<Response<Body>, Infallible>> + Send>>;

/// What a service of tonic's is.
pub trait TonicService:
    Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send + 'static>
{
}

impl<S> TonicService for S where
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible, Future: Send + 'static>
{
}

impl<E, V1: Clone, V1Alpha: Clone> Clone for Router<E, V1, V1Alpha> {
    fn clone(&self) -> Self {
        Self {
            evaluation: Arc::clone(&self.evaluation),
            health: Arc::clone(&self.health),
            reflection: self.reflection.clone(),
            old_reflection: self.old_reflection.clone(),
        }
    }
}

/// The evaluator and health as given, and reflection about them.
pub fn router<E: Evaluator>(
    evaluation: Arc<E>,
    health: Arc<Health>,
) -> Router<E, impl TonicService + Clone + Send + 'static, impl TonicService + Clone + Send + 'static> {
    let builder = || tonic_reflection::server::Builder::configure().register_encoded_file_descriptor_set(DESCRIPTORS);
    Router {
        evaluation,
        health,
        reflection: builder()
            .build_v1()
            .expect("the descriptors are whole")
            .max_decoding_message_size(LARGEST_REFLECTION_REQUEST),
        old_reflection: builder()
            .build_v1alpha()
            .expect("the descriptors are whole")
            .max_decoding_message_size(LARGEST_REFLECTION_REQUEST),
    }
}

impl<E: Evaluator, V1: TonicService, V1Alpha: TonicService> Service<Request<Body>> for Router<E, V1, V1Alpha> {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Answer;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Answer {
        let path = request.uri().path();
        if path == evaluate::METHOD {
            let evaluation = Arc::clone(&self.evaluation);
            return Box::pin(async move { Ok(evaluation.serve(request).await) });
        }
        let (service, method) = path.trim_start_matches('/').split_once('/').unwrap_or_default();
        match service {
            // Open to everybody; but whoever shows a token wants to know whether it is the right one.
            health::SERVICE if self.evaluation.is_shown_a_wrong_token(request.headers()) => {
                let status = Status::unauthenticated("this pod has another token");
                Box::pin(async move { Ok(status.into_http()) })
            }
            health::SERVICE => {
                let (health, method) = (Arc::clone(&self.health), method.to_owned());
                let evaluation = Arc::clone(&self.evaluation);
                Box::pin(async move {
                    let answer = health.serve(&method, request).await;
                    evaluation.asked();
                    Ok(answer)
                })
            }
            "grpc.reflection.v1.ServerReflection" => {
                Box::pin(self.reflection.call(time_limited(request, REFLECTION_TIMEOUT)))
            }
            "grpc.reflection.v1alpha.ServerReflection" => {
                Box::pin(self.old_reflection.call(time_limited(request, REFLECTION_TIMEOUT)))
            }
            _ => {
                let status = Status::unimplemented(format!("unknown method {}", evaluate::shown(path)));
                Box::pin(async move { Ok(status.into_http()) })
            }
        }
    }
}
