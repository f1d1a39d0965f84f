"""Bugs that are contained: handling one event or one call's record failed, and the service goes on.

They are counted for the whole process, as its log is one for the whole process.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from typing import Literal, get_args

import structlog
from opentelemetry.metrics import CallbackOptions, Meter, Observation

_log = structlog.get_logger("krm_runner")

Where = Literal["call", "front message", "image", "job", "pod", "watch event"]
_counts: dict[Where, int] = dict.fromkeys(get_args(Where), 0)


def report(where: Where, error: BaseException, **about: object) -> None:
    """Log and count an unexpected error; `about` names the object that was handled."""
    _counts[where] += 1
    _log.error("unexpected error", where=where, **about, exc_info=error)


@contextmanager
def contained(where: Where, **about: object) -> Generator[None]:
    """Report an exception of the body instead of raising it."""
    try:
        yield
    except Exception as error:
        report(where, error, **about)


def observe(meter: Meter) -> None:
    """Export the counts; each is there from the start, so that the first error is an increase."""

    def read(_options: CallbackOptions) -> Iterable[Observation]:
        return [Observation(count, {"where": where}) for where, count in _counts.items()]

    meter.create_observable_counter(
        "krm_runner.internal_errors", [read], description="Unexpected errors that were contained: bugs"
    )
