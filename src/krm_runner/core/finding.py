"""What a look at an installation found: one line, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class State(Enum):
    """How something is."""

    OK = "ok"
    WARN = "warn"
    """It works, with something missing."""
    FAIL = "fail"
    SKIP = "skip"
    """It could not be looked at."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at."""

    state: State
    what: str
    fix: str = ""
    """What to do, where something is to be done."""


def ok(what: str) -> Finding:
    return Finding(State.OK, what)


def warn(what: str, fix: str = "") -> Finding:
    return Finding(State.WARN, what, fix)


def fail(what: str, fix: str) -> Finding:
    return Finding(State.FAIL, what, fix)


def skip(what: str, fix: str = "") -> Finding:
    return Finding(State.SKIP, what, fix)
