"""Tokens of callers: how a file of them is written, and which files are refused."""

from __future__ import annotations

import hashlib

import pytest

from krm_runner.core.bearer_tokens import BearerTokens, secret_lines
from krm_runner.core.errors import ConfigurationError

OLD, NEW = "b2xkIHRva2VuIG9sZCB0b2tlbg==", "bmV3IHRva2VuIG5ldyB0b2tlbg=="
FILE = f"# since spring\n{OLD}\n\n  {NEW}\r\n".encode()


def tokens(text: bytes = FILE) -> BearerTokens:
    return BearerTokens.parse(text, source="tokens")


def test_of_every_token_of_the_file_its_digest_is_kept() -> None:
    assert tokens().digests == tuple(hashlib.sha256(token.encode()).digest() for token in (OLD, NEW))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "tokens has no token in it"),
        (b"# nothing\n\n", "tokens has no token in it"),
        (f"{OLD}\nshort\n".encode(), "tokens, line 2: a token has at least 16 characters"),
        (b"a token with spaces in it", "tokens, line 1: a token has letters, digits"),
        (bytes(range(256)), "line 1"),
    ],
)
def test_a_file_without_tokens_is_refused_and_not_shown(text: bytes, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as raised:
        tokens(text)
    assert "short" not in str(raised.value)
    assert "spaces" not in str(raised.value)


def test_files_with_the_same_tokens_are_the_same() -> None:
    assert tokens() == tokens(f"{OLD}\n{NEW}".encode())
    assert tokens() != tokens(OLD.encode())
    assert len({tokens(), tokens()}) == 1
    assert OLD not in repr(tokens())
    assert OLD not in repr(secret_lines(FILE, source="", what="", shortest=1))
