"""How the service's process uses memory: freed blocks are kept for the next call, and given back when it is idle.

A call with 5 MB allocates and frees some 30 MB. By default glibc hands blocks of that size back to the kernel at once,
and the next call pays for fresh pages: a third to a half of its CPU (docs/adr/0005-memory.md).
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
from collections.abc import Callable

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_KEPT = 128 * 1024 * 1024
_LARGEST_KEPT_BLOCK = 32 * 1024 * 1024
_IDLE_CHECK_SECONDS = 10.0


def keep_freed_memory() -> None:
    """For the rest of the process's life. Where the C library is another one, nothing happens."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BLOCK)
        mallopt(_M_TRIM_THRESHOLD, _KEPT)


def settle_objects() -> None:
    """What is there once everything is wired stays: the garbage collector need not look at it again."""
    gc.collect()
    gc.freeze()


async def give_back_when_idle(calls: Callable[[], int]) -> None:
    """Return free memory to the kernel when no call came for a while; `calls` counts them. Never returns."""
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    seen, trimmed = calls(), True
    while True:
        await asyncio.sleep(_IDLE_CHECK_SECONDS)
        previous, seen = seen, calls()
        if seen != previous:
            trimmed = False
        elif not trimmed and malloc_trim is not None:
            malloc_trim(0)
            trimmed = True
