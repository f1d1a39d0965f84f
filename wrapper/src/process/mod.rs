//! One process per call: started, fed, read, ended, and nothing of it left behind.

pub mod execution;
pub mod family;
mod pipes;
mod spawn;
mod stop;

pub use stop::Stop;
