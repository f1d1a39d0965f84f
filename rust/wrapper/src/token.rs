//! The token that callers must show, where the pod was given one.
//!
//! It comes in a variable of the environment, which is taken out again before a function can be started with it.

use engine::rpc::bearer::{HeaderFault, is_equal, token_of};
use http::HeaderMap;

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

    /// Return why a call is refused; nothing if it carries the token.
    pub fn fault(&self, headers: &HeaderMap) -> Option<&'static str> {
        match token_of(headers) {
            Ok(token) if is_equal(token, &self.0) => None,
            Ok(_) => Some("the call's token is not that of this pod"),
            Err(HeaderFault::Missing) => Some("the call has no token"),
            Err(HeaderFault::Malformed) => Some("the call's \"authorization\" is no token"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_itself_is_let_in() {
        let token = Token::new(b"c2VjcmV0").unwrap();
        for (value, is_let_in) in [("Bearer c2VjcmV0", true), ("Bearer d2VjcmV0", false), ("c2VjcmV0", false)] {
            let headers = HeaderMap::from_iter([(http::header::AUTHORIZATION, value.parse().unwrap())]);
            assert_eq!(token.fault(&headers).is_none(), is_let_in, "{value}");
        }
        assert!(token.fault(&HeaderMap::new()).is_some());
    }

    #[test]
    fn what_is_no_token_is_refused() {
        for value in [&b""[..], b"with space", b"line\n", b"\xff"] {
            assert!(Token::new(value).is_err_and(|why| why.contains(VARIABLE)));
        }
    }
}
