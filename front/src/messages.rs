//! The messages of proto/front.proto, field by field.

use std::collections::HashMap;

use prost::{Message, Oneof};

/// What the runner says.
#[derive(Clone, PartialEq, Message)]
pub struct ToFront {
    #[prost(oneof = "Order", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13")]
    pub message: Option<Order>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Order {
    #[prost(message, tag = "1")]
    Configure(Configure),
    #[prost(message, tag = "2")]
    Run(Run),
    #[prost(message, tag = "3")]
    Forward(Forward),
    #[prost(message, tag = "4")]
    Refuse(Refuse),
    #[prost(message, tag = "5")]
    Forget(Forget),
    #[prost(message, tag = "6")]
    Health(Health),
    #[prost(message, tag = "7")]
    Drain(Drain),
    #[prost(message, tag = "8")]
    CancelCalls(CancelCalls),
    #[prost(message, tag = "9")]
    Disconnect(Disconnect),
    #[prost(message, tag = "10")]
    AskHealth(AskHealth),
    #[prost(message, tag = "11")]
    Alive(Alive),
    #[prost(message, tag = "12")]
    Promise(Promise),
    #[prost(message, tag = "13")]
    Withdraw(Withdraw),
}

/// What is said to the runner.
#[derive(Clone, PartialEq, Message)]
pub struct FromFront {
    #[prost(oneof = "News", tags = "1, 2, 3, 4, 5, 6, 7, 8, 9")]
    pub message: Option<News>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum News {
    #[prost(message, tag = "1")]
    Ready(Ready),
    #[prost(message, tag = "2")]
    Call(Call),
    #[prost(message, tag = "3")]
    Ended(Ended),
    #[prost(message, tag = "4")]
    Forwarded(Forwarded),
    #[prost(message, tag = "5")]
    Gone(Gone),
    #[prost(message, tag = "6")]
    Load(Load),
    #[prost(message, tag = "7")]
    Unfit(Unfit),
    #[prost(message, tag = "8")]
    HealthAnswer(HealthAnswer),
    #[prost(message, tag = "9")]
    Served(Served),
}

#[derive(Clone, PartialEq, Message)]
pub struct Configure {
    #[prost(string, tag = "1")]
    pub version: String,
    #[prost(uint64, tag = "2")]
    pub message_limit: u64,
    #[prost(double, tag = "3")]
    pub default_timeout_seconds: f64,
    #[prost(uint32, tag = "4")]
    pub max_parallel: u32,
    #[prost(uint32, tag = "5")]
    pub max_waiting: u32,
    #[prost(uint64, tag = "6")]
    pub max_function_memory: u64,
    #[prost(uint64, tag = "7")]
    pub max_request_memory: u64,
    #[prost(uint32, tag = "8")]
    pub cpus: u32,
    #[prost(double, tag = "9")]
    pub standby_max_age_seconds: f64,
    #[prost(double, tag = "10")]
    pub standby_idle_seconds: f64,
    #[prost(uint32, tag = "11")]
    pub verbosity: u32,
    #[prost(bool, tag = "12")]
    pub json_log: bool,
    #[prost(double, tag = "13")]
    pub longest_silence_seconds: f64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Ready {
    #[prost(string, tag = "1")]
    pub version: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Call {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub image: String,
    #[prost(uint64, tag = "3")]
    pub message_bytes: u64,
    #[prost(double, optional, tag = "4")]
    pub timeout_seconds: Option<f64>,
    #[prost(message, repeated, tag = "5")]
    pub headers: Vec<Header>,
    #[prost(bool, tag = "6")]
    pub is_promised: bool,
    #[prost(uint64, tag = "7")]
    pub connection: u64,
    #[prost(double, tag = "8")]
    pub said_at: f64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Header {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub value: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Run {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub function: String,
    #[prost(bytes = "vec", tag = "3")]
    pub path: Vec<u8>,
    #[prost(uint32, tag = "4")]
    pub standby: u32,
    #[prost(bool, tag = "5")]
    pub remember: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Ended {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(string, tag = "2")]
    pub image: String,
    #[prost(string, tag = "3")]
    pub function: String,
    #[prost(string, tag = "4")]
    pub code: String,
    #[prost(double, tag = "5")]
    pub seconds: f64,
    #[prost(uint64, tag = "6")]
    pub request_bytes: u64,
    #[prost(uint64, tag = "7")]
    pub response_bytes: u64,
    #[prost(double, optional, tag = "8")]
    pub queue_seconds: Option<f64>,
    #[prost(string, tag = "9")]
    pub process: String,
    #[prost(double, tag = "10")]
    pub execution_seconds: f64,
    #[prost(map = "string, string", tag = "11")]
    pub facts: HashMap<String, String>,
    #[prost(string, tag = "12")]
    pub error: String,
    #[prost(string, repeated, tag = "13")]
    pub failed_results: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Forward {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint64, tag = "2")]
    pub connection: u64,
    #[prost(string, tag = "3")]
    pub address: String,
    #[prost(string, tag = "4")]
    pub authority: String,
    #[prost(double, tag = "5")]
    pub timeout_seconds: f64,
    #[prost(message, repeated, tag = "6")]
    pub headers: Vec<Header>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Promise {
    #[prost(string, tag = "1")]
    pub image: String,
    #[prost(uint64, tag = "2")]
    pub connection: u64,
    #[prost(string, tag = "3")]
    pub address: String,
    #[prost(string, tag = "4")]
    pub authority: String,
    #[prost(message, repeated, tag = "5")]
    pub headers: Vec<Header>,
    #[prost(double, tag = "6")]
    pub valid_seconds: f64,
    #[prost(uint64, tag = "7")]
    pub calls: u64,
    #[prost(uint64, tag = "8")]
    pub calls_in_all: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Withdraw {
    #[prost(uint64, tag = "1")]
    pub connection: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Forwarded {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint64, tag = "5")]
    pub connection: u64,
    #[prost(oneof = "Outcome", tags = "2, 3, 4")]
    pub outcome: Option<Outcome>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Served {
    #[prost(string, tag = "1")]
    pub image: String,
    #[prost(uint64, tag = "2")]
    pub connection: u64,
    #[prost(uint64, tag = "3")]
    pub message_bytes: u64,
    #[prost(message, optional, tag = "4")]
    pub answered: Option<Answered>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Outcome {
    #[prost(message, tag = "2")]
    Answered(Answered),
    #[prost(message, tag = "3")]
    Status(Status),
    #[prost(message, tag = "4")]
    Trouble(Trouble),
}

#[derive(Clone, PartialEq, Message)]
pub struct AskHealth {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(uint64, tag = "2")]
    pub connection: u64,
    #[prost(string, tag = "3")]
    pub address: String,
    #[prost(string, tag = "4")]
    pub authority: String,
    #[prost(double, tag = "5")]
    pub timeout_seconds: f64,
    #[prost(message, repeated, tag = "6")]
    pub headers: Vec<Header>,
    #[prost(bool, tag = "7")]
    pub patiently: bool,
    #[prost(string, tag = "8")]
    pub service: String,
    #[prost(bool, tag = "9")]
    pub hurried: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct HealthAnswer {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(oneof = "Said", tags = "2, 3, 4")]
    pub outcome: Option<Said>,
}

#[derive(Clone, PartialEq, Oneof)]
pub enum Said {
    #[prost(bytes = "vec", tag = "2")]
    Response(Vec<u8>),
    #[prost(message, tag = "3")]
    Status(Status),
    #[prost(message, tag = "4")]
    Trouble(Trouble),
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Answered {
    #[prost(uint64, tag = "1")]
    pub response_bytes: u64,
    #[prost(uint64, tag = "2")]
    pub log_bytes: u64,
    #[prost(double, tag = "3")]
    pub seconds: f64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Status {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
    #[prost(bytes = "vec", tag = "3")]
    pub details: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Trouble {
    #[prost(string, tag = "1")]
    pub why: String,
    #[prost(bool, tag = "2")]
    pub reached: bool,
    #[prost(bool, tag = "3")]
    pub is_unnamed: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct Refuse {
    #[prost(uint64, tag = "1")]
    pub id: u64,
    #[prost(int32, tag = "2")]
    pub code: i32,
    #[prost(string, tag = "3")]
    pub message: String,
    #[prost(bytes = "vec", tag = "4")]
    pub details: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Gone {
    #[prost(uint64, tag = "1")]
    pub id: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Forget {
    #[prost(map = "string, uint32", tag = "1")]
    pub standby: HashMap<String, u32>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Health {
    #[prost(bool, tag = "1")]
    pub serving: bool,
    #[prost(bool, tag = "2")]
    pub end_standby: bool,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Drain {}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct CancelCalls {}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Alive {}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct Disconnect {
    #[prost(uint64, tag = "1")]
    pub connection: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Load {
    #[prost(uint64, tag = "1")]
    pub running: u64,
    #[prost(uint64, tag = "2")]
    pub waiting: u64,
    #[prost(uint64, tag = "3")]
    pub memory: u64,
    #[prost(message, repeated, tag = "4")]
    pub standby: Vec<StandbyLoad>,
    #[prost(uint64, tag = "5")]
    pub calls: u64,
    #[prost(uint64, tag = "6")]
    pub under_way: u64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Unfit {
    #[prost(string, tag = "1")]
    pub function: String,
    #[prost(string, tag = "2")]
    pub why: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct StandbyLoad {
    #[prost(string, tag = "1")]
    pub function: String,
    #[prost(uint64, tag = "2")]
    pub processes: u64,
    #[prost(uint64, tag = "3")]
    pub memory: u64,
}
