"""How long to wait before trying again: exponential, with jitter, and never longer than the other side asks."""

from __future__ import annotations

from dataclasses import dataclass
from email.utils import parsedate_to_datetime


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays that double from `first` to `longest`, each somewhere in its upper half."""

    first: float
    longest: float

    def delay(self, attempt: int, *, chance: float) -> float:
        """The delay after the attempt of this number (from 1); `chance` is between 0 and 1."""
        full = min(self.longest, self.first * 2.0 ** min(attempt - 1, 30))
        return full * (0.5 + chance / 2)


def parse_retry_after(header: str, *, unix_now: float) -> float | None:
    """Seconds in a Retry-After header, which is a number or a date; None when it is neither."""
    text = header.strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - unix_now)
    except (ValueError, TypeError, OverflowError):
        return None
