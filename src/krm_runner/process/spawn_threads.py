"""Threads that do nothing but start processes, so that the event loop does not wait for the kernel.

What a ThreadPoolExecutor adds to that (futures with locks of their own, shielded and chained to asyncio's) costs more
than the start itself; here a thread takes an order from a queue and tells the event loop the pid.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from queue import SimpleQueue

from krm_runner.core.errors import ServeError
from krm_runner.process.child import Pipes
from krm_runner.process.spawn import Spawner

Started = Callable[[int | Exception], None]

_Order = tuple[Sequence[bytes], Pipes, asyncio.AbstractEventLoop, Started]


_MAX_THREADS = 8
"""More at once do not start faster: the kernel and the interpreter's lock are the limit."""


class SpawnThreads:
    """A fixed number of threads; each starts one process at a time."""

    def __init__(self, spawner: Spawner, count: int) -> None:
        self._spawner = spawner
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        # Daemons: a service that cannot start for some other reason must be able to end.
        self._threads = [
            threading.Thread(target=self._work, name=f"spawn_{index}", daemon=True)
            for index in range(min(count, _MAX_THREADS))
        ]
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError as error:
            raise ServeError(f"cannot start threads: {error}; raise the limit of processes of this user") from error

    def start(self, argv: Sequence[bytes], pipes: Pipes, started: Started) -> None:
        """Calls `started` on the running event loop, with the pid or with the reason why there is none."""
        self._orders.put((argv, pipes, asyncio.get_running_loop(), started))

    def close(self) -> None:
        """Let the threads go, after the orders that they have."""
        for _ in self._threads:
            self._orders.put(None)
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        while (order := self._orders.get()) is not None:
            argv, pipes, loop, started = order
            result: int | Exception
            try:
                result = self._spawner.spawn(
                    argv, stdin=pipes.childs_stdin, stdout=pipes.childs_stdout, stderr=pipes.childs_stderr
                )
            except Exception as error:  # whatever it is belongs to the caller, not to this thread
                result = error
            loop.call_soon_threadsafe(started, result)
            # A waiting thread must not keep the last call's megabytes alive.
            del order, argv, pipes, started, result
