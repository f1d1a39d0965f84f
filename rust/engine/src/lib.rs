//! The engine: runs a function as a process and judges what it wrote, the same way in both runtimes.
//!
//! The wrapper server executes with it in a function's pod, krm-front in the exec runtime; `tests/vectors/` holds both to
//! one behavior. From the bottom up: `envelope` and `verdict` judge what a function wrote, and know nothing of processes;
//! `process` runs one process and leaves nothing behind; `standby` says which are started before their call, and `reserve`
//! does so; `forecast` says who would come too late and `memory_forecast` what calls take; `executor` decides when they
//! run, in one of the `places`; `rpc` is what both servers of `EvaluateFunction` have in common.

pub mod call;
pub mod entrypoint;
pub mod envelope;
pub mod errors;
pub mod executor;
pub mod forecast;
mod load;
pub mod log;
pub mod log_excerpt;
pub mod memory;
pub mod memory_forecast;
pub mod metrics;
pub mod panics;
pub mod places;
pub mod process;
pub mod reserve;
pub mod reserves;
pub mod rpc;
pub mod standby;
pub mod verdict;
mod workers;
