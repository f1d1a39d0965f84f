//! What both servers of `EvaluateFunction` agree on: its name, deadlines, sizes and codes.

use std::time::Duration;

use http::HeaderMap;
use tonic::Code;

pub const SERVICE: &str = "evaluator.FunctionEvaluator";
pub const METHOD: &str = "/evaluator.FunctionEvaluator/EvaluateFunction";

const MAX_SHOWN_IMAGE: usize = 256;
const DEADLINE_MARGIN: Duration = Duration::from_millis(20);
/// A hundred years: there is no moment on the clock that is as far away as a caller may ask.
pub const LONGEST_TIMEOUT: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// The largest resource list that an answer of at most `message_limit` bytes can hold.
pub fn max_resource_list(message_limit: usize) -> usize {
    message_limit.saturating_sub(field_overhead(message_limit))
}

pub fn field_overhead(size: usize) -> usize {
    1 + prost::encoding::encoded_len_varint(size as u64)
}

/// How long a call has. A little less than the caller's own timer, so that it is our message that a person sees.
pub fn time_for(headers: &HeaderMap, default: Duration) -> Duration {
    let timeout = timeout_of(headers);
    let margin = timeout.map_or(Duration::ZERO, |timeout| DEADLINE_MARGIN.min(timeout / 20));
    timeout.unwrap_or(default).min(LONGEST_TIMEOUT).saturating_sub(margin)
}

/// What the caller allows, by gRPC's own header.
pub fn timeout_of(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let number: u64 = number.parse().ok()?;
    match unit {
        "H" => Some(Duration::from_secs(number.checked_mul(3600)?)),
        "M" => Some(Duration::from_secs(number.checked_mul(60)?)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// As it stands in messages and logs.
pub fn shown(image: &str) -> String {
    if image.chars().count() <= MAX_SHOWN_IMAGE {
        return image.to_owned();
    }
    image.chars().take(MAX_SHOWN_IMAGE).chain("...".chars()).collect()
}

/// As gRPC spells it.
pub fn code_name(code: Code) -> &'static str {
    match code {
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::Unauthenticated => "UNAUTHENTICATED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        Code::Unavailable => "UNAVAILABLE",
        Code::DeadlineExceeded => "DEADLINE_EXCEEDED",
        Code::Internal => "INTERNAL",
        _ => "UNKNOWN",
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::rpc::messages::EvaluateFunctionResponse;

    #[test]
    fn timeouts_are_read_as_grpc_writes_them() {
        for (text, expected) in [
            ("5S", Some(Duration::from_secs(5))),
            ("1500m", Some(Duration::from_millis(1500))),
            ("2H", Some(Duration::from_secs(7200))),
            ("99999999n", Some(Duration::from_nanos(99_999_999))),
            ("18446744073709551615S", Some(Duration::from_secs(u64::MAX))),
            ("18446744073709551615H", None),
            ("", None),
            ("5", None),
            ("x5S", None),
        ] {
            let headers =
                HeaderMap::from_iter([(http::header::HeaderName::from_static("grpc-timeout"), text.parse().unwrap())]);
            assert_eq!(timeout_of(&headers), expected, "{text}");
        }
    }

    #[test]
    fn an_answer_has_room_for_the_list_alone() {
        for limit in [1024, 6_291_456] {
            let size = max_resource_list(limit);
            let response = EvaluateFunctionResponse { resource_list: vec![0; size].into(), log: Bytes::new() };
            assert!(prost::Message::encoded_len(&response) <= limit);
        }
    }
}
