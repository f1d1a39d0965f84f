//! The conversation with the runner: messages with their length before them, over a socket pair.
//!
//! What the runner has to act upon leaves at once, together with whatever waits; what can wait leaves a little later, so
//! that the runner wakes up once for many messages, and not in the way of the calls that they are about: it may share its
//! CPU with their pods. The order is always that in which things were said. Of a runner that does not read, records of calls that it was not
//! asked about are dropped and counted beyond a bound; what it must hear is kept, and there is no more of that than callers
//! have calls under way, and a bounded number of calls that went by promises.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use engine::log::{Level, Line};
use prost::Message;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::batch::Batch;
use crate::messages::{Ended, News, Order, ToFront};

/// Nothing that is said is longer: resource lists stay here.
const LONGEST: usize = 16 * 1024 * 1024;
const PREFIX: usize = 4;
/// Messages that the runner has not read yet.
const MOST_WAITING: usize = 65_536;
/// So many of them that it does not keep up.
const MANY_WAITING: usize = 4096;
/// What the runner only writes down; and calls that have their pod: whatever is asked for next is said behind them.
pub const LATER: Duration = Duration::from_millis(50);
/// The caller's answer leaves first.
pub const AFTER_THE_ANSWER: Duration = Duration::from_millis(1);
const ENOUGH: usize = 64 * 1024;

/// What is said to the runner; clones say it to the same one.
#[derive(Clone)]
pub struct Link {
    outgoing: mpsc::UnboundedSender<Said>,
    waiting: Arc<AtomicUsize>,
    dropped: Arc<AtomicU64>,
}

struct Said {
    /// Nothing: whatever waits leaves.
    news: Option<News>,
    /// How long it can wait for company.
    patience: Duration,
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
        let patience = patience(&news);
        self.tell_within(news, patience);
    }

    /// The same of something that can wait for so long.
    pub fn tell_within(&self, news: News, patience: Duration) {
        if may_be_dropped(&news) && self.waiting.load(Ordering::Relaxed) >= MOST_WAITING {
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // Without a runner this process is about to end.
        let _ = self.outgoing.send(Said { news: Some(news), patience });
    }

    /// Whether there is much that the runner has not read.
    pub fn is_behind(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= MANY_WAITING
    }

    /// Nothing waits any longer.
    pub fn hurry(&self) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        let _ = self.outgoing.send(Said { news: None, patience: Duration::ZERO });
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
    queue: mpsc::UnboundedReceiver<Said>,
    waiting: Arc<AtomicUsize>,
}

impl Queue {
    async fn recv(&mut self) -> Option<Said> {
        let said = self.queue.recv().await?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(said)
    }

    fn try_recv(&mut self) -> Option<Said> {
        let said = self.queue.try_recv().ok()?;
        self.waiting.fetch_sub(1, Ordering::Relaxed);
        Some(said)
    }
}

async fn write(mut stream: OwnedWriteHalf, mut queue: Queue, dropped: Arc<AtomicU64>) {
    let mut batch = Batch::default();
    let mut buffer = Vec::new();
    while let Some(said) = queue.recv().await {
        let mut until = put(said, &mut batch);
        while until > Instant::now()
            && batch.bytes() < ENOUGH
            && let Ok(Some(said)) = timeout_at(until, queue.recv()).await
        {
            until = until.min(put(said, &mut batch));
        }
        while batch.bytes() < ENOUGH
            && let Some(said) = queue.try_recv()
        {
            put(said, &mut batch);
        }
        batch.encode(&mut buffer);
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
fn put(said: Said, batch: &mut Batch) -> Instant {
    let until = Instant::now() + said.patience;
    said.news.into_iter().for_each(|news| batch.add(news));
    until
}

fn patience(news: &News) -> Duration {
    match news {
        News::Ended(_) | News::Load(_) | News::Unfit(_) => LATER,
        News::Call(call) if call.is_promised => LATER,
        _ => Duration::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::messages::{FromFront, Gone};

    const HOUR: Duration = Duration::from_secs(3600);

    fn gone(id: u64) -> News {
        News::Gone(Gone { id })
    }

    async fn heard(stream: &mut UnixStream) -> u64 {
        let mut prefix = [0; PREFIX];
        stream.read_exact(&mut prefix).await.unwrap();
        let mut message = vec![0; u32::from_be_bytes(prefix) as usize];
        stream.read_exact(&mut message).await.unwrap();
        match FromFront::decode(message.as_slice()).unwrap().message {
            Some(News::Gone(Gone { id })) => id,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn what_can_wait_waits_for_what_cannot_or_until_it_is_hurried() {
        let (ours, theirs) = StdUnixStream::pair().unwrap();
        theirs.set_nonblocking(true).unwrap();
        let mut runner = UnixStream::from_std(theirs).unwrap();
        let (link, _orders, _writer) = open(ours.into()).unwrap();
        link.tell_within(gone(1), HOUR);
        link.tell_within(gone(2), Duration::ZERO);
        assert_eq!([heard(&mut runner).await, heard(&mut runner).await], [1, 2]);
        link.tell_within(gone(3), HOUR);
        // Not in one go with what it is to move.
        tokio::task::yield_now().await;
        link.hurry();
        assert_eq!(heard(&mut runner).await, 3);
    }
}
