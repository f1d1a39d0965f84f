//! The program from start to end: what the runner hands over and configures, wired together.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use engine::process::family::Family;
use engine::rpc::health::Health;
use engine::rpc::messages::ServingStatus;
use engine::rpc::router::router;
use engine::{log, memory, panics};
use tokio::runtime;
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tonic::transport::Server;

use crate::calls::{Census, Front};
use crate::credentials::Credentials;
use crate::functions::Functions;
use crate::health_port;
use crate::incoming::{Budget, UNPACKED_AT_ONCE};
use crate::link::{self, Link, Orders};
use crate::listener;
use crate::messages::{Configure, HealthAnswer, News, Order, Ready};
use crate::pods::{Connection, NAMES_AT_ONCE, Pods, ask_health};
use crate::promises::Promises;
use crate::pulse::Pulse;
use crate::questions::{Answer, Questions};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const USAGE: &str = "usage: krm-front LISTENING LINK [HEALTH]

The port of krm-runner: `krm-runner serve` starts it and hands over descriptors: a socket that listens, one that leads back to
the runner, and a socket that listens for probes, if there is a port for them. It is of no use by itself.";
const STREAM_WINDOW: u32 = 1024 * 1024;
const CONNECTION_WINDOW: u32 = 64 * 1024 * 1024;
const FRAME_SIZE: u32 = 256 * 1024;
/// At once; as many may be cancelled before they are looked at: by default the 21st ends the connection, and with it
/// everybody's calls.
const MAX_STREAMS: u32 = 4096;
const KEEPALIVE: Duration = Duration::from_secs(60);
/// The verbosity that logs resource lists.
const PAYLOADS: u32 = 5;
/// Names that are looked up do not keep messages from being unpacked.
const BLOCKING_THREADS: usize = NAMES_AT_ONCE + UNPACKED_AT_ONCE;
const CLEAN_UP_INTERVAL: Duration = Duration::from_secs(2);
const LOAD_INTERVAL: Duration = Duration::from_millis(250);
/// How long peers have to close their connections after the last answer.
const LAST_ANSWERS: Duration = Duration::from_millis(500);
const LAST_LOOK: Duration = Duration::from_millis(20);

pub fn main(arguments: &[String]) -> ExitCode {
    let descriptors: Option<Vec<RawFd>> = arguments.iter().map(|text| text.parse().ok()).collect();
    let Some([listening, link, probed @ ..]) = descriptors.as_deref().filter(|found| found.len() <= 3) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    // SAFETY: the runner opened them for this process, and no other code has them.
    let owned = |descriptor: &RawFd| unsafe { OwnedFd::from_raw_fd(*descriptor) };
    let sockets = Sockets { listening: owned(listening), link: owned(link), probed: probed.first().map(owned) };
    match start(sockets) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("krm-front: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What the runner hands over.
struct Sockets {
    listening: OwnedFd,
    link: OwnedFd,
    probed: Option<OwnedFd>,
}

fn start(sockets: Sockets) -> io::Result<()> {
    // Whoever ends the service tells the runner, and that tells us. A supervisor may send its signal to all processes.
    for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
        // SAFETY: no handler is installed; functions are started with default dispositions.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // A process in an unknown state must not answer calls. The runner kills the functions, reports it and ends.
    panics::on_panic(|| std::process::abort());
    let family = Arc::new(Family::default());
    family.adopt_orphans()?;
    memory::keep_while_busy();
    // One thread speaks gRPC; the others each run one function.
    let runtime = runtime::Builder::new_current_thread().enable_all().max_blocking_threads(BLOCKING_THREADS).build()?;
    let outcome = runtime.block_on(serve(sockets, Arc::clone(&family)));
    // Whoever still lives belongs to a call that nobody waits for.
    family.kill_all();
    runtime.shutdown_timeout(LAST_ANSWERS);
    outcome
}

async fn serve(sockets: Sockets, family: Arc<Family>) -> io::Result<()> {
    let (link, mut orders, writer) = link::open(sockets.link)?;
    let Some(Order::Configure(configured)) = orders.next().await? else {
        return Err(io::Error::other("the runner did not say how to serve"));
    };
    if configured.version != VERSION {
        link.tell(News::Ready(Ready { version: VERSION.into(), ..Ready::default() }));
        drop(link);
        let _ = writer.await;
        return Err(io::Error::other(format!("this is {VERSION}, and the runner is {}", configured.version)));
    }
    log::set_verbosity(u8::try_from(configured.verbosity).unwrap_or(u8::MAX));
    if configured.json_log {
        log::set_json();
    }
    let credentials = configured.credentials.clone().unwrap_or_default();
    let credentials = match Credentials::new(&credentials) {
        Ok(credentials) => Arc::new(credentials),
        Err(problem) => {
            link.tell(News::Ready(Ready { version: VERSION.into(), problem }));
            drop(link);
            let _ = writer.await;
            return Ok(());
        }
    };
    let (cancel, cancelling) = watch::channel(false);
    let health = Arc::new(Health::new(ServingStatus::NotServing));
    let pulse = Arc::new(Pulse::new(seconds(configured.longest_silence_seconds), Arc::clone(&health)));
    let front =
        Arc::new(front(&configured, link.clone(), Arc::clone(&family), pulse, cancelling, Arc::clone(&credentials)));
    if let Some(probed) = sockets.probed {
        health_port::serve(probed.into(), Arc::clone(&health))?;
    }
    let (connections, accepting) = listener::accept(sockets.listening.into(), credentials)?;
    let drain = Arc::<Notify>::default();
    let control = Control { front: Arc::clone(&front), health: Arc::clone(&health), drain: Arc::clone(&drain), cancel };
    let mut ordered = tokio::spawn(control.obey(orders));
    tokio::spawn(clean_up(Arc::clone(&family), Arc::clone(&front)));
    tokio::spawn(report_load(Arc::clone(&front)));
    tokio::spawn({
        let pulse = Arc::clone(&front.pulse);
        async move { pulse.watch().await }
    });
    link.tell(News::Ready(Ready { version: VERSION.into(), ..Ready::default() }));
    let draining = Arc::<Notify>::default();
    let end = {
        let draining = Arc::clone(&draining);
        async move {
            drain.notified().await;
            accepting.abort();
            draining.notify_one();
        }
    };
    let serving = Server::builder()
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME_SIZE)
        .max_concurrent_streams(MAX_STREAMS)
        .http2_max_pending_accept_reset_streams(Some(MAX_STREAMS as usize))
        .http2_keepalive_interval(Some(KEEPALIVE))
        .serve_with_incoming_shutdown(router(Arc::clone(&front), health), connections, end);
    let outcome = tokio::select! {
        served = serving => served.map_err(io::Error::other),
        // A peer that does not close its connection must not keep us.
        () = last_answer(&front, &draining) => Ok(()),
        gone = &mut ordered => gone.unwrap_or(Ok(())),
    };
    ordered.abort();
    front.functions.wait_for_end_of_standby();
    drop((front, link));
    let _ = tokio::time::timeout(LAST_ANSWERS, writer).await;
    outcome
}

fn front(
    configured: &Configure,
    link: Link,
    family: Arc<Family>,
    pulse: Arc<Pulse>,
    cancelling: watch::Receiver<bool>,
    credentials: Arc<Credentials>,
) -> Front {
    let number = |number: u64| usize::try_from(number).unwrap_or(usize::MAX);
    Front {
        link: link.clone(),
        functions: Functions::new(link, configured, family),
        questions: Arc::<Questions>::default(),
        pods: Pods::default(),
        promises: Promises::default(),
        pulse,
        credentials,
        sampler: configured.sampler,
        logs_payloads: configured.verbosity >= PAYLOADS,
        budget: Budget::new(number(configured.max_request_memory)),
        message_limit: number(configured.message_limit),
        default_timeout: seconds(configured.default_timeout_seconds),
        cancelling,
        census: Arc::<Census>::default(),
    }
}

fn seconds(number: f64) -> Duration {
    Duration::try_from_secs_f64(number).unwrap_or(Duration::MAX)
}

/// What the runner orders, carried out.
struct Control {
    front: Arc<Front>,
    health: Arc<Health>,
    drain: Arc<Notify>,
    cancel: watch::Sender<bool>,
}

impl Control {
    /// Until the runner is gone.
    async fn obey(self, orders: Orders) -> io::Result<()> {
        let outcome = self.carry_out(orders).await;
        // Nobody is left to decide anything: what waits for its turn must not begin.
        self.cancel.send_replace(true);
        outcome
    }

    async fn carry_out(&self, mut orders: Orders) -> io::Result<()> {
        let mut asked = JoinSet::new();
        while let Some(order) = orders.next().await? {
            self.front.pulse.beat();
            match order {
                Order::Alive(_) => {}
                // Both as things are now: what is said next may take it back before the call acts upon it.
                Order::Run(run) => {
                    self.front.questions.answer(Answer::Run(run, self.front.functions.edition()));
                }
                Order::Forward(forward) => {
                    let connection = self.front.pods.connection(forward.connection, &forward.address);
                    self.front.questions.answer(Answer::Forward(forward, Connection::engage(&connection)));
                }
                Order::Refuse(refuse) => self.front.questions.answer(Answer::Refuse(refuse)),
                Order::Promise(promise) => {
                    let connection = self.front.pods.connection(promise.connection, &promise.address);
                    self.front.promises.make(promise, connection);
                }
                Order::Withdraw(withdraw) => {
                    self.front.promises.withdraw(withdraw.connection);
                    // Somebody may wait for what a call has left there.
                    self.front.link.hurry();
                }
                Order::Forget(forget) => {
                    // Its image may be a local function's now.
                    self.front.promises.forget();
                    self.front.functions.forget(&forget.standby);
                }
                Order::Health(wanted) => {
                    self.front.pulse.set_serving(wanted.serving);
                    if wanted.end_standby {
                        self.front.functions.end_standby();
                    }
                }
                Order::Drain(_) => {
                    // Who watches health would keep its connection open.
                    self.health.shut_down();
                    self.drain.notify_one();
                }
                Order::CancelCalls(_) => {
                    self.cancel.send_replace(true);
                }
                Order::AskHealth(ask) => {
                    while asked.try_join_next().is_some() {}
                    let (link, id) = (self.front.link.clone(), ask.id);
                    let connection = self.front.pods.connection(ask.connection, &ask.address);
                    asked.spawn(async move {
                        let outcome = Some(ask_health(connection, ask).await);
                        link.tell(News::HealthAnswer(HealthAnswer { id, outcome }));
                    });
                }
                Order::Disconnect(disconnect) => {
                    self.front.promises.withdraw(disconnect.connection);
                    self.front.pods.disconnect(disconnect.connection);
                }
                Order::Credentials(credentials) => self.front.credentials.replace(&credentials),
                Order::Configure(_) => return Err(io::Error::other("the runner configures twice")),
            }
        }
        Ok(())
    }
}

/// Returns when no more calls are taken, and the last one was answered a moment ago.
async fn last_answer(front: &Front, draining: &Notify) {
    draining.notified().await;
    let mut idle_since = Instant::now();
    while idle_since.elapsed() < LAST_ANSWERS {
        sleep(LAST_LOOK).await;
        // Who is cancelled, and does not read that, is not waited for.
        if front.census.present.load(Ordering::Relaxed) > 0 && !*front.cancelling.borrow() {
            idle_since = Instant::now();
        }
    }
}

/// What no call does by itself: reap processes that left their group, and give memory back when nothing happens.
async fn clean_up(family: Arc<Family>, front: Arc<Front>) {
    let mut seen = 0;
    let mut is_clean = true;
    loop {
        sleep(CLEAN_UP_INTERVAL).await;
        family.look_after();
        let arrived = front.census.arrived.load(Ordering::Relaxed);
        let is_idle = arrived == seen && front.census.present.load(Ordering::Relaxed) == 0;
        if is_idle && !is_clean {
            memory::give_back();
        }
        is_clean = is_idle;
        seen = arrived;
    }
}

/// The runner's metrics know how much is under way.
async fn report_load(front: Arc<Front>) {
    let mut told = front.functions.load();
    loop {
        sleep(LOAD_INTERVAL).await;
        let mut load = front.functions.load();
        load.calls = front.census.arrived.load(Ordering::Relaxed);
        load.under_way = front.census.unasked.load(Ordering::Relaxed) as u64;
        if load != told {
            told = load.clone();
            front.link.tell(News::Load(load));
        }
    }
}
