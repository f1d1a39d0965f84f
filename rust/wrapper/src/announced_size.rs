//! The size that a request announces, seen in passing: an error about it must name it, and tonic does not tell.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body::{Body, Frame, SizeHint};

/// A flag that tells whether it is compressed, and the length in four bytes, come before a message.
const PREFIX: usize = 5;

pub struct AnnouncedSize<B> {
    body: B,
    prefix: [u8; PREFIX],
    seen: usize,
    size: Arc<AtomicUsize>,
}

impl<B> AnnouncedSize<B> {
    /// The body, and where the size will stand once it is known.
    pub fn watch(body: B) -> (Self, Arc<AtomicUsize>) {
        let size = Arc::new(AtomicUsize::new(0));
        (Self { body, prefix: [0; PREFIX], seen: 0, size: Arc::clone(&size) }, size)
    }

    fn look(&mut self, data: &Bytes) {
        for byte in data.iter().take(PREFIX - self.seen) {
            self.prefix[self.seen] = *byte;
            self.seen += 1;
        }
        if self.seen == PREFIX {
            let [_, a, b, c, d] = self.prefix;
            self.size.store(u32::from_be_bytes([a, b, c, d]) as usize, Ordering::Relaxed);
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for AnnouncedSize<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if let Poll::Ready(Some(Ok(frame))) = &polled
            && let Some(data) = frame.data_ref().filter(|_| self.seen < PREFIX).cloned()
        {
            self.look(&data);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
