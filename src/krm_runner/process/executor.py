"""Executing one command per call: input in, output out, within limits, and nothing left behind.

The order of things in one execution: wait for a place; start the process in a thread; write its stdin and read its
stdout and stderr on the event loop; when its leader ends, kill the rest of its group, read what is still in the
pipes, and answer. However it ends (answer, limit, cancellation), the process group is killed, and the place becomes
free only when the last process of the group is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from krm_runner.core.log_excerpt import LogExcerpt
from krm_runner.process.child import DEFAULT_PIPE_SIZE, LARGE_PIPE_SIZE, Child, launch, reap_strays
from krm_runner.process.slots import Slots
from krm_runner.process.spawn import Spawner

_STRAYS_INTERVAL = 2.0


class OutputLimitError(Exception):
    """The process wrote more to stdout than it may."""

    def __init__(self, written: int) -> None:
        super().__init__(f"more than the limit was written: {written} bytes")
        self.written = written


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a process ended by itself, and what it wrote."""

    exit_code: int
    """As the process gave it; minus the number of the signal that killed it."""
    stdout: bytes
    stderr: bytes
    queue_wait: float


class Executor:
    """Runs commands, a bounded number at a time."""

    def __init__(self, spawner: Spawner, *, max_parallel: int, max_waiting: int) -> None:
        self.on_turn: Callable[[float], None] | None = None
        """Told how long each call waited."""
        self._spawner = spawner
        self._slots = Slots(limit=max_parallel, max_waiting=max_waiting)
        self._threads = ThreadPoolExecutor(max_workers=max_parallel, thread_name_prefix="spawn")
        self._children: dict[int, Child] = {}
        self._starting = 0

    @property
    def running(self) -> int:
        """How many places are taken: processes that run, start, or are being reaped."""
        return self._slots.running

    @property
    def waiting(self) -> int:
        """How many calls wait for a place."""
        return self._slots.waiting

    async def run(
        self,
        argv: Sequence[bytes],
        stdin: bytes | memoryview,
        *,
        function: str,
        max_output: int,
        deadline: float,
    ) -> Outcome:
        """Execute `argv` once.

        The deadline only orders the queue: whoever calls sets a timeout around this, and cancelling ends the process.
        SlotsFullError when too many wait; OSError when it cannot be started; OutputLimitError when it wrote too much.
        """
        loop = asyncio.get_running_loop()
        arrived = loop.time()
        await self._slots.acquire(function=function, deadline=deadline)
        queue_wait = loop.time() - arrived
        if self.on_turn is not None:
            self.on_turn(queue_wait)
        child = await self._start(loop, argv, stdin)
        pump = _Pump(loop, child, stdin, max_output)
        try:
            return await pump.outcome(queue_wait)
        finally:
            pump.detach()
            self._end(loop, child)

    async def reap_strays(self) -> None:
        """Look now and then for ended processes that had left their function's group; never returns."""
        while True:
            await asyncio.sleep(_STRAYS_INTERVAL)
            # A process that a thread starts just now is not known yet, and would look like a stray.
            if not self._starting:
                reap_strays(self._children.__contains__)

    def kill_all(self) -> None:
        """Kill every process group at once; for the moment before this process ends."""
        for child in self._children.values():
            child.kill_group()

    def close(self) -> None:
        """Let the threads go; no execution may be under way."""
        self._threads.shutdown(wait=True)

    async def _start(self, loop: asyncio.AbstractEventLoop, argv: Sequence[bytes], stdin: bytes | memoryview) -> Child:
        starting = loop.run_in_executor(self._threads, launch, self._spawner, argv, stdin)
        self._starting += 1
        starting.add_done_callback(self._on_started)
        try:
            child = await asyncio.shield(starting)
        except asyncio.CancelledError:
            # A thread cannot be cancelled: what it starts is ended as soon as it is there.
            starting.add_done_callback(lambda done: self._end_abandoned(loop, done))
            raise
        except BaseException:
            self._slots.release()
            raise
        return child

    def _end_abandoned(self, loop: asyncio.AbstractEventLoop, starting: asyncio.Future[Child]) -> None:
        if starting.cancelled() or starting.exception() is not None:
            self._slots.release()
            return
        self._end(loop, starting.result())

    def _on_started(self, starting: asyncio.Future[Child]) -> None:
        self._starting -= 1
        if not starting.cancelled() and starting.exception() is None:
            child = starting.result()
            self._children[child.pid] = child

    def _end(self, loop: asyncio.AbstractEventLoop, child: Child) -> None:
        def gone() -> None:
            del self._children[child.pid]
            self._slots.release()

        child.dismantle(loop, gone)


class _Pump:
    """Moves the bytes of one child, on the event loop."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, child: Child, stdin: bytes | memoryview, max_output: int
    ) -> None:
        self._loop = loop
        self._child = child
        self._input = memoryview(stdin)[child.written :]
        self._max_output = max_output
        self._read_size = LARGE_PIPE_SIZE if len(stdin) > DEFAULT_PIPE_SIZE else DEFAULT_PIPE_SIZE
        self._chunks: list[bytes] = []
        self._size = 0
        self._log = LogExcerpt()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._watched: set[int] = set()
        for descriptor, callback in (
            (child.pidfd, self._on_exit),
            (child.stdout, self._on_stdout),
            (child.stderr, self._on_stderr),
        ):
            loop.add_reader(descriptor, callback)
            self._watched.add(descriptor)
        if child.stdin >= 0:
            loop.add_writer(child.stdin, self._on_stdin)

    async def outcome(self, queue_wait: float) -> Outcome:
        """Waits for the end of the process."""
        await self._ended
        child = self._child
        status = child.reap_leader()
        self._input = memoryview(b"")
        stdout = b"".join(self._chunks)
        self._chunks.clear()
        return Outcome(os.waitstatus_to_exitcode(status), stdout, self._log.value(), queue_wait)

    def detach(self) -> None:
        """Nothing is moved any more."""
        for descriptor in self._watched:
            self._loop.remove_reader(descriptor)
        self._watched.clear()
        self._finish_input()

    def _on_stdin(self) -> None:
        try:
            written = os.write(self._child.stdin, self._input[:LARGE_PIPE_SIZE])
        except BlockingIOError:
            return
        except OSError:
            # The function closed its stdin: it does not want the rest, and that is no error.
            self._finish_input()
            return
        self._input = self._input[written:]
        if not self._input:
            self._finish_input()

    def _finish_input(self) -> None:
        if self._child.stdin >= 0:
            self._loop.remove_writer(self._child.stdin)
            self._child.close_stdin()

    def _on_stdout(self) -> None:
        self._read_stdout(self._read_size)

    def _on_stderr(self) -> None:
        self._read_stderr(self._read_size)

    def _read_stdout(self, size: int) -> int:
        chunk = self._read(self._child.stdout, size)
        if chunk:
            self._size += len(chunk)
            if self._size > self._max_output:
                self._chunks.clear()
                self._end(OutputLimitError(self._size))
                return 0
            self._chunks.append(chunk)
        return len(chunk)

    def _read_stderr(self, size: int) -> int:
        chunk = self._read(self._child.stderr, size)
        self._log.add(chunk)
        return len(chunk)

    def _read(self, descriptor: int, size: int) -> bytes:
        """What is there; at the end of the stream the descriptor is watched no longer."""
        try:
            chunk = os.read(descriptor, size)
        except BlockingIOError:
            return b""
        if not chunk and descriptor in self._watched:
            self._watched.discard(descriptor)
            self._loop.remove_reader(descriptor)
        return chunk

    def _on_exit(self) -> None:
        """The leader ended: what it wrote is in the pipes, and whoever else holds them has no say any more."""
        self._child.kill_group()
        for read in (self._read_stdout, self._read_stderr):
            # At most what a pipe holds: a process outside the group may go on writing for ever.
            remaining = LARGE_PIPE_SIZE
            while remaining > 0 and (count := read(min(remaining, self._read_size))):
                remaining -= count
        self._end(None)

    def _end(self, error: Exception | None) -> None:
        if self._ended.done():
            return
        with contextlib.suppress(KeyError):
            self._watched.remove(self._child.pidfd)
            self._loop.remove_reader(self._child.pidfd)
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
