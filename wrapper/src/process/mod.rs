//! One process per call: started, fed, read, ended, and nothing of it left behind.

pub mod execution;
pub mod family;
mod pipes;
mod spawn;
mod start;
mod stop;

pub use start::Start;
pub use stop::Stop;
