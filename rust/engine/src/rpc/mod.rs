//! gRPC as both servers speak it: health, reflection and routing on one port, and errors as statuses.

pub mod bearer;
pub mod evaluate;
pub mod health;
pub mod messages;
pub mod router;
pub mod status;
mod time_limit;
