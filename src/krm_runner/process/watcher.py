"""Readiness of many short-lived descriptors, behind one lasting entry in the event loop.

An execution watches three or four descriptors for a few milliseconds. The event loop's own way to do that costs more
than reading from them does (docs/performance.md); an epoll of our own, itself watched by the event loop, does not.
"""

from __future__ import annotations

import asyncio
import select
from collections.abc import Callable

READABLE = select.EPOLLIN
WRITABLE = select.EPOLLOUT

_MAX_EVENTS = 64

Callback = Callable[[int], None]
"""Is told the events: READABLE, WRITABLE, or neither when only the other side's end is left to be seen."""


class Watcher:
    """Calls back, on the event loop, as long as a descriptor is ready."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callback] = {}
        self._loop: asyncio.AbstractEventLoop | None = None

    def watch(self, descriptor: int, events: int, callback: Callback) -> None:
        """Until `forget`, which must come before the descriptor is closed."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            self._loop.add_reader(self._epoll.fileno(), self._dispatch)
        self._epoll.register(descriptor, events)
        self._callbacks[descriptor] = callback

    def hand_over(self, descriptor: int, events: int, callback: Callback) -> None:
        """Another callback from now on; one that is watched already stays so, for the same events."""
        if descriptor in self._callbacks:
            self._callbacks[descriptor] = callback
        else:
            self.watch(descriptor, events, callback)

    def forget(self, descriptor: int) -> None:
        """No callback any more; one that is not watched is none of our business."""
        if self._callbacks.pop(descriptor, None) is not None:
            self._epoll.unregister(descriptor)

    def close(self) -> None:
        """Nothing may be watched any more."""
        if self._loop is not None:
            self._loop.remove_reader(self._epoll.fileno())
            self._loop = None
        self._epoll.close()

    def _dispatch(self) -> None:
        for descriptor, events in self._epoll.poll(0, _MAX_EVENTS):
            # A callback may forget descriptors that stand later in the same list.
            callback = self._callbacks.get(descriptor)
            if callback is not None:
                callback(events)
