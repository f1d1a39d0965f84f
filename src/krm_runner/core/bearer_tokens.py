"""Tokens that callers show: `authorization: Bearer <token>`.

A file has one token a line, so that an old and a new one are accepted while callers change over. Only their hashes are
kept, and krm-front compares calls with them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from krm_runner.core.errors import ConfigurationError
from krm_runner.core.secret import Secret

HEADER = "authorization"
SHORTEST_TOKEN = 16
MAX_SECRETS = 1000

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
    """The tokens that are accepted."""

    def __init__(self, tokens: Sequence[Secret]) -> None:
        self.digests = tuple(_digest(token.reveal()) for token in tokens)
        """SHA-256 of each."""

    @classmethod
    def parse(cls, text: bytes, *, source: str) -> BearerTokens:
        """The tokens of a file; ConfigurationError when there is none, or a line is no token."""
        return cls(secret_lines(text, source=source, what="token", shortest=SHORTEST_TOKEN))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BearerTokens) and self.digests == other.digests

    def __hash__(self) -> int:
        return hash(self.digests)


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode(errors="replace")).digest()
