//! The front: it has the runner's port, the messages of callers and the processes of local functions.
//!
//! Everything that is decided is decided by the runner (Python), over a socket pair: what an image is, which pod serves a
//! call, what a caller is told. What it decided once for a local function is remembered, so that further calls of that
//! image cost the runner nothing but a line of its log. Messages never leave this process but for functions and pods.
//!
//! From the bottom up: `messages`, `batch` and `link` are the conversation with the runner; `incoming`, `skimming` and `reply` the
//! bytes of a call; `record` what the runner is told about one that was executed here; `functions` executes, by the engine
//! of the wrapper server; `trace` gives calls their place in a trace; `pods` forwards; `promises` has the pods that calls get without a question; `questions` keeps the
//! calls that the runner was asked about; `calls` is one call from its arrival to its answer; `pulse` knows whether the
//! runner is there; `credentials`, `listener` and `health_port` let callers in; `serve` wires it together.

pub mod batch;
pub mod calls;
pub mod credentials;
pub mod functions;
pub mod health_port;
pub mod incoming;
pub mod link;
pub mod listener;
pub mod messages;
pub mod pods;
pub mod promises;
pub mod pulse;
pub mod questions;
pub mod record;
pub mod reply;
pub mod serve;
pub mod skimming;
pub mod trace;
