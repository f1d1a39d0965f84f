//! The message of a request: read once, and kept as it came, so that it can be passed on without a copy.
//!
//! It has its part of the memory before it is read: one that does not fit beside the others is read to its end for the
//! sake of its image alone, which is behind the resource list, and nothing else of it is kept.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use engine::errors::EvaluationError;
use engine::rpc::evaluate::shown;
use engine::rpc::messages::EvaluateFunctionRequest;
use flate2::read::{GzDecoder, ZlibDecoder};
use http::HeaderMap;
use http_body_util::BodyExt;
use prost::Message;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use tonic::body::Body;

use crate::skimming::Skimming;

/// A flag that tells whether it is compressed, and the length in four bytes, come before a message.
pub const PREFIX: usize = 5;
/// In which nothing of a request comes that is not whole.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Messages that are unpacked at once.
pub const UNPACKED_AT_ONCE: usize = 2;
static UNPACKING: Semaphore = Semaphore::const_new(UNPACKED_AT_ONCE);
/// In characters: the runner's own limit.
pub const LONGEST_IMAGE: usize = 1024;

/// A message as it goes over the wire.
pub struct Incoming {
    /// With its prefix; never compressed.
    pub framed: Bytes,
    pub request: EvaluateFunctionRequest,
    /// Of the memory of all requests; for as long as the message is there.
    pub share: Share,
}

impl Incoming {
    pub fn message_size(&self) -> usize {
        self.framed.len() - PREFIX
    }
}

/// What is known of a message before it is whole, for whoever does not wait for that.
#[derive(Default)]
pub struct Seen {
    size: AtomicUsize,
    image: OnceLock<String>,
}

impl Seen {
    /// As it was announced.
    pub fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }

    /// As messages show it; empty while it is not known.
    pub fn image(&self) -> String {
        self.image.get().cloned().unwrap_or_default()
    }

    fn note_image(&self, image: &str) {
        let _ = self.image.set(shown(image));
    }
}

/// The one message of a request.
pub async fn read(
    mut body: Body,
    headers: &HeaderMap,
    limit: usize,
    budget: &Budget,
    seen: &Seen,
) -> Result<Incoming, EvaluationError> {
    let mut pieces = Pieces::default();
    let mut share = None;
    while let Some(data) = next(&mut body).await.ok_or_else(|| stalled(pieces.len(), seen))? {
        pieces.add(data);
        let Some(size) = pieces.announced() else { continue };
        seen.size.store(size, Ordering::Relaxed);
        if size > limit {
            return Err(EvaluationError::message_too_large(size, limit));
        }
        if share.is_none() {
            match budget.enter(size) {
                Ok(part) => share = Some(part),
                Err(used) => return Err(refused(pieces.whole(), body, size, used, budget, seen).await),
            }
        }
        pieces.expect(size);
        if pieces.len() > PREFIX + size {
            return Err(invalid("there is more than one message"));
        }
    }
    let framed = pieces.whole();
    if framed.is_empty() {
        return Err(EvaluationError::invalid_request("the request has no message".into()));
    }
    let Some(share) = share.filter(|_| framed.len() == PREFIX + seen.size()) else {
        return Err(invalid("it ends in the middle"));
    };
    let is_packed = framed[0] != 0;
    let (framed, share) = if is_packed { unpack(framed, share, headers, limit).await? } else { (framed, share) };
    let request =
        EvaluateFunctionRequest::decode(framed.slice(PREFIX..)).map_err(|error| invalid(&error.to_string()))?;
    seen.note_image(&request.image);
    let share = if is_packed { budget.change(share, &seen.image(), framed.len() - PREFIX)? } else { share };
    Ok(Incoming { framed, request, share })
}

/// What comes next of a body, and nothing at its end; none if it does not come.
async fn next(body: &mut Body) -> Option<Option<Bytes>> {
    loop {
        match timeout(LONGEST_PAUSE, body.frame()).await.ok()? {
            None => return Some(None),
            Some(Ok(frame)) => {
                if let Ok(data) = frame.into_data() {
                    return Some(Some(data));
                }
            }
            // The caller went away, and whoever waits for the request is about to be told.
            Some(Err(_)) => std::future::pending().await,
        }
    }
}

fn stalled(received: usize, seen: &Seen) -> EvaluationError {
    EvaluationError::upload_stalled(received.saturating_sub(PREFIX), seen.size(), LONGEST_PAUSE)
}

fn invalid(why: &str) -> EvaluationError {
    EvaluationError::invalid_request(format!("the request is no EvaluateFunctionRequest: {why}"))
}

/// There is no room for a message of that size; whose it is stands at its end.
async fn refused(
    begin: Bytes,
    mut body: Body,
    size: usize,
    used: usize,
    budget: &Budget,
    seen: &Seen,
) -> EvaluationError {
    // What is compressed cannot be read in passing.
    if begin[0] == 0 {
        let mut skimming = Skimming::default();
        let mut data = begin.slice(PREFIX..);
        let mut left = size;
        loop {
            skimming.look(&data);
            left = left.saturating_sub(data.len());
            if left == 0 {
                break;
            }
            match next(&mut body).await {
                Some(Some(more)) => data = more,
                Some(None) | None => break,
            }
        }
        if let Some(image) = skimming.image() {
            seen.note_image(image);
        }
    }
    EvaluationError::overloaded(&seen.image(), size, used, budget.limit)
}

/// What came so far; one piece alone is never copied.
#[derive(Default)]
struct Pieces {
    first: Bytes,
    joined: BytesMut,
}

impl Pieces {
    fn add(&mut self, data: Bytes) {
        if self.first.is_empty() && self.joined.is_empty() {
            self.first = data;
            return;
        }
        let first = std::mem::take(&mut self.first);
        self.joined.extend_from_slice(&first);
        self.joined.extend_from_slice(&data);
    }

    fn len(&self) -> usize {
        self.first.len() + self.joined.len()
    }

    fn announced(&self) -> Option<usize> {
        let begin: &[u8] = if self.joined.is_empty() { &self.first } else { &self.joined };
        let size = begin.get(1..PREFIX)?;
        Some(u32::from_be_bytes(size.try_into().ok()?) as usize)
    }

    /// Room for the rest, once.
    fn expect(&mut self, size: usize) {
        if self.len() < PREFIX + size && self.joined.capacity() < PREFIX + size {
            self.joined.reserve(PREFIX + size - self.joined.len());
        }
    }

    fn whole(self) -> Bytes {
        if self.joined.is_empty() { self.first } else { self.joined.freeze() }
    }
}

/// On a thread of its own: a few bytes may become megabytes, and here everybody would wait for that. How many they become
/// is not known before, so only few do it at once.
async fn unpack(
    framed: Bytes,
    share: Share,
    headers: &HeaderMap,
    limit: usize,
) -> Result<(Bytes, Share), EvaluationError> {
    let turn = UNPACKING.acquire().await.expect("never closed");
    let headers = headers.clone();
    let unpacking = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        Ok((unpacked(&framed, &headers, limit)?, share))
    });
    unpacking.await.unwrap_or_else(|_| Err(EvaluationError::unexpected("", "end of the thread that unpacks it")))
}

/// A compressed message as one that is not; never larger than the limit.
fn unpacked(framed: &Bytes, headers: &HeaderMap, limit: usize) -> Result<Bytes, EvaluationError> {
    let encoding = headers.get("grpc-encoding").map_or("", |value| value.to_str().unwrap_or(""));
    let mut text = vec![0; PREFIX];
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    let read = match (framed[0], encoding) {
        (1, "gzip") => GzDecoder::new(&framed[PREFIX..]).take(most).read_to_end(&mut text),
        (1, "deflate") => ZlibDecoder::new(&framed[PREFIX..]).take(most).read_to_end(&mut text),
        _ => {
            let why = format!("it is compressed with \"{encoding}\"; gzip and deflate are understood, or nothing");
            return Err(EvaluationError::invalid_request(why));
        }
    };
    read.map_err(|error| EvaluationError::invalid_request(format!("the request cannot be unpacked: {error}")))?;
    let size = text.len() - PREFIX;
    if size > limit {
        return Err(EvaluationError::message_too_large(size, limit));
    }
    text[1..PREFIX].copy_from_slice(&u32::try_from(size).unwrap_or(u32::MAX).to_be_bytes());
    Ok(Bytes::from(text))
}

/// How much of the memory the requests under way take: the runner's `core.request_budget`.
pub struct Budget {
    limit: usize,
    used: Arc<AtomicUsize>,
}

/// A request's part; given back when it is dropped.
pub struct Share {
    used: Arc<AtomicUsize>,
    size: usize,
}

impl Budget {
    pub fn new(limit: usize) -> Self {
        Self { limit, used: Arc::default() }
    }

    /// One alone always fits; else how much the others take that leave no room for it.
    pub fn enter(&self, size: usize) -> Result<Share, usize> {
        let used = self.used.load(Ordering::Relaxed);
        if used > 0 && used.saturating_add(size) > self.limit {
            return Err(used);
        }
        self.used.fetch_add(size, Ordering::Relaxed);
        Ok(Share { used: Arc::clone(&self.used), size })
    }

    /// It turned out to be of another size.
    fn change(&self, share: Share, image: &str, size: usize) -> Result<Share, EvaluationError> {
        drop(share);
        self.enter(size).map_err(|used| EvaluationError::overloaded(image, size, used, self.limit))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.used.fetch_sub(self.size, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::rpc::evaluate::code_name;
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use http_body_util::StreamBody;
    use std::io::Write;
    use tokio_stream::StreamExt;

    fn framed(message: &[u8], flag: u8) -> Vec<u8> {
        let size = u32::try_from(message.len()).unwrap();
        [&[flag], size.to_be_bytes().as_slice(), message].concat()
    }

    fn message() -> Vec<u8> {
        let list = Bytes::from_static(b"kind: ResourceList\n");
        EvaluateFunctionRequest { resource_list: list, image: "an-image".into() }.encode_to_vec()
    }

    fn read_in(chunks: Vec<Vec<u8>>, limit: usize) -> Result<Incoming, EvaluationError> {
        read_beside(&Budget::new(1_000_000), chunks, limit).0
    }

    /// And the image that is known then.
    fn read_beside(budget: &Budget, chunks: Vec<Vec<u8>>, limit: usize) -> (Result<Incoming, EvaluationError>, String) {
        let frames = chunks.into_iter().map(|chunk| Ok::<_, tonic::Status>(http_body::Frame::data(Bytes::from(chunk))));
        let body = Body::new(StreamBody::new(tokio_stream::iter(frames)));
        let headers = HeaderMap::from_iter([(http::HeaderName::from_static("grpc-encoding"), "gzip".parse().unwrap())]);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let seen = Seen::default();
        let incoming = runtime.block_on(read(body, &headers, limit, budget, &seen));
        (incoming, seen.image())
    }

    #[test]
    fn a_message_is_whole_however_it_is_cut() {
        let bytes = framed(&message(), 0);
        for size in [1, 2, 3, 5, 6, 7, bytes.len()] {
            let incoming = read_in(bytes.chunks(size).map(<[u8]>::to_vec).collect(), 1000).unwrap();
            assert_eq!(incoming.framed, bytes);
            assert_eq!((incoming.request.image.as_str(), incoming.message_size()), ("an-image", bytes.len() - PREFIX));
        }
    }

    #[test]
    fn a_compressed_message_is_passed_on_as_it_was_before() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(&message()).unwrap();
        let packed = framed(&gzip.finish().unwrap(), 1);
        assert_eq!(read_in(vec![packed.clone()], 1000).unwrap().framed, framed(&message(), 0));
        let mut bomb = GzEncoder::new(Vec::new(), Compression::best());
        bomb.write_all(&vec![0; 1_000_000]).unwrap();
        let refused = read_in(vec![framed(&bomb.finish().unwrap(), 1)], 10_000).err().unwrap();
        assert_eq!(refused.reason, "MESSAGE_TOO_LARGE");
        let refused = read_in(vec![framed(b"no gzip", 1)], 1000).err().unwrap();
        assert_eq!(code_name(refused.code), "INVALID_ARGUMENT");
    }

    #[test]
    fn what_is_no_message_is_refused_with_its_reason() {
        let bytes = framed(&message(), 0);
        for (chunks, limit, reason, words) in [
            (vec![], 1000, "INVALID_REQUEST", "has no message"),
            (vec![bytes[..3].to_vec()], 1000, "INVALID_REQUEST", "ends in the middle"),
            (vec![bytes[..bytes.len() - 1].to_vec()], 1000, "INVALID_REQUEST", "ends in the middle"),
            (vec![bytes.clone(), bytes.clone()], 1000, "INVALID_REQUEST", "more than one"),
            (vec![framed(&[0xff], 0)], 1000, "INVALID_REQUEST", "no EvaluateFunctionRequest"),
            (vec![bytes.clone()], 10, "MESSAGE_TOO_LARGE", "more than the limit of 10 bytes"),
        ] {
            let refused = read_in(chunks, limit).err().unwrap();
            assert_eq!(refused.reason, reason);
            assert!(refused.message.contains(words), "{}", refused.message);
        }
    }

    #[test]
    fn a_request_that_stops_in_the_middle_gives_its_part_of_the_memory_back() {
        let begin = framed(&message(), 0)[..PREFIX + 3].to_vec();
        let frames = tokio_stream::iter([Ok::<_, tonic::Status>(http_body::Frame::data(Bytes::from(begin)))]);
        let body = Body::new(StreamBody::new(frames.chain(tokio_stream::pending())));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        let (budget, seen) = (Budget::new(1000), Seen::default());
        let stalled = runtime.block_on(read(body, &HeaderMap::new(), 1000, &budget, &seen)).err().unwrap();
        assert_eq!((stalled.reason, seen.size()), ("REQUEST_TOO_SLOW", message().len()));
        let words = format!("stopped after 3 of {} bytes", message().len());
        assert!(stalled.message.contains(&words), "{}", stalled.message);
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn requests_share_the_memory_and_one_alone_always_fits() {
        let budget = Budget::new(10);
        let alone = budget.enter(100).unwrap();
        assert_eq!(budget.enter(1).err(), Some(100));
        drop(alone);
        let shares = [budget.enter(5).unwrap(), budget.enter(5).unwrap()];
        assert!(budget.enter(1).is_err());
        drop(shares);
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn what_does_not_fit_is_refused_with_its_image_and_leaves_nothing() {
        let budget = Budget::new(100);
        let held = budget.enter(90).unwrap();
        let bytes = framed(&message(), 0);
        for size in [1, 4, 7, bytes.len()] {
            let (refused, image) = read_beside(&budget, bytes.chunks(size).map(<[u8]>::to_vec).collect(), 1000);
            let refused = refused.err().unwrap();
            assert_eq!((refused.reason, image.as_str()), ("OVERLOADED", "an-image"));
            assert!(refused.message.starts_with("function \"an-image\" is not run now"), "{}", refused.message);
        }
        let (refused, image) = read_beside(&budget, vec![framed(b"a compressed message", 1)], 1000);
        assert_eq!((refused.err().unwrap().reason, image.as_str()), ("OVERLOADED", ""));
        assert_eq!(budget.used.load(Ordering::Relaxed), 90);
        drop(held);
        let (whole, _) = read_beside(&budget, vec![bytes.clone()], 1000);
        assert_eq!(budget.used.load(Ordering::Relaxed), bytes.len() - PREFIX);
        drop(whole);
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_message_counts_by_what_it_is_unpacked() {
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        let list = Bytes::from(vec![b'#'; 50_000]);
        let message = EvaluateFunctionRequest { resource_list: list, image: "an-image".into() }.encode_to_vec();
        gzip.write_all(&message).unwrap();
        let packed = framed(&gzip.finish().unwrap(), 1);
        let budget = Budget::new(60_000);
        let (incoming, _) = read_beside(&budget, vec![packed.clone()], 100_000);
        assert_eq!(budget.used.load(Ordering::Relaxed), message.len());
        let (refused, image) = read_beside(&budget, vec![packed], 100_000);
        assert_eq!((refused.err().unwrap().reason, image.as_str()), ("OVERLOADED", "an-image"));
        drop(incoming);
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }
}
