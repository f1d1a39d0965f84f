"""What is odd in a user's file, for the log: a few lines of a bounded length, however much is odd."""

from __future__ import annotations

from collections.abc import Sequence

from krm_runner.core.errors import one_line

_MOST = 10
_LONGEST = 300


def summarized(warnings: Sequence[str]) -> list[str]:
    """Return the first ten warnings, shortened, and a line that counts the rest."""
    found = [one_line(each, longest=_LONGEST) for each in warnings[:_MOST]]
    return [*found, f"and {len(warnings) - _MOST} more"] if len(warnings) > _MOST else found
