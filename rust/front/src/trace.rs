//! The W3C trace context of a call: the caller's trace or a new one, and whether it is sampled.
//!
//! The control plane exports the spans, from the records of calls; here they get their identifiers, which pods must know
//! while the call is in flight.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

use http::HeaderMap;
use ring::rand::{SecureRandom, SystemRandom};

use crate::messages::{Header, Sampler, Span};

const PARENT: &str = "traceparent";
const STATE: &str = "tracestate";
/// A longer state is not passed on, as the specification allows.
const LONGEST_STATE: usize = 512;
const MOST_MEMBERS: usize = 32;
const SAMPLED: u8 = 1;

/// The span of one call.
#[derive(Clone)]
pub struct Trace {
    span: Span,
    is_sampled: bool,
}

/// A caller's trace context.
struct Parent {
    trace_id: [u8; 16],
    span_id: [u8; 8],
    is_sampled: bool,
}

impl Trace {
    /// Begin the span of a call that arrives now.
    pub fn begin(sampler: &Sampler, headers: &HeaderMap) -> Self {
        let parent = parent_of(headers);
        let trace_id = parent.as_ref().map_or_else(random, |parent| parent.trace_id);
        let is_sampled = match &parent {
            Some(parent) if sampler.follows_caller => parent.is_sampled,
            _ => is_in_share(sampler.share, trace_id),
        };
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let span = Span {
            trace_id: trace_id.to_vec(),
            span_id: random::<8>().to_vec(),
            trace_state: if parent.is_some() { state_of(headers) } else { String::new() },
            parent_id: parent.map(|parent| parent.span_id.to_vec()).unwrap_or_default(),
            started_at: u64::try_from(since.as_nanos()).unwrap_or(u64::MAX),
        };
        Self { span, is_sampled }
    }

    /// What is reported of the call; nothing if it is not sampled.
    pub fn sampled(&self) -> Option<Span> {
        self.is_sampled.then(|| self.span.clone())
    }

    /// The headers that tell a pod that its part belongs to this span.
    pub fn headers(&self) -> impl Iterator<Item = Header> {
        let flags = if self.is_sampled { SAMPLED } else { 0 };
        let value = format!("00-{}-{}-{flags:02x}", hex(&self.span.trace_id), hex(&self.span.span_id));
        let state = Some(self.span.trace_state.clone()).filter(|state| !state.is_empty());
        let named = |name: &str, value| Header { name: name.to_owned(), value };
        std::iter::once(named(PARENT, value)).chain(state.map(|state| named(STATE, state)))
    }
}

/// Decide by the last bytes of the trace, as OpenTelemetry's SDKs do, so that all of them decide alike.
fn is_in_share(share: f64, trace_id: [u8; 16]) -> bool {
    let last = trace_id.last_chunk().copied().unwrap_or_default();
    #[expect(clippy::cast_precision_loss, reason = "the share has no more digits")]
    let position = u64::from_be_bytes(last) as f64 / 2.0_f64.powi(64);
    share >= 1.0 || position < share
}

fn parent_of(headers: &HeaderMap) -> Option<Parent> {
    let mut values = headers.get_all(PARENT).iter();
    let text = values.next()?.to_str().ok()?;
    if values.next().is_some() {
        return None;
    }
    let mut fields = text.split('-');
    let version = field::<1>(fields.next()?)?;
    let trace_id = field::<16>(fields.next()?)?;
    let span_id = field::<8>(fields.next()?)?;
    let [flags] = field::<1>(fields.next()?)?;
    let is_valid = match version {
        [0] => fields.next().is_none(),
        // Later versions may have further fields.
        [version] => version != 0xff,
    };
    let is_named = trace_id != [0; 16] && span_id != [0; 8];
    (is_valid && is_named).then_some(Parent { trace_id, span_id, is_sampled: flags & SAMPLED != 0 })
}

fn field<const SIZE: usize>(text: &str) -> Option<[u8; SIZE]> {
    let is_hex = text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if text.len() != 2 * SIZE || !is_hex {
        return None;
    }
    let mut bytes = [0; SIZE];
    for (byte, start) in bytes.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(&text[start..start + 2], 16).ok()?;
    }
    Some(bytes)
}

fn state_of(headers: &HeaderMap) -> String {
    let values: Vec<_> = headers.get_all(STATE).iter().filter_map(|value| value.to_str().ok()).collect();
    Some(values.join(",")).filter(|state| is_valid_state(state)).unwrap_or_default()
}

/// Whether a list of `key=value` is one that every tracing system accepts.
fn is_valid_state(state: &str) -> bool {
    let mut keys = HashSet::new();
    state.len() <= LONGEST_STATE
        && state.split(',').all(|member| {
            let (key, value) = member.trim().split_once('=').unwrap_or_default();
            let is_key = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-*/@".contains(&byte);
            let is_value = |byte: u8| (b' '..=b'~').contains(&byte) && byte != b'=';
            let starts_well = key.starts_with(|first: char| first.is_ascii_lowercase() || first.is_ascii_digit());
            starts_well
                && key.bytes().all(is_key)
                && !value.is_empty()
                && value.bytes().all(is_value)
                && keys.insert(key)
        })
        && keys.len() <= MOST_MEMBERS
}

fn random<const SIZE: usize>() -> [u8; SIZE] {
    let mut bytes = [0; SIZE];
    // An identifier of zeros is invalid; a system without randomness, or that chance, is not worth an error.
    let _ = SystemRandom::new().fill(&mut bytes);
    bytes[SIZE - 1] = bytes[SIZE - 1].max(1);
    bytes
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
    const CALLER: &str = "00f067aa0ba902b7";

    fn begin(sampler: &Sampler, parents: &[&str]) -> Trace {
        let mut headers: HeaderMap =
            parents.iter().map(|value| (http::HeaderName::from_static(PARENT), value.parse().unwrap())).collect();
        headers.insert(STATE, "vendor=1".parse().unwrap());
        Trace::begin(sampler, &headers)
    }

    fn always() -> Sampler {
        Sampler { follows_caller: true, share: 1.0 }
    }

    #[test]
    fn a_call_goes_on_with_the_trace_of_its_caller() {
        let trace = begin(&always(), &[&format!("00-{TRACE}-{CALLER}-01")]);
        let span = trace.sampled().unwrap();
        assert_eq!((hex(&span.trace_id).as_str(), hex(&span.parent_id).as_str()), (TRACE, CALLER));
        let headers: Vec<_> = trace.headers().map(|header| (header.name, header.value)).collect();
        let expected = format!("00-{TRACE}-{}-01", hex(&span.span_id));
        assert_eq!(headers, [(PARENT.to_owned(), expected), (STATE.to_owned(), "vendor=1".to_owned())]);
    }

    #[test]
    fn a_context_that_is_not_valid_starts_a_new_trace() {
        for (parents, reason) in [
            (vec![], "there is none"),
            (vec!["x".to_owned()], "garbage"),
            (vec![format!("00-{TRACE}-{CALLER}-1")], "short flags"),
            (vec![format!("00-{TRACE}-{CALLER}-01-x")], "a further field in version 0"),
            (vec![format!("ff-{TRACE}-{CALLER}-01")], "the version that is never used"),
            (vec![format!("00-{}-{CALLER}-01", TRACE.to_uppercase())], "upper case"),
            (vec![format!("00-{}-{CALLER}-01", "0".repeat(32))], "no trace"),
            (vec![format!("00-{TRACE}-{}-01", "0".repeat(16))], "no span"),
            (vec![format!("00-{TRACE}-{CALLER}-01"); 2], "two of them"),
        ] {
            let parents: Vec<_> = parents.iter().map(String::as_str).collect();
            let span = begin(&always(), &parents).sampled().unwrap();
            assert!(span.parent_id.is_empty() && span.trace_state.is_empty(), "{reason}");
            assert_ne!(hex(&span.trace_id), TRACE, "{reason}");
        }
        let later = begin(&always(), &[&format!("01-{TRACE}-{CALLER}-01-x")]).sampled().unwrap();
        assert_eq!(hex(&later.trace_id), TRACE, "a later version may have more fields");
    }

    #[test]
    fn a_state_is_passed_on_if_every_member_is_valid() {
        let many: Vec<_> = (0..=MOST_MEMBERS).map(|number| format!("k{number}=v")).collect();
        for (state, expected) in [
            ("a=b", true),
            ("a=b, tenant@vendor=x y", true),
            ("a", false),
            ("a=", false),
            ("A=b", false),
            ("a=b=c", false),
            ("a=b,a=c", false),
            (many.join(",").as_str(), false),
            (many[1..].join(",").as_str(), true),
            ("a=", false),
        ] {
            assert_eq!(is_valid_state(state), expected, "{state}");
        }
    }

    #[test]
    fn the_caller_decides_where_it_is_followed_and_the_share_otherwise() {
        let (sampled, unsampled) = (format!("00-{TRACE}-{CALLER}-01"), format!("00-{TRACE}-{CALLER}-00"));
        // The trace is at 0.64 of all.
        for (follows_caller, share, parent, expected) in [
            (true, 0.0, Some(&sampled), true),
            (true, 1.0, Some(&unsampled), false),
            (false, 0.6, Some(&sampled), false),
            (false, 0.7, Some(&unsampled), true),
            (true, 0.0, None, false),
            (true, 1.0, None, true),
        ] {
            let parents: Vec<_> = parent.iter().map(|text| text.as_str()).collect();
            let trace = begin(&Sampler { follows_caller, share }, &parents);
            assert_eq!(trace.sampled().is_some(), expected, "{follows_caller} {share} {parent:?}");
            let flags = if expected { "-01" } else { "-00" };
            assert!(trace.headers().next().unwrap().value.ends_with(flags));
        }
    }
}
