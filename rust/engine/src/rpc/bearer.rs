//! Bearer tokens in the header `authorization`.

use http::HeaderMap;
use http::header::AUTHORIZATION;

const SCHEME: &str = "bearer ";

/// What is wrong with the header of a call that should carry a token.
#[derive(Debug, PartialEq, Eq)]
pub enum HeaderFault {
    Missing,
    Malformed,
}

/// Return the token of a call, which must be sent exactly once.
pub fn token_of(headers: &HeaderMap) -> Result<&[u8], HeaderFault> {
    let mut values = headers.get_all(AUTHORIZATION).iter();
    let value = values.next().ok_or(HeaderFault::Missing)?.as_bytes();
    let (scheme, token) = value.split_at_checked(SCHEME.len()).ok_or(HeaderFault::Malformed)?;
    if values.next().is_some() || !scheme.eq_ignore_ascii_case(SCHEME.as_bytes()) {
        return Err(HeaderFault::Malformed);
    }
    Ok(token.trim_ascii_start())
}

/// Compare two secrets in a time that depends on their lengths alone.
pub fn is_equal(one: &[u8], other: &[u8]) -> bool {
    let difference = one.iter().zip(other).fold(0, |found, (one, other)| std::hint::black_box(found | (one ^ other)));
    one.len() == other.len() && difference == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_sent_once_with_its_scheme() {
        for (values, expected) in [
            (&["Bearer abc="][..], Ok(&b"abc="[..])),
            (&["bEARER   abc="], Ok(b"abc=")),
            (&["Bearer "], Ok(b"")),
            (&["Bearer"], Err(HeaderFault::Malformed)),
            (&["abc="], Err(HeaderFault::Malformed)),
            (&["Basic abc="], Err(HeaderFault::Malformed)),
            (&[""], Err(HeaderFault::Malformed)),
            (&["Bearer abc=", "Bearer abc="], Err(HeaderFault::Malformed)),
            (&[], Err(HeaderFault::Missing)),
        ] {
            let headers: HeaderMap = values.iter().map(|value| (AUTHORIZATION, value.parse().unwrap())).collect();
            assert_eq!(token_of(&headers), expected, "{values:?}");
        }
    }

    #[test]
    fn equal_means_equal_in_length_and_in_every_byte() {
        for (one, other, expected) in
            [("abc", "abc", true), ("abc", "abd", false), ("abc", "abcd", false), ("", "", true)]
        {
            assert_eq!(is_equal(one.as_bytes(), other.as_bytes()), expected, "{one} {other}");
        }
    }
}
