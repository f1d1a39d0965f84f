//! The conversation with the runner: messages with their length before them, over a socket pair.
//!
//! What the runner has to act upon leaves at once, together with whatever waits; what can wait leaves a little later, so
//! that the runner wakes up once for many messages, and not in the way of the calls that they are about: it may share its
//! CPU with their pods. The order is always that in which things were said. Of a runner that does not read, records of calls that it was not
//! asked about are dropped and counted beyond a bound; what it must hear is kept, and there is no more of that than callers
//! have calls under way.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};
use wrapper_server::log::{Level, Line};

use crate::messages::{Ended, Forwarded, FromFront, News, Order, Outcome, ToFront};

/// Nothing that is said is longer: resource lists stay here.
const LONGEST: usize = 16 * 1024 * 1024;
const PREFIX: usize = 4;
/// Messages that the runner has not read yet.
const MOST_WAITING: usize = 65_536;
/// What the runner only writes down; and calls that have their pod: whatever is asked for next is said behind them.
const LATER: Duration = Duration::from_millis(50);
/// The caller's answer leaves first.
const AFTER_THE_ANSWER: Duration = Duration::from_millis(1);
const ENOUGH: usize = 64 * 1024;

/// What is said to the runner; clones say it to the same one.
#[derive(Clone)]
pub struct Link {
    outgoing: mpsc::UnboundedSender<News>,
    waiting: Arc<AtomicUsize>,
    dropped: Arc<AtomicU64>,
}

/// What the runner says.
pub struct Orders(OwnedReadHalf);

/// The link, what comes in by it, and the task that writes: it ends when the last clone of the link is gone.
pub fn open(descriptor: OwnedFd) -> io::Result<(Link, Orders, tokio::task::JoinHandle<()>)> {
    let stream = StdUnixStream::from(descriptor);
    stream.set_nonblocking(true)?;
    let (incoming, stream) = UnixStream::from_std(stream)?.into_split();
    let (outgoing, queue) = mpsc::unbounded_channel();
    let link = Link { outgoing, waiting: Arc::default(), dropped: Arc::default() };
    let queue = Queue { queue, waiting: Arc::clone(&link.waiting) };
    let writer = tokio::spawn(write(stream, queue, Arc::clone(&link.dropped)));
    Ok((link, Orders(incoming), writer))
}

impl Link {
    /// For tests: what is said is lost.
    #[cfg(test)]
    pub fn to_nobody() -> Self {
        Self { outgoing: mpsc::unbounded_channel().0, waiting: Arc::default(), dropped: Arc::default() }
    }

    /// Never waits.
    pub fn tell(&self, news: News) {
        if may_be_dropped(&news) && self.waiting.load(Ordering::Relaxed) >= MOST_WAITING {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // Without a runner this process is about to end.
        let _ = self.outgoing.send(news);
    }
}

impl Orders {
    /// The next one; nothing when the runner is gone.
    pub async fn next(&mut self) -> io::Result<Option<Order>> {
        loop {
            let mut prefix = [0; PREFIX];
            match self.0.read_exact(&mut prefix).await {
                Err(error) if is_the_end(&error) => return Ok(None),
                other => other?,
            };
            let size = u32::from_be_bytes(prefix) as usize;
            if size > LONGEST {
                return Err(io::Error::other(format!("the runner sends a message of {size} bytes")));
            }
            let mut message = vec![0; size];
            self.0.read_exact(&mut message).await?;
            // A message of a kind that is not known says nothing to us.
            if let Some(order) = ToFront::decode(message.as_slice()).map_err(io::Error::other)?.message {
                return Ok(Some(order));
            }
        }
    }
}

/// A runner that is killed may leave something unread.
fn is_the_end(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
}

/// What nobody waits for.
fn may_be_dropped(news: &News) -> bool {
    matches!(news, News::Ended(Ended { id: 0, .. }) | News::Load(_) | News::Unfit(_))
}

/// What is to be said, and how much of it there is.
struct Queue {
    queue: mpsc::UnboundedReceiver<News>,
    waiting: Arc<AtomicUsize>,
}

impl Queue {
    async fn recv(&mut self) -> Option<News> {
        let news = self.queue.recv().await?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(news)
    }

    fn try_recv(&mut self) -> Option<News> {
        let news = self.queue.try_recv().ok()?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(news)
    }
}

async fn write(mut stream: OwnedWriteHalf, mut queue: Queue, dropped: Arc<AtomicU64>) {
    let mut buffer = Vec::new();
    while let Some(news) = queue.recv().await {
        let mut until = put(news, &mut buffer);
        while until > Instant::now()
            && buffer.len() < ENOUGH
            && let Ok(Some(news)) = timeout_at(until, queue.recv()).await
        {
            until = until.min(put(news, &mut buffer));
        }
        while buffer.len() < ENOUGH
            && let Some(news) = queue.try_recv()
        {
            put(news, &mut buffer);
        }
        if stream.write_all(&buffer).await.is_err() {
            return;
        }
        buffer.clear();
        let lost = dropped.swap(0, Ordering::Relaxed);
        if lost > 0 {
            Line::new(Level::Warning, "the runner did not keep up: calls are missing in its log")
                .with("calls", lost)
                .write();
        }
    }
}

/// Until when it can wait.
fn put(news: News, buffer: &mut Vec<u8>) -> Instant {
    let until = Instant::now() + patience(&news);
    let message = FromFront { message: Some(news) };
    let size = u32::try_from(message.encoded_len()).unwrap_or(u32::MAX);
    buffer.extend(size.to_be_bytes());
    message.encode(buffer).expect("a vector grows");
    until
}

fn patience(news: &News) -> Duration {
    match news {
        News::Ended(_) | News::Load(_) | News::Unfit(_) => LATER,
        News::Call(call) if call.promise != 0 => LATER,
        News::Forwarded(Forwarded { outcome: Some(Outcome::Answered(_)), .. }) => AFTER_THE_ANSWER,
        _ => Duration::ZERO,
    }
}
