//! gRPC: the evaluator, health, and reflection on one port.

mod announced_size;
pub mod evaluate;
pub mod health;
pub mod messages;
pub mod router;
pub mod status;
