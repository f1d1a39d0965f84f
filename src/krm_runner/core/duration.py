"""Durations the way Go writes them (`30m`, `1h30m`, `90s`), since flags and files of existing manifests have them."""

from __future__ import annotations

import re

_PART = re.compile(r"(?P<count>[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?P<unit>ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def duration(text: str) -> float:
    """Seconds in a Go duration that is not negative; ValueError says what it takes."""
    expected = "a duration such as 30m, 1h30m or 90s"
    if text == "0":
        return 0.0
    position, seconds = 0, 0.0
    while position < len(text):
        part = _PART.match(text, position)
        if part is None:
            raise ValueError(expected)
        seconds += float(part["count"]) * _SECONDS[part["unit"]]
        position = part.end()
    if not text:
        raise ValueError(expected)
    return seconds


def positive_duration(text: str) -> float:
    """A duration that is more than nothing."""
    seconds = duration(text)
    if seconds <= 0:
        raise ValueError("a duration longer than zero")
    return seconds
