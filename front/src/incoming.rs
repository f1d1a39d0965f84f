//! The message of a request: read once, and kept as it came, so that it can be passed on without a copy.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::{Bytes, BytesMut};
use flate2::read::{GzDecoder, ZlibDecoder};
use http::HeaderMap;
use http_body_util::BodyExt;
use prost::Message;
use tonic::body::Body;
use wrapper_server::errors::EvaluationError;
use wrapper_server::rpc::messages::EvaluateFunctionRequest;

/// A flag that tells whether it is compressed, and the length in four bytes, come before a message.
pub const PREFIX: usize = 5;

/// A message as it goes over the wire.
pub struct Incoming {
    /// With its prefix; never compressed.
    pub framed: Bytes,
    pub request: EvaluateFunctionRequest,
}

impl Incoming {
    pub fn message_size(&self) -> usize {
        self.framed.len() - PREFIX
    }
}

/// The one message of a request; its size is noted as soon as it is announced.
pub async fn read(
    mut body: Body,
    headers: &HeaderMap,
    limit: usize,
    announced: &AtomicUsize,
) -> Result<Incoming, EvaluationError> {
    let invalid =
        |why: &str| EvaluationError::invalid_request(format!("the request is no EvaluateFunctionRequest: {why}"));
    let mut pieces = Pieces::default();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| invalid(&error.to_string()))?;
        let Ok(data) = frame.into_data() else { continue };
        pieces.add(data);
        let Some(size) = pieces.announced() else { continue };
        announced.store(size, Ordering::Relaxed);
        if size > limit {
            return Err(EvaluationError::message_too_large(size, limit));
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
    if framed.len() < PREFIX || framed.len() < PREFIX + announced.load(Ordering::Relaxed) {
        return Err(invalid("it ends in the middle"));
    }
    let framed = if framed[0] == 0 { framed } else { unpacked(&framed, headers, limit)? };
    let request =
        EvaluateFunctionRequest::decode(framed.slice(PREFIX..)).map_err(|error| invalid(&error.to_string()))?;
    Ok(Incoming { framed, request })
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

    /// One alone always fits.
    pub fn enter(&self, image: &str, size: usize) -> Result<Share, EvaluationError> {
        let used = self.used.load(Ordering::Relaxed);
        if used > 0 && used.saturating_add(size) > self.limit {
            return Err(EvaluationError::overloaded(image, size, used, self.limit));
        }
        self.used.fetch_add(size, Ordering::Relaxed);
        Ok(Share { used: Arc::clone(&self.used), size })
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
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use http_body_util::StreamBody;
    use std::io::Write;
    use wrapper_server::rpc::evaluate::code_name;

    fn framed(message: &[u8], flag: u8) -> Vec<u8> {
        let size = u32::try_from(message.len()).unwrap();
        [&[flag], size.to_be_bytes().as_slice(), message].concat()
    }

    fn message() -> Vec<u8> {
        let list = Bytes::from_static(b"kind: ResourceList\n");
        EvaluateFunctionRequest { resource_list: list, image: "an-image".into() }.encode_to_vec()
    }

    fn read_in(chunks: Vec<Vec<u8>>, limit: usize) -> Result<Incoming, EvaluationError> {
        let frames = chunks.into_iter().map(|chunk| Ok::<_, tonic::Status>(http_body::Frame::data(Bytes::from(chunk))));
        let body = Body::new(StreamBody::new(tokio_stream::iter(frames)));
        let headers = HeaderMap::from_iter([(http::HeaderName::from_static("grpc-encoding"), "gzip".parse().unwrap())]);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(read(body, &headers, limit, &AtomicUsize::new(0)))
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
    fn requests_share_the_memory_and_one_alone_always_fits() {
        let budget = Budget::new(10);
        let alone = budget.enter("i", 100).unwrap();
        assert_eq!(budget.enter("i", 1).err().unwrap().reason, "OVERLOADED");
        drop(alone);
        let shares = [budget.enter("i", 5).unwrap(), budget.enter("i", 5).unwrap()];
        assert!(budget.enter("i", 1).is_err());
        drop(shares);
        assert_eq!(budget.used.load(Ordering::Relaxed), 0);
    }
}
