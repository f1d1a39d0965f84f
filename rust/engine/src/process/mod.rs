//! One process per call: started, fed, read, ended, and nothing of it left behind.

mod bell;
pub mod child;
mod descendants;
pub mod execution;
pub mod family;
mod feed;
mod pipes;
mod spawn;
mod start;
mod stop;

pub use bell::Bell;
pub use start::Start;
pub use stop::Stop;
