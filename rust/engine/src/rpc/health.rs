//! grpc.health.v1: Check, Watch and List. (The crate for it has no List yet.)

use std::pin::Pin;
use std::sync::{Mutex, PoisonError};

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

pub const SERVICE: &str = "grpc.health.v1.Health";
/// Health is open to everybody; a request has the name of a service and nothing else.
const LARGEST_REQUEST: usize = 1024;

/// One status for a fixed set of services; the empty name stands for the whole server.
pub struct Health {
    services: &'static [&'static str],
    status: watch::Receiver<ServingStatus>,
    change: Mutex<Option<watch::Sender<ServingStatus>>>,
}

type StatusStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;
type Answer<T> = std::future::Ready<Result<Response<T>, Status>>;

impl Health {
    pub fn new(status: ServingStatus) -> Self {
        Self::of(&["", evaluate::SERVICE], status)
    }

    /// Of a server that cannot evaluate anything yet.
    pub fn of_no_function(status: ServingStatus) -> Self {
        Self::of(&[""], status)
    }

    fn of(services: &'static [&'static str], status: ServingStatus) -> Self {
        let (change, status) = watch::channel(status);
        Self { services, status, change: Mutex::new(Some(change)) }
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
        match method {
            "Check" => grpc(ProstCodec::default()).unary(Check(self), request).await,
            "Watch" => grpc(ProstCodec::default()).server_streaming(Watch(self), request).await,
            "List" => grpc(ProstCodec::default()).unary(List(self), request).await,
            _ => Status::unimplemented(format!("unknown method {method} of {SERVICE}")).into_http(),
        }
    }

    fn current(&self) -> HealthCheckResponse {
        HealthCheckResponse { status: *self.status.borrow() as i32 }
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
        std::future::ready(if self.0.services.contains(&service.as_str()) {
            Ok(Response::new(self.0.current()))
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
        let is_known = self.0.services.contains(&request.get_ref().service.as_str());
        let mut sent = None;
        let statuses = WatchStream::new(self.0.status.clone())
            .map(move |status| if is_known { status } else { ServingStatus::ServiceUnknown })
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
        let statuses = self.0.services.iter().map(|service| ((*service).to_owned(), self.0.current())).collect();
        std::future::ready(Ok(Response::new(HealthListResponse { statuses })))
    }
}
