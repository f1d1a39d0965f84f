//! `krm-front LISTENING LINK`: two descriptors that the runner hands over.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    krm_front::serve::main(&arguments)
}
