//! Errors as gRPC statuses that every client can receive.
//!
//! Clients refuse a call whose trailers are larger than their limit (8 KiB by default), and some close the whole
//! connection with all its other calls. So a message is cut until all trailers together, as they are sent, fit into
//! `TRAILER_BUDGET`. Details come on top of code and message, which make sense alone.

use std::fmt::Write;
use std::time::Duration;

use prost::Message;
use tonic::Status;

use super::messages::{Any, ErrorInfo, ProtoDuration, RetryInfo, RpcStatus};
use crate::errors::EvaluationError;

const TRAILER_BUDGET: usize = 8000;
const DOMAIN: &str = "krm-runner";
const MAX_FACT_LENGTH: usize = 256;
const HEADER_OVERHEAD: usize = 32;
const HALF_A_SECOND: Duration = Duration::from_millis(500);

/// Code, message and details, small enough for a stock client; of a call in that runtime.
pub fn status_of(error: &EvaluationError, image: &str, runtime: &str) -> Status {
    let facts = [("image", image.to_owned()), ("runtime", runtime.to_owned())].into_iter().chain(error.facts.clone());
    let information = ErrorInfo {
        reason: error.reason.to_owned(),
        domain: DOMAIN.to_owned(),
        metadata: facts
            .filter(|(_, value)| !value.is_empty())
            .map(|(name, value)| (name.to_owned(), value.chars().take(MAX_FACT_LENGTH).collect()))
            .collect(),
    };
    let mut details = vec![pack("google.rpc.ErrorInfo", &information)];
    if let Some(delay) = error.retry_after {
        let seconds = i64::try_from((delay + HALF_A_SECOND).as_secs()).unwrap_or(1).max(1);
        let retry = RetryInfo { retry_delay: Some(ProtoDuration { seconds, nanos: 0 }) };
        details.push(pack("google.rpc.RetryInfo", &retry));
    }
    let mut status = RpcStatus { code: error.code as i32, message: String::new(), details };
    status.message = fit(&error.message, |message| {
        status.message.clear();
        status.message.push_str(message);
        trailers_size(message, status.encoded_len()) <= TRAILER_BUDGET
    });
    Status::with_details(error.code, status.message.clone(), status.encode_to_vec().into())
}

fn pack(name: &str, detail: &impl Message) -> Any {
    Any { type_url: format!("type.googleapis.com/{name}"), value: detail.encode_to_vec() }
}

/// What the trailers weigh by HTTP/2's own count: percent-encoded message, base64 details, names, overhead.
fn trailers_size(message: &str, details_size: usize) -> usize {
    let others: usize = [
        (":status", 3),
        ("content-type", "application/grpc".len()),
        ("date", "Thu, 01 Jan 1970 00:00:00 GMT".len()),
        ("grpc-status", 2),
        ("grpc-message", 0),
        ("grpc-status-details-bin", 0),
    ]
    .iter()
    .map(|(name, value)| name.len() + value + HEADER_OVERHEAD)
    .sum();
    let message_size: usize = message.bytes().map(|byte| if is_sent_as_it_is(byte) { 1 } else { 3 }).sum();
    others + message_size + details_size.div_ceil(3) * 4
}

/// tonic's rule, which is stricter than gRPC's.
fn is_sent_as_it_is(byte: u8) -> bool {
    byte.is_ascii_graphic() && !b"\"#%<>`?{}".contains(&byte)
}

/// The message, or as much of its beginning and end as fits, with a line that says how much is missing.
fn fit(message: &str, mut fits: impl FnMut(&str) -> bool) -> String {
    let length = message.chars().count();
    if length <= TRAILER_BUDGET && fits(message) {
        return message.to_owned();
    }
    // Of megabytes only the ends are looked at.
    let most = length.min(TRAILER_BUDGET);
    let ends =
        Ends { head: message.chars().take(most).collect(), tail: message.chars().rev().take(most).collect(), length };
    let (mut fitting, mut too_long) = (0, most);
    while too_long - fitting > 1 {
        let middle = usize::midpoint(fitting, too_long);
        if fits(&ends.cut(middle)) {
            fitting = middle;
        } else {
            too_long = middle;
        }
    }
    ends.cut(fitting)
}

/// Of a message with so many characters.
struct Ends {
    head: Vec<char>,
    /// The last one first.
    tail: Vec<char>,
    length: usize,
}

impl Ends {
    /// So many of its characters.
    fn cut(&self, keep: usize) -> String {
        let head = keep.div_ceil(2);
        let mut text: String = self.head[..head].iter().collect();
        let _ = write!(text, "\n... [{} characters cut] ...\n", self.length - keep);
        text.extend(self.tail[..keep - head].iter().rev());
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent_size(status: &Status) -> usize {
        let headers = status.clone().into_http::<()>().headers().clone();
        let date = "date".len() + 29 + HEADER_OVERHEAD + ":status".len() + 3 + HEADER_OVERHEAD;
        headers.iter().map(|(name, value)| name.as_str().len() + value.len() + HEADER_OVERHEAD).sum::<usize>() + date
    }

    #[test]
    fn whatever_the_message_it_fits() {
        for text in ["x".repeat(100), "x".repeat(100_000), "ä%\n ".repeat(5000), "\u{1f600}".repeat(3000)] {
            let status = status_of(&EvaluationError::invalid_request(text.clone()), &"i".repeat(5000), "pod");
            assert!(sent_size(&status) <= TRAILER_BUDGET, "{}", sent_size(&status));
            if text.len() > 1000 {
                assert!(sent_size(&status) > TRAILER_BUDGET - 200, "{}", sent_size(&status));
                assert!(status.message().contains("characters cut"));
            }
        }
    }

    #[test]
    fn what_is_left_of_a_long_message_is_its_beginning_and_its_end() {
        let text: String = (0..100_000).map(|number| format!("{number} ")).collect();
        let status = status_of(&EvaluationError::invalid_request(text.clone()), "image", "pod");
        let (head, rest) = status.message().split_once("\n... [").unwrap();
        let (cut, tail) = rest.split_once(" characters cut] ...\n").unwrap();
        assert!(text.starts_with(head) && text.ends_with(tail) && head.len() > 1000 && tail.len() > 1000);
        assert_eq!(cut.parse::<usize>().unwrap(), text.len() - head.len() - tail.len());
    }

    #[test]
    fn details_carry_code_message_and_reason() {
        let status = status_of(&EvaluationError::queue_full("f", 3), "image", "pod");
        let details = RpcStatus::decode(status.details()).unwrap();
        assert_eq!((details.code, details.message.as_str()), (8, status.message()));
        let information = ErrorInfo::decode(details.details[0].value.as_slice()).unwrap();
        assert_eq!(information.reason, "QUEUE_FULL");
        assert_eq!(information.metadata["image"], "image");
        let retry = RetryInfo::decode(details.details[1].value.as_slice()).unwrap();
        assert_eq!(retry.retry_delay.unwrap().seconds, 1);
    }
}
