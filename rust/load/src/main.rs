//! Load for the runner, as cheap as a client can be: it shares the machine with what it measures.
//!
//! One lasting connection to each server, as Porch has it, and the same request again and again until the time is over:
//! by a number of callers, each of which waits for its answer, and pauses or not (-callers); or at a rate that no
//! answer slows down, as many independent callers make it (-rate). Callers, or calls, take turns with the servers. The
//! request is encoded once and answers are never decoded. Prints one JSON object.

mod alarm;
mod flags;
mod load;
mod status;
mod tally;
mod target;

use std::error::Error;
use std::process::ExitCode;

use bytes::Bytes;
use flags::{Flags, Parsed};
use tally::Report;
use target::Target;

fn main() -> ExitCode {
    let flags = match flags::parse(std::env::args().skip(1)) {
        Ok(Parsed::Flags(flags)) => flags,
        Ok(Parsed::Help) => {
            eprint!("{}", flags::USAGE);
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            eprint!("load: {error}\n{}", flags::USAGE);
            return ExitCode::from(2);
        }
    };
    match run(&flags) {
        Ok(report) => {
            println!("{report}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("load: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(flags: &Flags) -> Result<String, Box<dyn Error>> {
    flags.check()?;
    let resource_list = std::fs::read(&flags.input).map_err(|error| format!("{}: {error}", flags.input))?;
    let request = target::encode(&flags.image, &resource_list)?;
    // A single thread: nothing here is worth the price of waking another one.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let report = runtime.block_on(measure(flags, &request))?;
    Ok(report.json())
}

async fn measure(flags: &Flags, request: &Bytes) -> Result<Report, Box<dyn Error>> {
    let target = Target::connect(flags, request).await?;
    // The first call pays for the connection, and for whatever is read for the first time.
    target.call_each().await?;
    let target = target.with_timeout(flags.timeout);
    Ok(if flags.rate > 0.0 {
        load::open(&target, flags.rate, flags.seconds).await?
    } else {
        load::closed(&target, flags.callers, flags.pause, flags.seconds).await?
    })
}
