"""How much of the memory requests may take: what does not fit beside the others is refused, and nothing is swapped.

A call holds its request until it is answered, wherever it waits. Many large ones would take all memory of a container,
and its end is the end of every call. One alone always fits: how large it may be is another limit.
"""

from __future__ import annotations


class RequestBudget:
    """Counts the bytes of the requests under way."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def enter(self, size: int) -> bool:
        """A request comes; False when it must not stay."""
        if self.used and self.used + size > self.limit:
            return False
        self.used += size
        return True

    def leave(self, size: int) -> None:
        """One that had entered is answered."""
        self.used -= size
