"""Tokens that callers show: `authorization: Bearer <token>`.

A file has one token a line, so that an old and a new one count together while callers change over. They are compared in
a time that tells nothing of them, and only their hashes are kept.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence

from krm_runner.core.errors import ConfigurationError
from krm_runner.core.secret import Secret

HEADER = "authorization"
SHORTEST_TOKEN = 16
MAX_SECRETS = 1000

_BEARER = re.compile("bearer +(.*)", re.IGNORECASE | re.DOTALL)
_TOKEN = re.compile(r"[A-Za-z0-9._~+/-]+=*")


def secret_lines(text: bytes, *, source: str, what: str, shortest: int) -> list[Secret]:
    """The lines of a file of secrets; empty ones and those that begin with # do not count. ConfigurationError says
    what is wrong with it, and nothing of what is in it."""
    found: list[Secret] = []
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.strip().decode("ascii", "replace")
        if not content or content.startswith("#"):
            continue
        if not _TOKEN.fullmatch(content):
            raise ConfigurationError(
                f"{source}, line {number}: a {what} has letters, digits and . _ ~ + / - = only, as from "
                "`openssl rand -base64 32`"
            )
        if len(content) < shortest:
            raise ConfigurationError(f"{source}, line {number}: a {what} has at least {shortest} characters")
        found.append(Secret(content))
        if len(found) > MAX_SECRETS:
            # Each call is compared with all of them.
            raise ConfigurationError(f"{source} has more than {MAX_SECRETS} lines with a {what}")
    if not found:
        raise ConfigurationError(f"{source} has no {what} in it")
    return found


def authorization(token: str) -> str:
    """What a call says that shows a token."""
    return f"Bearer {token}"


class BearerTokens:
    """Those that are accepted."""

    def __init__(self, tokens: Sequence[Secret]) -> None:
        self._digests = tuple(_digest(token.reveal()) for token in tokens)

    @classmethod
    def parse(cls, text: bytes, *, source: str) -> BearerTokens:
        """The tokens of a file; ConfigurationError when there is none, or a line is no token."""
        return cls(secret_lines(text, source=source, what="token", shortest=SHORTEST_TOKEN))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BearerTokens) and self._digests == other._digests

    def __hash__(self) -> int:
        return hash(self._digests)

    def fault(self, shown: Sequence[str]) -> str:
        """What is wrong with the values of a call's header, in words; nothing when one token was shown that counts."""
        if not shown:
            return f'the call has no token; send "{HEADER}: Bearer <token>" in its metadata'
        found = _BEARER.fullmatch(shown[0])
        if len(shown) > 1 or found is None:
            return f'the call\'s "{HEADER}" is no token; it has the form "Bearer <token>", once'
        digest = _digest(found[1])
        is_known = False
        for known in self._digests:
            # All of them, always: how long it takes does not say which one.
            is_known |= hmac.compare_digest(known, digest)
        return "" if is_known else "the call's token is not, or no longer, accepted"


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
