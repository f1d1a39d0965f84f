"""What is known of images, for how long, and when a registry must be asked again: the whole policy, without a clock.

- A digest names content: it is kept until there is no more room.
- A tag may move: it is fresh for `tag_ttl`, then the registry is asked again. While the registry is away the old
  answer goes on being served (as stale), and the registry is left alone for `failure_ttl` between two attempts.
- A failure is remembered for `failure_ttl`, so that a burst of calls for a missing image asks once.
- At most `capacity` images are kept; the one that was not asked for longest goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from enum import Enum

from krm_runner.core.image_fault import ImageFault
from krm_runner.core.image_metadata import ImageMetadata
from krm_runner.core.image_ref import ImageRef

FAILURE_TTL = 5.0
CAPACITY = 1000


class Freshness(Enum):
    """How far what is known can be relied on."""

    FRESH = "fresh"
    STALE = "stale"
    """Known, but the registry should be asked whether it still holds."""


@dataclass(frozen=True, slots=True)
class Known:
    """An image that was resolved."""

    metadata: ImageMetadata
    fresh_until: float
    is_stale: bool = False
    """Whether it is served only because the registry is away."""

    def freshness(self, now: float) -> Freshness:
        return Freshness.FRESH if now < self.fresh_until else Freshness.STALE


@dataclass(frozen=True, slots=True)
class Failed:
    """An image that could not be resolved a moment ago."""

    fault: ImageFault
    until: float


class ImageCache:
    """Entries by canonical reference."""

    def __init__(self, *, tag_ttl: float, failure_ttl: float = FAILURE_TTL, capacity: int = CAPACITY) -> None:
        self._tag_ttl = tag_ttl
        self._failure_ttl = failure_ttl
        self._capacity = capacity
        self._entries: OrderedDict[str, Known | Failed] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, reference: ImageRef, *, now: float) -> Known | Failed | None:
        """What is known; a failure only while it counts."""
        entry = self._entries.get(reference.canonical)
        if entry is None:
            return None
        if isinstance(entry, Failed) and now >= entry.until:
            del self._entries[reference.canonical]
            return None
        self._entries.move_to_end(reference.canonical)
        return entry

    def resolved(self, metadata: ImageMetadata, *, now: float) -> Known:
        """The registry answered."""
        forever = bool(metadata.reference.digest)
        known = Known(metadata, float("inf") if forever else now + self._tag_ttl)
        self._keep(metadata.reference, known)
        return known

    def failed(self, reference: ImageRef, fault: ImageFault, *, now: float) -> Known | None:
        """The registry did not answer, or answered that there is no such image.

        Returns what is served nevertheless: the old answer, if there is one and the registry is merely away.
        """
        entry = self._entries.get(reference.canonical)
        if fault.registry_is_away and isinstance(entry, Known):
            kept = replace(entry, fresh_until=max(entry.fresh_until, now + self._failure_ttl), is_stale=True)
            self._keep(reference, kept)
            return kept
        self._keep(reference, Failed(fault, now + self._failure_ttl))
        return None

    def _keep(self, reference: ImageRef, entry: Known | Failed) -> None:
        self._entries[reference.canonical] = entry
        self._entries.move_to_end(reference.canonical)
        while len(self._entries) > self._capacity:
            self._entries.popitem(last=False)
