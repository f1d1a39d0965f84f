//! The token that callers must show, where the pod was given one.
//!
//! It comes in a variable of the environment, which is taken out again before a function can be started with it.

use http::HeaderMap;
use http::header::AUTHORIZATION;

pub const VARIABLE: &str = "KRM_RUNNER_TOKEN";

/// Never shown: it has no `Debug` and no `Display`.
pub struct Token(Vec<u8>);

impl Token {
    /// Nothing when the variable is not set; the message says what is wrong with it, and not what is in it.
    pub fn take() -> Result<Option<Self>, String> {
        let Some(value) = std::env::var_os(VARIABLE) else { return Ok(None) };
        // SAFETY: called at the start of main, when there is no other thread.
        unsafe { std::env::remove_var(VARIABLE) };
        Self::new(value.as_encoded_bytes()).map(Some)
    }

    fn new(value: &[u8]) -> Result<Self, String> {
        if value.is_empty() || !value.iter().all(u8::is_ascii_graphic) {
            return Err(format!("the variable {VARIABLE} is set, but to no token"));
        }
        Ok(Self(value.to_vec()))
    }

    /// Why a call is not let in.
    pub fn fault(&self, headers: &HeaderMap) -> Option<&'static str> {
        let mut shown = headers.get_all(AUTHORIZATION).iter();
        let Some(first) = shown.next() else { return Some("the call has no token") };
        let (scheme, token) = first.as_bytes().split_at_checked(7).unwrap_or_default();
        if shown.next().is_some() || !scheme.eq_ignore_ascii_case(b"bearer ") {
            return Some("the call's \"authorization\" is no token");
        }
        if is_equal(token, &self.0) { None } else { Some("the call's token is not that of this pod") }
    }
}

/// In a time that says nothing but whether the lengths are the same.
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let difference = one.iter().zip(other).fold(0, |found, (one, other)| std::hint::black_box(found | (one ^ other)));
    one.len() == other.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (AUTHORIZATION, value.parse().unwrap())).collect()
    }

    #[test]
    fn only_the_token_itself_is_let_in() {
        let token = Token::new(b"c2VjcmV0").unwrap();
        for (shown, is_let_in) in [
            (&["Bearer c2VjcmV0"][..], true),
            (&["bearer c2VjcmV0"], true),
            (&["Bearer c2VjcmV"], false),
            (&["Bearer c2VjcmV0x"], false),
            (&["Bearer d2VjcmV0"], false),
            (&["Bearer "], false),
            (&["Bearer"], false),
            (&["c2VjcmV0"], false),
            (&["Basic c2VjcmV0"], false),
            (&[""], false),
            (&["Bearer c2VjcmV0", "Bearer c2VjcmV0"], false),
            (&[], false),
        ] {
            assert_eq!(token.fault(&headers(shown)).is_none(), is_let_in, "{shown:?}");
        }
    }

    #[test]
    fn what_is_no_token_is_refused() {
        for value in [&b""[..], b"with space", b"line\n", b"\xff"] {
            assert!(Token::new(value).is_err_and(|why| why.contains(VARIABLE)));
        }
    }
}
