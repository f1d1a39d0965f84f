//! The messages that go over the wire, field by field. tests hold them against proto/ by reflection.

use bytes::Bytes;
use prost::Message;

/// `evaluator.EvaluateFunctionRequest`
#[derive(Clone, PartialEq, Message)]
pub struct EvaluateFunctionRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub resource_list: Bytes,
    #[prost(string, tag = "2")]
    pub image: String,
}

/// `evaluator.EvaluateFunctionResponse`
#[derive(Clone, PartialEq, Message)]
pub struct EvaluateFunctionResponse {
    #[prost(bytes = "bytes", tag = "1")]
    pub resource_list: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub log: Bytes,
}

/// `grpc.health.v1.HealthCheckRequest`
#[derive(Clone, PartialEq, Message)]
pub struct HealthCheckRequest {
    #[prost(string, tag = "1")]
    pub service: String,
}

/// `grpc.health.v1.HealthCheckResponse`
#[derive(Clone, Copy, PartialEq, Message)]
pub struct HealthCheckResponse {
    #[prost(enumeration = "ServingStatus", tag = "1")]
    pub status: i32,
}

/// `grpc.health.v1.HealthCheckResponse.ServingStatus`
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, prost::Enumeration)]
pub enum ServingStatus {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

impl ServingStatus {
    /// As the proto spells it.
    pub fn name(self) -> &'static str {
        match self {
            ServingStatus::Unknown => "UNKNOWN",
            ServingStatus::Serving => "SERVING",
            ServingStatus::NotServing => "NOT_SERVING",
            ServingStatus::ServiceUnknown => "SERVICE_UNKNOWN",
        }
    }
}

/// `grpc.health.v1.HealthListRequest`
#[derive(Clone, Copy, PartialEq, Message)]
pub struct HealthListRequest {}

/// `grpc.health.v1.HealthListResponse`
#[derive(Clone, PartialEq, Message)]
pub struct HealthListResponse {
    #[prost(btree_map = "string, message", tag = "1")]
    pub statuses: std::collections::BTreeMap<String, HealthCheckResponse>,
}

/// `google.rpc.Status`
#[derive(Clone, PartialEq, Message)]
pub struct RpcStatus {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
    #[prost(message, repeated, tag = "3")]
    pub details: Vec<Any>,
}

/// `google.protobuf.Any`
#[derive(Clone, PartialEq, Message)]
pub struct Any {
    #[prost(string, tag = "1")]
    pub type_url: String,
    #[prost(bytes = "vec", tag = "2")]
    pub value: Vec<u8>,
}

/// `google.rpc.ErrorInfo`
#[derive(Clone, PartialEq, Message)]
pub struct ErrorInfo {
    #[prost(string, tag = "1")]
    pub reason: String,
    #[prost(string, tag = "2")]
    pub domain: String,
    #[prost(btree_map = "string, string", tag = "3")]
    pub metadata: std::collections::BTreeMap<String, String>,
}

/// `google.rpc.RetryInfo`
#[derive(Clone, PartialEq, Message)]
pub struct RetryInfo {
    #[prost(message, optional, tag = "1")]
    pub retry_delay: Option<ProtoDuration>,
}

/// `google.protobuf.Duration`
#[derive(Clone, Copy, PartialEq, Message)]
pub struct ProtoDuration {
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}
