//! grpc.health.v1: Check, Watch and List. (The crate for it has no List yet.)

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};
use tonic::body::Body;
use tonic::codec::Codec;
use tonic::server::{Grpc, ServerStreamingService, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::evaluate;
use super::messages::{HealthCheckRequest, HealthCheckResponse, HealthListRequest, HealthListResponse, ServingStatus};
use super::time_limit::time_limited;

pub const SERVICE: &str = "grpc.health.v1.Health";
/// Health is open to everybody; a request has the name of a service and nothing else.
const LARGEST_REQUEST: usize = 1024;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

const SERVICES: [&str; 2] = ["", evaluate::SERVICE];

/// The status of the server, whose name is the empty one, and of the service that evaluates functions.
pub struct Health {
    has_function: bool,
    status: watch::Receiver<ServingStatus>,
    change: Mutex<Option<watch::Sender<ServingStatus>>>,
}

type StatusStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;
type Answer<T> = std::future::Ready<Result<Response<T>, Status>>;

impl Health {
    pub fn new(status: ServingStatus) -> Self {
        let (change, status) = watch::channel(status);
        Self { has_function: true, status, change: Mutex::new(Some(change)) }
    }

    /// Of a server that has no function yet: the service that evaluates functions is `NOT_SERVING`.
    pub fn of_no_function(status: ServingStatus) -> Self {
        Self { has_function: false, ..Self::new(status) }
    }

    /// From now on, until it is something else or the end; every Watch is told.
    pub fn set(&self, status: ServingStatus) {
        if let Some(change) = &*self.change.lock().unwrap_or_else(PoisonError::into_inner) {
            change.send_replace(status);
        }
    }

    /// Not serving from now on; every Watch is told, and ends.
    pub fn shut_down(&self) {
        if let Some(change) = self.change.lock().unwrap_or_else(PoisonError::into_inner).take() {
            change.send_replace(ServingStatus::NotServing);
        }
    }

    pub async fn serve(&self, method: &str, request: http::Request<Body>) -> http::Response<Body> {
        let request = time_limited(request, REQUEST_TIMEOUT);
        match method {
            "Check" => grpc(ProstCodec::default()).unary(Check(self), request).await,
            "Watch" => grpc(ProstCodec::default()).server_streaming(Watch(self), request).await,
            "List" => grpc(ProstCodec::default()).unary(List(self), request).await,
            _ => Status::unimplemented(format!("unknown method {method} of {SERVICE}")).into_http(),
        }
    }

    fn current(&self, service: &str) -> HealthCheckResponse {
        let status = *self.status.borrow();
        HealthCheckResponse { status: status_of(service, status, self.has_function) as i32 }
    }
}

fn status_of(service: &str, of_server: ServingStatus, has_function: bool) -> ServingStatus {
    match service {
        evaluate::SERVICE if !has_function => ServingStatus::NotServing,
        known if SERVICES.contains(&known) => of_server,
        _ => ServingStatus::ServiceUnknown,
    }
}

fn grpc<C: Codec>(codec: C) -> Grpc<C> {
    Grpc::new(codec).max_decoding_message_size(LARGEST_REQUEST)
}

struct Check<'a>(&'a Health);

impl UnaryService<HealthCheckRequest> for Check<'_> {
    type Response = HealthCheckResponse;
    type Future = Answer<HealthCheckResponse>;

    fn call(&mut self, request: Request<HealthCheckRequest>) -> Self::Future {
        let service = &request.get_ref().service;
        std::future::ready(if SERVICES.contains(&service.as_str()) {
            Ok(Response::new(self.0.current(service)))
        } else {
            Err(Status::not_found(format!("unknown service \"{}\"", evaluate::shown(service))))
        })
    }
}

struct Watch<'a>(&'a Health);

impl ServerStreamingService<HealthCheckRequest> for Watch<'_> {
    type Response = HealthCheckResponse;
    type ResponseStream = StatusStream;
    type Future = Answer<StatusStream>;

    fn call(&mut self, request: Request<HealthCheckRequest>) -> Self::Future {
        let (service, has_function) = (request.into_inner().service, self.0.has_function);
        let mut sent = None;
        let statuses = WatchStream::new(self.0.status.clone())
            .map(move |status| status_of(&service, status, has_function))
            .filter(move |status| sent.replace(*status) != Some(*status))
            .map(|status| Ok(HealthCheckResponse { status: status as i32 }));
        std::future::ready(Ok(Response::new(Box::pin(statuses))))
    }
}

struct List<'a>(&'a Health);

impl UnaryService<HealthListRequest> for List<'_> {
    type Response = HealthListResponse;
    type Future = Answer<HealthListResponse>;

    fn call(&mut self, _request: Request<HealthListRequest>) -> Self::Future {
        let statuses = SERVICES.iter().map(|service| ((*service).to_owned(), self.0.current(service))).collect();
        std::future::ready(Ok(Response::new(HealthListResponse { statuses })))
    }
}
