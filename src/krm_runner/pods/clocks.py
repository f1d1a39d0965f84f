"""Times of Kubernetes objects, on the clock that this process measures with.

Deadlines and delays must not move when the wall clock is set. So they are kept on the monotonic clock, and converted
where they are read from an object or written to one.
"""

from __future__ import annotations

import time


def from_unix(moment: float) -> float:
    """Convert seconds since 1970 to the monotonic clock."""
    return moment - time.time() + time.monotonic()


def to_unix(moment: float) -> float:
    """Convert a time of the monotonic clock to seconds since 1970."""
    return moment - time.monotonic() + time.time()
