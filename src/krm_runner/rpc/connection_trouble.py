"""What gRPC says when a connection cannot be made or breaks, in words for a person, and how far the call came.

gRPC has one code for most of it, UNAVAILABLE, and tells the rest in a text for developers. What it says when was found
out by breaking connections in every way that we could think of; tests/unit/test_connection_trouble.py has the texts.
When in doubt the call counts as one that reached the function.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import grpc


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why there is no answer."""

    why: str
    reached: bool
    """The call may have come to the function."""
    is_unnamed: bool = False
    """The address has a name that nobody knows, so far."""


_NOT_CONNECTED = (
    ("Connection refused", "its port refuses connections"),
    ("timed out before receiving SETTINGS", "it accepts connections, but nothing comes back"),
    ("timed out|handshaker shutdown", "it does not accept connections"),
    ("No route to host|unreachable", "there is no way to its address"),
    ("Failed parsing HTTP/2|http1", "what answers on its port is no wrapper server"),
    ("reset by peer|Socket closed|Broken pipe", "it closes connections at once"),
)

_BROKEN = (
    ("ping timeout|keepalive", "it does not answer any more, or the network to it is gone"),
    ("Received RST_STREAM", "the call was broken off"),
    ("Socket closed|reset by peer|Broken pipe|GOAWAY", "its connection broke in the middle of the call"),
)

_BY_A_PROXY = "upstream connect error|no healthy upstream"
"""As the proxies of service meshes say it."""


def trouble_of(code: grpc.StatusCode, text: str) -> Trouble | None:
    """Nothing when this is no trouble with the connection: whoever answered meant it."""
    if match := re.match(r"errors resolving (.*?):|DNS resolution failed for (.*?):", text):
        name = (match[1] or match[2]).removesuffix(".")
        return Trouble(f"the name {name} is not known", reached=False, is_unnamed=True)
    if match := re.match(r"failed to connect to all addresses; last error: [A-Z_]+: (?:(?:ipv4|ipv6)\S+: )?(.*)", text):
        return Trouble(_in_words(_NOT_CONNECTED, match[1]) or f"no connection: {match[1]}", reached=False)
    if match := re.match(r"Stream removed \((.*)\)$", text, re.DOTALL):
        return _broken(match[1])
    if code is not grpc.StatusCode.UNAVAILABLE:
        return None
    if re.search(_BY_A_PROXY, text) and "connection termination" not in text:
        return Trouble("the proxy before it has no connection to it", reached=False)
    if match := re.fullmatch(r"Received http2 header with status: (\d+)", text):
        return Trouble(f"something before it answered with HTTP status {match[1]}", reached=True)
    return Trouble(_in_words(_BROKEN, text) or text or "it is not available", reached=True)


def _broken(text: str) -> Trouble | None:
    if "Received message larger than max" in text:
        return None
    # By HTTP/2's own rules these were not looked at: refused, or behind the last one that the other end takes.
    reached = not text.startswith("GOAWAY received") and "RST_STREAM with error code 7" not in text
    why = _in_words(_BROKEN, text) or f"its connection broke in the middle of the call ({text})"
    return Trouble(why if reached else "it takes no calls any more", reached)


def _in_words(known: tuple[tuple[str, str], ...], text: str) -> str:
    return next((words for pattern, words in known if re.search(pattern, text)), "")
