"""One child process and its pipes, from before its start to the last trace of its process group.

`Pipes` exist before the process does, and may hold as much of its input as fits. A `Child` owns our ends of them, a
pidfd and a process group; `dismantle` closes the ones, kills the process with all its descendants, and calls back when
nothing of it is left, which may be a moment later. Nothing here blocks, and nothing here starts a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import re
from collections.abc import Callable, Iterable

from krm_runner.process.descendants import children_of_thread, kill_below, kill_groups
from krm_runner.process.ending import Ending

DEFAULT_PIPE_SIZE = 64 * 1024
LARGE_PIPE_SIZE = 1024 * 1024
"""What a pipe is asked to hold when much goes through it."""

_MOST_LOOKED_AT = 32
"""Processes of one function: the event loop waits for that, and a hostile one may have thousands."""


class Pipes:
    """Our ends, non-blocking, and the ends that the process will have as its 0, 1 and 2."""

    def __init__(self) -> None:
        """OSError when there are too many open files."""
        self.size = DEFAULT_PIPE_SIZE
        """What those for stdin and stdout hold, unless the kernel refused."""
        opened: list[int] = []
        try:
            for _ in range(3):
                opened += os.pipe2(os.O_CLOEXEC)
            self.childs_stdin, self.stdin, self.stdout, self.childs_stdout, self.stderr, self.childs_stderr = opened
            for ours in (self.stdin, self.stdout, self.stderr):
                os.set_blocking(ours, False)
        except OSError:
            _close_all(opened)
            raise

    def fill(self, stdin: bytes | memoryview) -> int:
        """Put as much of the input into the pipe as it holds; so much it was.

        The process may not be there yet, but an end for it must be open.
        """
        if len(stdin) > DEFAULT_PIPE_SIZE:
            self._enlarge()
        return os.write(self.stdin, stdin) if len(stdin) else 0

    def _enlarge(self) -> None:
        """Much goes in, and so much will come out. Past the user's quota the kernel refuses: that is fine."""
        self.size = LARGE_PIPE_SIZE
        with contextlib.suppress(OSError):
            fcntl.fcntl(self.stdin, fcntl.F_SETPIPE_SZ, self.size)
            fcntl.fcntl(self.stdout, fcntl.F_SETPIPE_SZ, self.size)

    def close_childs_ends(self) -> None:
        """Close them once the process has them, or will never be."""
        _close_all((self.childs_stdin, self.childs_stdout, self.childs_stderr))

    def close_our_ends(self) -> None:
        """When no process was started."""
        _close_all((self.stdin, self.stdout, self.stderr))


class Child:
    """A running process. `stdin` is -1 when its end was closed."""

    def __init__(self, pid: int, pipes: Pipes, *, function: str) -> None:
        """OSError when the process cannot be watched; it is dead then, and the pipes are still the caller's."""
        self.pid = pid
        self.function = function
        self.pidfd = _open_pidfd(pid)
        self.stdin = pipes.stdin
        self.stdout = pipes.stdout
        self.stderr = pipes.stderr
        self.wait_status: int | None = None

    def close_stdin(self) -> None:
        """The function sees the end of its input."""
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def kill_group(self) -> None:
        """SIGKILL to every process of the group; the leader's pid is still ours, since it is not reaped yet."""
        if self.wait_status is None:
            kill_groups([self.pid])

    def kill(self) -> None:
        """SIGKILL to what descends from the process now, and to its group."""
        if self.wait_status is None:
            kill_below([self.pid])
            self.kill_group()

    def pipe_capacity(self) -> int:
        """What its stdout can hold; a function may have changed it."""
        return max(LARGE_PIPE_SIZE, fcntl.fcntl(self.stdout, fcntl.F_GETPIPE_SZ))

    def peak_memory(self) -> int:
        """The most that the leader and its descendants held so far, in bytes; 0 when they have ended.

        What the kernel says after the end is no use: it counts what the starting process held, too.
        """
        total = 0
        pids = [self.pid]
        for pid in pids:
            total += _peak_memory(pid)
            pids += children_of_thread(pid, pid)[: _MOST_LOOKED_AT - len(pids)]
        return total

    def reap_leader(self) -> int:
        """The leader's wait status; only after it ended."""
        if self.wait_status is None:
            _, self.wait_status = os.waitpid(self.pid, 0)
        return self.wait_status

    def dismantle(
        self,
        loop: asyncio.AbstractEventLoop,
        gone: Callable[[], None],
        is_alone: Callable[[], bool] = lambda: False,
    ) -> None:
        """Close what is open, kill what lives; `gone` is called once nothing of it is left."""
        self.close_stdin()
        _close_all((self.stdout, self.stderr, self.pidfd))
        Ending(loop, self, gone, is_alone)


def _open_pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:
        # Out of descriptors, most likely: a process that cannot be watched must not live.
        kill_groups([pid])
        os.waitpid(pid, 0)
        raise


def _close_all(descriptors: Iterable[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)


def reap_strays(known: Callable[[int], bool]) -> None:
    """Reap ended processes that left their function's group and were handed to this process as their reaper.

    Only for a process that starts no others: what is not `known` (a pid, or that of its group's leader) counts as one.
    """
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None or known(ended.si_pid) or known(os.getpgid(ended.si_pid)):
                return
            os.waitpid(ended.si_pid, os.WNOHANG)
        except (ProcessLookupError, ChildProcessError):
            return


def _peak_memory(pid: int) -> int:
    found = re.search(rb"VmHWM:\s*(\d+) kB", _read_of(pid, "status"))
    return int(found[1]) * 1024 if found else 0


def _read_of(pid: int, name: str) -> bytes:
    """What the kernel tells about a process; nothing when it is gone."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""
