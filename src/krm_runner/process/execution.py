"""One execution: the bytes of a child are moved, and its end is seen, by callbacks on the event loop.

It begins with open pipes, goes on when it is told the pid, and its result is a future. However it ends (exit, limit,
`stop`, a process that never was), the process group is killed, the descriptors are closed, and `gone` is called when
the last process of the group is reaped. It neither starts processes nor waits for a turn.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from krm_runner.core.log_excerpt import LogExcerpt
from krm_runner.process.child import DEFAULT_PIPE_SIZE, LARGE_PIPE_SIZE, Child, Pipes
from krm_runner.process.watcher import READABLE, WRITABLE, Watcher


class OutputLimitError(Exception):
    """The process wrote more to stdout than it may."""

    def __init__(self, written: int) -> None:
        super().__init__(f"more than the limit was written: {written} bytes")
        self.written = written


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended by itself, and what it wrote."""

    exit_code: int
    """As the process gave it; minus the number of the signal that killed it."""
    stdout: bytes
    stderr: bytes
    peak_memory: int = 0
    """In bytes; 0 when it was not looked at, because the call was too small or the process gone too soon."""


_A_WHILE = 0.05
"""A call that is shorter, and has little input, takes little memory, and a look at it would be felt."""


class Execution:
    """See the module's text."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        watcher: Watcher,
        pipes: Pipes,
        stdin: bytes | memoryview,
        *,
        function: str,
        max_output: int,
        gone: Callable[[Execution], None],
        is_alone: Callable[[Execution], bool],
    ) -> None:
        """`is_alone` is whether orphans can be of no other call."""
        self.pipes = pipes
        self.result: asyncio.Future[Ended] = loop.create_future()
        self._loop = loop
        self._watcher = watcher
        self._input = memoryview(stdin)[pipes.fill(stdin) :]
        self._function = function
        self._max_output = max_output
        self._gone = gone
        self._is_alone = is_alone
        self._child: Child | None = None
        self._began = loop.time()
        self._is_large = len(stdin) > DEFAULT_PIPE_SIZE
        self._peak_memory = 0
        self._over = False
        self._chunks: list[bytes] = []
        self._size = 0
        self._log = LogExcerpt()

    @property
    def pid(self) -> int | None:
        """None before it is known."""
        return None if self._child is None else self._child.pid

    def started(self, pid: int | Exception) -> None:
        """The process runs, or cannot: then the reason is the result."""
        self.pipes.close_childs_ends()
        try:
            if isinstance(pid, Exception):
                raise pid
            child = Child(pid, self.pipes, function=self._function)
        except Exception as error:  # the caller must learn of it, whatever it is
            self._over = True
            self.pipes.close_our_ends()
            self._gone(self)
            self._fail(error)
            return
        self._child = child
        if self._over:
            self._dismantle(child)
            return
        try:
            self._watch(child)
        except OSError as error:
            self.stop()
            self._fail(error)

    def stop(self) -> None:
        """End it, whatever it is doing, also if the process is just being started; nothing happens when it is over."""
        if self._over:
            return
        self._over = True
        if self._child is not None:
            self._dismantle(self._child)

    def kill(self) -> None:
        """SIGKILL to its processes, and nothing else."""
        if self._child is not None:
            self._child.kill()

    def _watch(self, child: Child) -> None:
        self._watcher.hand_over(child.stdout, READABLE, partial(self._on_stdout, child))
        self._watcher.hand_over(child.stderr, READABLE, partial(self._on_stderr, child))
        self._watcher.hand_over(child.pidfd, READABLE, partial(self._on_exit, child))
        if self._input:
            self._watcher.watch(child.stdin, WRITABLE, partial(self._on_stdin, child))
        else:
            child.close_stdin()

    def _fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)

    def _dismantle(self, child: Child) -> None:
        for descriptor in (child.stdin, child.stdout, child.stderr, child.pidfd):
            self._watcher.forget(descriptor)
        self._input = memoryview(b"")
        self._chunks = []
        child.dismantle(self._loop, partial(self._gone, self), partial(self._is_alone, self))

    def _on_stdin(self, child: Child, _events: int) -> None:
        try:
            written = os.write(child.stdin, self._input[:LARGE_PIPE_SIZE])
        except BlockingIOError:
            return
        except OSError:
            # The function closed its stdin: it does not want the rest, and that is no error.
            written = len(self._input)
        self._input = self._input[written:]
        if not self._input:
            self._watcher.forget(child.stdin)
            child.close_stdin()

    def _on_stdout(self, child: Child, events: int) -> None:
        # A function that writes has read everything, and holds it; what does not fit into the pipe keeps it here. One
        # look now and then is enough: after 0, 1, 2, 4, 8 ... pieces.
        if len(self._chunks).bit_count() <= 1 and (self._is_large or self._loop.time() - self._began >= _A_WHILE):
            self._peak_memory = max(self._peak_memory, child.peak_memory())
        if not events & READABLE or self._read_stdout(child) == 0:
            self._watcher.forget(child.stdout)

    def _on_stderr(self, child: Child, events: int) -> None:
        if not events & READABLE or self._read_stderr(child) == 0:
            self._watcher.forget(child.stderr)

    def _on_exit(self, child: Child, _events: int) -> None:
        """The leader ended: what it wrote is in the pipes, and whoever else holds them has no say any more."""
        child.kill_group()
        for read in (self._read_stdout, self._read_stderr):
            # At most what a pipe holds: a process outside the group may go on writing for ever.
            remaining = child.pipe_capacity()
            while remaining > 0 and not self._over and (count := read(child)):
                remaining -= count
        if self._over:
            return
        exit_code = os.waitstatus_to_exitcode(child.reap_leader())
        ended = Ended(exit_code, b"".join(self._chunks), self._log.value(), self._peak_memory)
        self.stop()
        if not self.result.done():
            self.result.set_result(ended)

    def _read_stdout(self, child: Child) -> int | None:
        """How much was there: 0 at the end, None when there is nothing now. Too much ends the execution."""
        chunk = _read(child.stdout, self.pipes.size)
        if not chunk:
            return None if chunk is None else 0
        self._size += len(chunk)
        if self._size > self._max_output:
            self.stop()
            self._fail(OutputLimitError(self._size))
        else:
            self._chunks.append(chunk)
        return len(chunk)

    def _read_stderr(self, child: Child) -> int | None:
        chunk = _read(child.stderr, DEFAULT_PIPE_SIZE)
        if not chunk:
            return None if chunk is None else 0
        self._log.add(chunk)
        return len(chunk)


def _read(descriptor: int, size: int) -> bytes | None:
    try:
        return os.read(descriptor, size)
    except BlockingIOError:
        return None
