//! The wrapper server: one static program that serves any function image over gRPC.
//!
//! It starts as the command of a function's container, serves `evaluator.FunctionEvaluator`, and runs the image's own
//! entrypoint once per call: the resource list goes to its stdin, what it writes to stdout is the answer, stderr is
//! the log. It answers like the exec runtime of the runner; `tests/vectors/` of the repository holds both to it.
//!
//! From the bottom up: `envelope` and `verdict` judge what a function wrote, and know nothing of processes; `process`
//! runs one process and leaves nothing behind; `standby` says which are started before their call, and `reserve` does so;
//! `forecast` says who would come too late and `memory_forecast` what calls take, `executor` decides when they run, in one
//! of the `places`; `rpc`
//! speaks gRPC; `announcement` tells the runner that it does; `command` says what the function is, and `spare` is there
//! while there is none; `serve` wires it together.
//! `applets` are the other programs that this one is when it is called by their names.

pub mod applets;
pub mod call;
pub mod command;
pub mod container_memory;
pub mod entrypoint;
pub mod envelope;
pub mod errors;
pub mod executor;
pub mod flags;
pub mod forecast;
mod load;
pub mod log;
pub mod log_excerpt;
pub mod memory;
pub mod memory_forecast;
pub mod metrics;
pub mod metrics_server;
pub mod places;
pub mod process;
pub mod reserve;
pub mod reserves;
pub mod rpc;
pub mod serve;
pub mod spare;
pub mod standby;
pub mod token;
pub mod verdict;
mod workers;
