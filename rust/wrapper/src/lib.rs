//! The wrapper server: one static program that serves any function image over gRPC.
//!
//! It starts as the command of a function's container, serves `evaluator.FunctionEvaluator`, and runs the image's own
//! entrypoint once per call: the resource list goes to its stdin, what it writes to stdout is the answer, stderr is
//! the log. Processes and verdicts are the engine's (`rust/engine`).
//!
//! `serve` wires it together; `evaluate` is one call; `command` says what the function is, and `spare` serves while there
//! is none; `flags`, `token` and `metrics_server` are its surface. `applets` are the other programs that this one is when
//! it is called by their names.

mod announced_size;
pub mod applets;
pub mod command;
pub mod container_memory;
pub mod evaluate;
pub mod flags;
pub mod metrics_server;
pub mod serve;
pub mod spare;
pub mod token;
