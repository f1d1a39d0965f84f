"""An event loop that gives way: between one callback and the next, whoever waits for its CPU goes first.

Where a front has the port, calls that need no decision pass this process by, on the same CPUs, and should not wait for
what it does meanwhile. To be nicer is not enough: whoever has begun may go on for milliseconds, by the kernel's rules,
though somebody more urgent woke up. So the kernel is asked to look again, but not more often than it helps. That counts
among the processes of one container alone: its share of the CPUs is what it was.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from typing import cast

import structlog

_log = structlog.get_logger("krm_runner")
_NICER = 5
_LONGEST_SECONDS = 0.0001
"""Of callbacks in a row."""
_READY = "_ready"
"""Where asyncio's loops have the callbacks of a turn."""


class _Turn(deque[asyncio.Handle]):
    """The callbacks that are ready, in their order."""

    _since = 0.0

    def popleft(self) -> asyncio.Handle:
        """The next one, after whoever waits."""
        if time.perf_counter() - self._since > _LONGEST_SECONDS:
            os.sched_yield()
            self._since = time.perf_counter()
        return super().popleft()


def give_way(loop: asyncio.AbstractEventLoop) -> None:
    """From now on the other processes here come first; those that it starts later are as nice as it is."""
    os.nice(_NICER)
    ready = cast("deque[asyncio.Handle] | None", getattr(loop, _READY, None))
    if not isinstance(ready, deque):
        _log.warning("the event loop does not give way: it is none of asyncio's", loop=type(loop).__name__)
        return
    setattr(loop, _READY, _Turn(ready))
