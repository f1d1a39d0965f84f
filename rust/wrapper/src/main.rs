//! Which program this is: the name it is called by decides.

use std::path::Path;
use std::process::ExitCode;

use wrapper_server::{applets, serve};

fn main() -> ExitCode {
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_default();
    let arguments: Vec<_> = arguments.collect();
    match Path::new(&name).file_name().and_then(|name| name.to_str()) {
        Some("grpc-health-probe" | "grpc_health_probe") => applets::health_probe::main(&arguments),
        Some("cp") => applets::copy::main(&arguments),
        _ => serve::main(&arguments),
    }
}
