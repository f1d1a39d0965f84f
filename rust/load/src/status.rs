//! How a call ended that was not answered, as gRPC has it: code, message, and whether it says when to try again.

use std::fmt;

use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use h2::Reason;
use http::HeaderMap;

pub const CANCELLED: u8 = 1;
pub const UNKNOWN: u8 = 2;
pub const DEADLINE_EXCEEDED: u8 = 4;
pub const RESOURCE_EXHAUSTED: u8 = 8;
pub const INTERNAL: u8 = 13;
const UNAVAILABLE: u8 = 14;

const NAMES: [&str; 17] = [
    "OK",
    "Canceled",
    "Unknown",
    "InvalidArgument",
    "DeadlineExceeded",
    "NotFound",
    "AlreadyExists",
    "PermissionDenied",
    "ResourceExhausted",
    "FailedPrecondition",
    "Aborted",
    "OutOfRange",
    "Unimplemented",
    "Internal",
    "Unavailable",
    "DataLoss",
    "Unauthenticated",
];

const BASE64: GeneralPurpose = GeneralPurpose::new(
    &STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

#[derive(Debug)]
pub struct Status {
    pub code: u8,
    message: String,
    details: Vec<u8>,
}

impl Status {
    pub fn new(code: u8, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), details: Vec::new() }
    }

    /// From trailers, or from the headers of an answer that has nothing else; None if they do not say.
    pub fn read(headers: &HeaderMap) -> Option<Result<(), Self>> {
        let code = headers.get("grpc-status")?.as_bytes();
        if code == b"0" {
            return Some(Ok(()));
        }
        let code = std::str::from_utf8(code).ok().and_then(|code| code.parse().ok()).unwrap_or(UNKNOWN);
        let message = headers.get("grpc-message").map(|message| percent_decoded(message.as_bytes()));
        let details = headers.get("grpc-status-details-bin").and_then(|details| BASE64.decode(details).ok());
        Some(Err(Self { code, message: message.unwrap_or_default(), details: details.unwrap_or_default() }))
    }

    /// Whether the details, a `google.rpc.Status`, have a `RetryInfo` among them.
    pub fn says_when_to_retry(&self) -> bool {
        fields(&self.details, 3)
            .any(|detail| fields(detail, 1).any(|type_url| type_url.ends_with(b"/google.rpc.RetryInfo")))
    }
}

impl fmt::Display for Status {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { code, message, .. } = self;
        match NAMES.get(usize::from(*code)) {
            Some(name) => write!(formatter, "rpc error: code = {name} desc = {message}"),
            None => write!(formatter, "rpc error: code = Code({code}) desc = {message}"),
        }
    }
}

impl std::error::Error for Status {}

impl From<h2::Error> for Status {
    fn from(error: h2::Error) -> Self {
        let code = match error.reason() {
            Some(Reason::CANCEL) if error.is_reset() => CANCELLED,
            Some(Reason::ENHANCE_YOUR_CALM) if error.is_reset() => RESOURCE_EXHAUSTED,
            Some(Reason::REFUSED_STREAM) => UNAVAILABLE,
            Some(_) if error.is_reset() => INTERNAL,
            _ => UNAVAILABLE,
        };
        Self::new(code, error.to_string())
    }
}

/// The values of a field that has bytes, in an encoded message; they end where it is broken.
fn fields(message: &[u8], wanted: u64) -> impl Iterator<Item = &[u8]> {
    let mut rest = message;
    std::iter::from_fn(move || {
        loop {
            let tag = varint(&mut rest)?;
            let length = match tag & 7 {
                0 => {
                    varint(&mut rest)?;
                    0
                }
                1 => 8,
                2 => usize::try_from(varint(&mut rest)?).ok()?,
                5 => 4,
                _ => return None,
            };
            let value;
            (value, rest) = rest.split_at_checked(length)?;
            if tag == wanted << 3 | 2 {
                return Some(value);
            }
        }
    })
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, tail) = rest.split_first()?;
        *rest = tail;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

fn percent_decoded(text: &[u8]) -> String {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        let escaped = tail.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(byte) = escaped.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            decoded.push(byte);
            rest = &tail[2..];
        } else {
            decoded.push(*first);
            rest = tail;
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(number: u8, value: &[u8]) -> Vec<u8> {
        let mut encoded = vec![number << 3 | 2, u8::try_from(value.len()).unwrap()];
        encoded.extend_from_slice(value);
        encoded
    }

    fn read(pairs: &[(&'static str, &str)]) -> Option<Result<(), Status>> {
        Status::read(&pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect())
    }

    #[test]
    fn what_trailers_say() {
        assert!(read(&[("other", "0")]).is_none());
        assert!(read(&[("grpc-status", "0")]).unwrap().is_ok());
        let status =
            read(&[("grpc-status", "8"), ("grpc-message", "full: 100%25, %C3%A4 %zz %")]).unwrap().unwrap_err();
        assert_eq!(status.to_string(), "rpc error: code = ResourceExhausted desc = full: 100%, ä %zz %");
        assert!(!status.says_when_to_retry());
        assert_eq!(
            read(&[("grpc-status", "77")]).unwrap().unwrap_err().to_string(),
            "rpc error: code = Code(77) desc = "
        );
    }

    #[test]
    fn retry_info_among_the_details() {
        let other = message(3, &message(1, b"type.googleapis.com/google.rpc.ErrorInfo"));
        let mut info = message(1, b"type.googleapis.com/google.rpc.RetryInfo");
        info.extend(message(2, b"\x0a\x02\x08\x01"));
        let mut details = vec![0x08, 0x08];
        details.extend(message(2, b"full"));
        details.extend(other);
        for (has_info, details) in [(false, details.clone()), (true, [details, message(3, &info)].concat())] {
            // With padding or without it.
            let encoded = BASE64.encode(&details);
            for text in [encoded.as_str(), encoded.trim_end_matches('=')] {
                let status = read(&[("grpc-status", "8"), ("grpc-status-details-bin", text)]).unwrap().unwrap_err();
                assert_eq!(status.says_when_to_retry(), has_info);
            }
        }
        assert!(!Status { details: vec![0x1a, 0x7f, 0xff], ..Status::new(8, "cut off") }.says_when_to_retry());
    }
}
