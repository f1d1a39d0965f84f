"""WWW-Authenticate: what a registry asks for, and what it is then asked.

Reads every header that HTTP allows (several challenges in one, quoted texts, odd spacing) and ignores what it
cannot read: a challenge that makes no sense is no challenge. Bounded: a header of megabytes is not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from krm_runner.core.image_ref import ImageRef

_MAX_HEADER_LENGTH = 16_384
_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"  # noqa: S105 - HTTP's word for a word
_PARAMETER = re.compile(rf'(?P<name>{_TOKEN})\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>{_TOKEN}))', re.DOTALL)
_SCHEME = re.compile(rf"(?P<scheme>{_TOKEN})(?=\s|,|$)")
_TOKEN68 = re.compile(r"[A-Za-z0-9._~+/-]+=*(?=\s*(?:,|$))")
_SEPARATORS = re.compile(r"[\s,]*")


@dataclass(frozen=True, slots=True)
class Challenge:
    """One way to authenticate: a scheme in lower case, and its parameters."""

    scheme: str
    parameters: Mapping[str, str]


def parse_challenges(headers: Iterable[str]) -> list[Challenge]:
    """All challenges of a response, in its order."""
    found: list[Challenge] = []
    for header in headers:
        if len(header) <= _MAX_HEADER_LENGTH:
            found += _parse_header(header)
    return found


def strongest(challenges: Iterable[Challenge]) -> Challenge | None:
    """The one to answer: a token before a password; a Bearer challenge must say where tokens come from."""
    by_scheme = {challenge.scheme: challenge for challenge in reversed(list(challenges))}
    bearer = by_scheme.get("bearer")
    if bearer is not None and bearer.parameters.get("realm"):
        return bearer
    return by_scheme.get("basic")


def pull_scope(image: ImageRef) -> str:
    """What a token must allow for this image to be read."""
    return f"repository:{image.repository}:pull"


def _parse_header(header: str) -> list[Challenge]:
    found: list[Challenge] = []
    position = 0
    while True:
        position = _end(_SEPARATORS, header, position)
        if position >= len(header):
            return found
        scheme = _SCHEME.match(header, position)
        if scheme is None:
            return found
        parameters, position = _parse_parameters(header, scheme.end())
        found.append(Challenge(scheme["scheme"].lower(), parameters))


def _parse_parameters(header: str, position: int) -> tuple[dict[str, str], int]:
    start = _end(_SEPARATORS, header, position)
    parameters: dict[str, str] = {}
    if (token68 := _TOKEN68.match(header, start)) and "," not in header[position:start]:
        return parameters, token68.end()
    while parameter := _PARAMETER.match(header, start):
        quoted = parameter["quoted"]
        value = parameter["plain"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted, flags=re.DOTALL)
        parameters.setdefault(parameter["name"].lower(), value)
        position = parameter.end()
        start = _end(_SEPARATORS, header, position)
    return parameters, start


def _end(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return position if match is None else match.end()
