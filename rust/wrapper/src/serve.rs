//! The server: what its flags and environment say, wired together, from the start to the last answered call.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZero;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::runtime;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;

use crate::command;
use crate::container_memory;
use crate::evaluate::Evaluation;
use crate::flags::{Flag, Flags, Refusal, help};
use crate::metrics_server;
use crate::spare;
use crate::token::Token;
use engine::entrypoint::Entrypoint;
use engine::executor::{Executor, Limits};
use engine::log::{self, Level, Line};
use engine::memory;
use engine::metrics::Metrics;
use engine::panics;
use engine::places::Places;
use engine::process::child::Function;
use engine::process::family::Family;
use engine::reserve::Unfit;
use engine::rpc::evaluate::max_resource_list;
use engine::rpc::health::Health;
use engine::rpc::messages::ServingStatus;
use engine::rpc::router::router;
use engine::standby::Terms;

const FLAGS: &[Flag] = &[
    Flag { name: "port", default: "9446", meaning: "port of the gRPC server (0: any free one)" },
    Flag { name: "address", default: "", meaning: "IP address to listen on (default: all of them)" },
    Flag { name: "max-request-body-size", default: "6291456", meaning: "largest message in bytes, both ways" },
    Flag { name: "verbosity", default: "2", meaning: "0 errors, 1 warnings, 2 a line per call, 3-5 more" },
    Flag {
        name: "max-parallel",
        default: "0",
        meaning: "functions at once (0: the CPUs of this container, at least 2)",
    },
    Flag { name: "max-queue-length", default: "1000", meaning: "calls that may wait; one more is refused" },
    Flag {
        name: "max-function-memory",
        default: "0",
        meaning: "bytes that functions at once are expected to take (0: three quarters of this container's memory)",
    },
    Flag {
        name: "standby",
        default: "1",
        meaning: "processes that are started before their call comes, 0 to 8 (0: none)",
    },
    Flag { name: "standby-max-age", default: "5m", meaning: "when such a process is replaced by a new one" },
    Flag { name: "standby-idle", default: "10m", meaning: "when such processes go, if no call comes" },
    Flag { name: "default-timeout", default: "10m", meaning: "deadline of a call that sets none itself" },
    Flag { name: "shutdown-timeout", default: "25s", meaning: "after SIGTERM: when calls under way are cancelled" },
];

const USAGE: &str =
    "Serves one KRM function over gRPC: every call of evaluator.FunctionEvaluator runs the entrypoint once.

usage: wrapper-server [flags] -- ENTRYPOINT [ARGUMENT...]
       KRM_RUNNER_COMMAND= wrapper-server [flags]    (no function yet: it says that it is there, and waits for SIGTERM)
       grpc-health-probe -addr HOST:PORT     (the same program, called by that name)
       cp -a SOURCE/. DESTINATION            (the same)

flags:
";

/// Where Kubernetes reads why a container ended.
const TERMINATION_LOG: &str = "/dev/termination-log";
const CLEAN_UP_INTERVAL: Duration = Duration::from_secs(2);
/// More would only wait for the CPUs.
const MAX_STANDBY: usize = 8;
/// Less would be nothing but starts.
const SHORTEST_STANDBY: Duration = Duration::from_millis(100);
/// A hundred years: there is no moment on the clock that is as far away as one may ask.
const LONGEST_STANDBY: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
const LAST_ANSWERS: Duration = Duration::from_secs(1);
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024 * 1024;
const FRAME_SIZE: u32 = 256 * 1024;
/// At once; as many may be cancelled before they are looked at: by default the 21st ends the connection, and with it
/// everybody's calls.
const MAX_STREAMS: u32 = 4096;
const KEEPALIVE: Duration = Duration::from_secs(60);

struct Settings {
    port: u16,
    /// None: all addresses.
    address: Option<IpAddr>,
    message_limit: usize,
    max_parallel: usize,
    max_waiting: usize,
    max_memory: u64,
    standby: Option<Terms>,
    default_timeout: Duration,
    shutdown_timeout: Duration,
    passes_trace_on: bool,
    metrics: Option<SocketAddr>,
    token: Option<Token>,
    /// Nothing while the pod has no function.
    command: Option<Vec<OsString>>,
}

/// Why the program ends: exit code and one line.
struct Failure(u8, String);

pub fn main(arguments: &[OsString]) -> ExitCode {
    let outcome = Settings::read(arguments).and_then(|settings| match &settings.command {
        Some(command) => {
            let entrypoint = Entrypoint::find(command, std::env::var_os("PATH").as_deref());
            let entrypoint = entrypoint.map_err(|why| Failure(1, why))?;
            start(settings, entrypoint)
        }
        None => wait_for_a_function(&settings),
    });
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure(0, text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(Failure(code, why)) => {
            let line = format!("wrapper-server: {why}\n");
            eprint!("{line}");
            if let Ok(mut log) = OpenOptions::new().write(true).truncate(true).open(TERMINATION_LOG) {
                let _ = log.write_all(line.as_bytes());
            }
            ExitCode::from(code)
        }
    }
}

impl Settings {
    fn read(arguments: &[OsString]) -> Result<Self, Failure> {
        let refused = |refusal| match refusal {
            Refusal::Help => Failure(0, format!("{USAGE}{}", help(FLAGS))),
            Refusal::Wrong(why) => Failure(2, why),
        };
        let flags = Flags::parse(FLAGS, arguments).map_err(refused)?;
        let number = |name, least, most| flags.number(name, least, most).map_err(refused);
        let duration = |name| flags.duration(name).map_err(refused);
        let lasting = |name| {
            let lasts = flags.duration_of_at_least(name, SHORTEST_STANDBY).map_err(refused);
            lasts.map(|lasts| lasts.min(LONGEST_STANDBY))
        };
        let variable = |name: &str| std::env::var(name).ok();
        let cpus = std::thread::available_parallelism().map_or(1, NonZero::get);
        let standby = Terms {
            wanted: number("standby", 0, MAX_STANDBY)?,
            cpus,
            max_age: lasting("standby-max-age")?,
            idle: lasting("standby-idle")?,
        };
        log::set_verbosity(u8::try_from(number("verbosity", 0, 255)?).unwrap_or(u8::MAX));
        Ok(Self {
            port: u16::try_from(number("port", 0, 65535)?).unwrap_or(0),
            address: flags.address("address").map_err(refused)?,
            message_limit: number("max-request-body-size", 1024, 2_147_483_647)?,
            max_parallel: match number("max-parallel", 0, 4096)? {
                0 => cpus.max(2),
                set => set,
            },
            max_waiting: number("max-queue-length", 0, 1_000_000)?,
            max_memory: match number("max-function-memory", 0, 1 << 50)? {
                0 => container_memory::usable() / 4 * 3,
                set => set as u64,
            },
            standby: Some(standby).filter(|terms| terms.wanted > 0),
            default_timeout: duration("default-timeout")?,
            shutdown_timeout: duration("shutdown-timeout")?,
            passes_trace_on: variable("OTEL_TRACES_EXPORTER")
                .is_some_and(|exporter| !matches!(exporter.trim(), "" | "none")),
            metrics: metrics_server::address(variable).map_err(|why| Failure(2, why))?,
            token: Token::take().map_err(|why| Failure(2, why))?,
            command: command::take(flags.rest).map_err(|why| Failure(2, why))?,
        })
    }
}

fn start(settings: Settings, entrypoint: Entrypoint) -> Result<(), Failure> {
    panics::on_panic(|| ());
    let family = Arc::new(Family::default());
    family.adopt_orphans().map_err(|error| Failure(1, format!("orphans of functions could not be reaped: {error}")))?;
    memory::keep_while_busy();
    let runtime = event_loop()?;
    let outcome = runtime.block_on(serve(settings, entrypoint, Arc::clone(&family)));
    // Whoever still lives belongs to a call that nobody waits for.
    family.kill_all();
    runtime.shutdown_timeout(LAST_ANSWERS);
    outcome
}

/// In a pod that is given one later, with another container.
fn wait_for_a_function(settings: &Settings) -> Result<(), Failure> {
    event_loop()?.block_on(async {
        let listener = listen(settings.address, settings.port).await?;
        spare::serve(listener).await.map_err(|error| Failure(1, format!("the server failed: {error}")))
    })
}

/// One thread speaks gRPC; the others each run one function.
fn event_loop() -> Result<runtime::Runtime, Failure> {
    let built = runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| Failure(1, format!("no event loop: {error}")))
}

async fn serve(settings: Settings, entrypoint: Entrypoint, family: Arc<Family>) -> Result<(), Failure> {
    let started = Instant::now();
    let listener = listen(settings.address, settings.port).await?;
    let address = listener.local_addr().map_or(String::new(), |address| address.to_string());
    let function = entrypoint.name();
    let has_token = settings.token.is_some();
    let (stop, stopping) = watch::channel(false);
    let standby = settings.standby.as_ref().map_or(0, |terms| terms.wanted);
    let limits = Limits {
        max_parallel: settings.max_parallel,
        max_waiting: settings.max_waiting,
        max_memory: settings.max_memory,
        max_output: max_resource_list(settings.message_limit),
        message_limit: settings.message_limit,
    };
    let executed = Function { entrypoint, family: Arc::clone(&family), is_configured: false };
    let metrics = Arc::<Metrics>::default();
    let places = Places::new(settings.max_parallel, settings.max_memory);
    let unfit = unfit(function.clone());
    let standby_terms = settings.standby.map(|terms| (terms, unfit));
    let executor = Executor::new(executed, places, limits, standby_terms, Arc::clone(&metrics));
    let evaluation = Arc::new(Evaluation {
        executor: executor.map_err(|error| Failure(1, format!("no process can be kept in standby: {error}")))?,
        metrics,
        message_limit: settings.message_limit,
        default_timeout: settings.default_timeout,
        passes_trace_on: settings.passes_trace_on,
        stopping,
        token: settings.token,
    });
    if let Some(address) = settings.metrics {
        serve_metrics(address, Arc::clone(&evaluation)).await?;
    }
    tokio::spawn(clean_up(family, Arc::clone(&evaluation)));
    let standing_by = Arc::clone(&evaluation);
    // A call with a trace would not use the first one, and who traces one call traces all.
    tokio::spawn(async move { standing_by.executor.keep_standby(!standing_by.passes_trace_on).await });
    let health = Arc::new(Health::new(ServingStatus::Serving));
    let end = until_signal(Arc::clone(&health), Arc::clone(&evaluation), settings.shutdown_timeout, stop);
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    Line::new(Level::Info, "serving")
        .with("address", address)
        .with("function", function)
        .with("max_parallel", settings.max_parallel)
        .with("max_function_memory", settings.max_memory)
        .with("standby", standby)
        .with("max_request_body_size", settings.message_limit)
        .with("token", if has_token { "wanted" } else { "none" })
        .with("version", env!("CARGO_PKG_VERSION"))
        .write();
    let ending = Arc::clone(&evaluation);
    let served = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_SIZE)
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_pending_accept_reset_streams(Some(MAX_STREAMS as usize))
        .http2_keepalive_interval(Some(KEEPALIVE))
        .serve_with_incoming_shutdown(router(evaluation, health), incoming, end?)
        .await;
    ending.executor.wait_for_end_of_standby();
    served.map_err(|error| Failure(1, format!("the server failed: {error}")))?;
    Line::new(Level::Info, "stopped").with("seconds", started.elapsed().as_secs()).write();
    Ok(())
}

fn unfit(function: String) -> Unfit {
    Box::new(move |why| {
        Line::new(Level::Info, "the function is not kept in standby")
            .with("function", &function)
            .with("because", why)
            .write();
    })
}

/// Listens on one address, or on all of them: those of IPv6 as well where the machine has it.
async fn listen(address: Option<IpAddr>, port: u16) -> Result<TcpListener, Failure> {
    if let Some(address) = address {
        let failed = |error: io::Error| Failure(1, format!("cannot listen on port {port} of {address}: {error}"));
        return TcpListener::bind((address, port)).await.map_err(failed);
    }
    let failed = |error: io::Error| Failure(1, format!("cannot listen on port {port}: {error}"));
    match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => {
            TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).await.map_err(failed)
        }
        other => other.map_err(failed),
    }
}

async fn serve_metrics(address: SocketAddr, evaluation: Arc<Evaluation>) -> Result<(), Failure> {
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|error| Failure(1, format!("cannot serve metrics on {address}: {error}")))?;
    tokio::spawn(metrics_server::serve(listener, move || {
        let executor = &evaluation.executor;
        evaluation.metrics.render(executor.load(), executor.memory(), executor.census().as_ref())
    }));
    Ok(())
}

/// What no call does by itself: reap processes that left their group, and give memory back when nothing happens.
async fn clean_up(family: Arc<Family>, evaluation: Arc<Evaluation>) {
    let mut seen = 0;
    let mut is_clean = true;
    loop {
        tokio::time::sleep(CLEAN_UP_INTERVAL).await;
        family.look_after();
        let entered = evaluation.executor.entered();
        let is_idle = entered == seen && evaluation.executor.load().running == 0;
        if is_idle && !is_clean {
            memory::give_back();
        }
        is_clean = is_idle;
        seen = entered;
    }
}

/// Ends when a signal asks for the end; health says so at once, and calls that take too long are cancelled later.
fn until_signal(
    health: Arc<Health>,
    evaluation: Arc<Evaluation>,
    shutdown_timeout: Duration,
    stop: watch::Sender<bool>,
) -> Result<impl Future<Output = ()>, Failure> {
    let handler = |kind| signal(kind).map_err(|error| Failure(1, format!("signals cannot be handled: {error}")));
    let mut terminate = handler(SignalKind::terminate())?;
    let mut interrupt = handler(SignalKind::interrupt())?;
    Ok(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        Line::new(Level::Info, "shutting down")
            .with("signal", name)
            .with("within", format_args!("{shutdown_timeout:?}"))
            .write();
        health.shut_down();
        evaluation.executor.end_standby();
        tokio::spawn(async move {
            // The second signal means: at once.
            tokio::select! {
                () = tokio::time::sleep(shutdown_timeout) => {}
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            stop.send_replace(true);
            // A peer that does not close its connection must not keep us.
            tokio::time::sleep(LAST_ANSWERS).await;
            Line::new(Level::Warning, "some connections did not close in time").write();
            std::process::exit(0);
        });
    })
}
