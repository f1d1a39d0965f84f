"""Tokens of callers: how they are written down, and what is said of those that do not count."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krm_runner.core.bearer_tokens import BearerTokens, authorization, secret_lines
from krm_runner.core.errors import ConfigurationError

OLD, NEW = "b2xkIHRva2VuIG9sZCB0b2tlbg==", "bmV3IHRva2VuIG5ldyB0b2tlbg=="
FILE = f"# since spring\n{OLD}\n\n  {NEW}\r\n".encode()


def tokens(text: bytes = FILE) -> BearerTokens:
    return BearerTokens.parse(text, source="tokens")


@pytest.mark.parametrize("shown", [f"Bearer {OLD}", f"bearer {NEW}", f"BEARER   {NEW}", authorization(OLD)])
def test_every_token_of_the_file_counts(shown: str) -> None:
    assert tokens().fault([shown]) == ""


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        ([], 'the call has no token; send "authorization: Bearer <token>" in its metadata'),
        (["Basic dXNlcjpwYXNzd29yZA=="], '"authorization" is no token'),
        ([OLD], '"authorization" is no token'),
        ([f"Bearer {OLD}", f"Bearer {OLD}"], "once"),
        ([f"Bearer {OLD[:-1]}"], "not, or no longer, accepted"),
        ([f"Bearer {OLD} "], "not, or no longer, accepted"),
        (["Bearer "], "not, or no longer, accepted"),
        (["Bearer # since spring"], "not, or no longer, accepted"),
        (["Bearer \udc80"], "not, or no longer, accepted"),
    ],
)
def test_what_does_not_count_is_said(shown: list[str], why: str) -> None:
    assert why in tokens().fault(shown)


@given(st.text())
def test_nothing_else_is_let_in_and_nothing_breaks_the_look(text: str) -> None:
    assert tokens().fault([text]) != ""
    assert tokens().fault([f"Bearer {text}"]) != ""


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
