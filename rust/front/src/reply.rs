//! An answer on its way to the caller: one message, then the status in the trailers.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{BufMut, Bytes, BytesMut};
use engine::call::Outcome;
use engine::log_excerpt::shorten;
use engine::rpc::evaluate::field_overhead;
use http::{HeaderMap, HeaderValue, Response};
use http_body::{Body as HttpBody, Frame};
use tonic::body::Body;

use crate::incoming::PREFIX;

const RESOURCE_LIST: u8 = 0x0a;
const LOG: u8 = 0x12;
/// What is smaller is put together, what is larger is not copied.
const SMALL: usize = 64 * 1024;

/// A whole message with its prefix, in one piece or several.
pub struct Reply {
    pieces: VecDeque<Bytes>,
    pub message_size: usize,
}

impl Reply {
    /// What a function wrote; the log is cut where the message would be too large.
    pub fn of(outcome: Outcome, message_limit: usize) -> Self {
        let list = Bytes::from(outcome.stdout);
        let room = message_limit.saturating_sub(list.len() + field_overhead(list.len()));
        let log = shorten(outcome.stderr, room.saturating_sub(field_overhead(room)));
        let fields = [(RESOURCE_LIST, list), (LOG, Bytes::from(log))];
        let present = fields.iter().filter(|(_, content)| !content.is_empty());
        let message_size: usize = present.map(|(_, content)| field_overhead(content.len()) + content.len()).sum();
        let mut pieces = VecDeque::new();
        let mut piece = BytesMut::with_capacity(PREFIX + message_size.min(SMALL) + 32);
        piece.put_u8(0);
        piece.put_u32(u32::try_from(message_size).unwrap_or(u32::MAX));
        for (tag, content) in fields.into_iter().filter(|(_, content)| !content.is_empty()) {
            piece.put_u8(tag);
            prost::encoding::encode_varint(content.len() as u64, &mut piece);
            if content.len() < SMALL {
                piece.extend_from_slice(&content);
            } else {
                pieces.extend([piece.split().freeze(), content]);
            }
        }
        if !piece.is_empty() {
            pieces.push_back(piece.freeze());
        }
        Self { pieces, message_size }
    }

    /// As a pod sent it.
    pub fn passed_on(framed: Bytes) -> Self {
        Self { message_size: framed.len().saturating_sub(PREFIX), pieces: VecDeque::from([framed]) }
    }

    /// `guard` is held until the last byte has left, or nobody wants it any more.
    pub fn into_response(self, guard: impl Send + Unpin + 'static) -> Response<Body> {
        let body = Leaving { pieces: self.pieces, is_over: false, _guard: guard };
        let mut response = Response::new(Body::new(body));
        response.headers_mut().insert(http::header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        response
    }
}

struct Leaving<G> {
    pieces: VecDeque<Bytes>,
    is_over: bool,
    _guard: G,
}

impl<G: Unpin> HttpBody for Leaving<G> {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(piece) = self.pieces.front_mut() {
            // The connection takes a piece as soon as it can send a byte of it: in slices, so that we know what has left.
            let slice = piece.split_to(piece.len().min(SMALL));
            if piece.is_empty() {
                self.pieces.pop_front();
            }
            return Poll::Ready(Some(Ok(Frame::data(slice))));
        }
        if std::mem::replace(&mut self.is_over, true) {
            return Poll::Ready(None);
        }
        let status = (http::HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(HeaderMap::from_iter([status])))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::envelope::Envelope;
    use engine::rpc::messages::EvaluateFunctionResponse;
    use prost::Message;

    fn reply(list: usize, log: usize, limit: usize) -> (Reply, EvaluateFunctionResponse) {
        let outcome = Outcome { stdout: vec![b'l'; list], stderr: vec![b'e'; log], envelope: Envelope::default() };
        let reply = Reply::of(outcome, limit);
        let bytes = reply.pieces.iter().flatten().copied().collect::<Vec<_>>();
        assert_eq!(bytes.len(), PREFIX + reply.message_size);
        assert_eq!(
            bytes[..PREFIX],
            [&[0], u32::try_from(reply.message_size).unwrap().to_be_bytes().as_slice()].concat()
        );
        (reply, EvaluateFunctionResponse::decode(&bytes[PREFIX..]).unwrap())
    }

    #[test]
    fn a_message_is_what_the_proto_says_in_one_piece_or_several() {
        for (list, log, pieces) in [(10, 0, 1), (10, 20, 1), (SMALL, 0, 2), (SMALL, 5, 3), (5, SMALL, 2), (0, 0, 1)] {
            let (reply, message) = reply(list, log, 10_000_000);
            assert_eq!((message.resource_list.len(), message.log.len(), reply.pieces.len()), (list, log, pieces));
        }
    }

    #[test]
    fn a_log_is_cut_so_that_the_message_fits() {
        let (reply, message) = reply(900, 5000, 1500);
        assert_eq!(message.resource_list.len(), 900);
        assert!(reply.message_size <= 1500 && message.log.len() > 400, "{}", reply.message_size);
    }
}
