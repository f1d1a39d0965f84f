"""One child process and its pipes, from start to the last trace of its process group.

`launch` does everything that blocks and is meant for a thread. A `Child` owns four descriptors and a process group;
`dismantle` closes the ones, kills the other, and tells when the whole group is gone, which may be a moment later.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
from collections.abc import Callable, Sequence

from krm_runner.process.spawn import Spawner

DEFAULT_PIPE_SIZE = 64 * 1024
LARGE_PIPE_SIZE = 1024 * 1024
"""What a pipe is asked to hold when much goes through it."""

_REAP_FIRST_DELAY, _REAP_LAST_DELAY = 0.001, 0.1


class Child:
    """A running process. Descriptors are non-blocking; `stdin` is -1 when all of the input is in the pipe already."""

    def __init__(self, *, pid: int, pidfd: int, stdin: int, stdout: int, stderr: int, written: int) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.written = written
        """How much of the input went into the pipe at the start."""
        self.wait_status: int | None = None

    def close_stdin(self) -> None:
        """The function sees the end of its input."""
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1

    def kill_group(self) -> None:
        """SIGKILL to every process of the group; the leader's pid is still ours, since it is not reaped yet."""
        if self.wait_status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def reap_leader(self) -> int:
        """The leader's wait status; only after it ended."""
        if self.wait_status is None:
            _, self.wait_status = os.waitpid(self.pid, 0)
        return self.wait_status

    def dismantle(self, loop: asyncio.AbstractEventLoop, gone: Callable[[], None]) -> None:
        """Kill what lives, close what is open; `gone` is called once nothing of the group is left."""
        self.kill_group()
        self.close_stdin()
        for descriptor in (self.stdout, self.stderr, self.pidfd):
            os.close(descriptor)
        self._reap_group(loop, gone, _REAP_FIRST_DELAY)

    def _reap_group(self, loop: asyncio.AbstractEventLoop, gone: Callable[[], None], delay: float) -> None:
        while True:
            try:
                pid, status = os.waitpid(-self.pid, os.WNOHANG)
            except ChildProcessError:
                gone()
                return
            if pid == 0:
                # Killed, but not dead yet: the kernel needs a moment.
                loop.call_later(delay, self._reap_group, loop, gone, min(delay * 2, _REAP_LAST_DELAY))
                return
            if pid == self.pid:
                self.wait_status = status


def launch(spawner: Spawner, argv: Sequence[bytes], stdin: bytes | memoryview) -> Child:
    """Start `argv` with as much of its input as the pipe takes. Blocking for a millisecond; OSError on failure."""
    with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as childs_ends:

        def keep_and_hand_over(*, keep: int, hand_over: int) -> None:
            on_failure.callback(os.close, keep)
            childs_ends.callback(os.close, hand_over)
            os.set_blocking(keep, False)

        stdin_read, stdin_write = os.pipe2(os.O_CLOEXEC)
        keep_and_hand_over(keep=stdin_write, hand_over=stdin_read)
        stdout_read, stdout_write = os.pipe2(os.O_CLOEXEC)
        keep_and_hand_over(keep=stdout_read, hand_over=stdout_write)
        stderr_read, stderr_write = os.pipe2(os.O_CLOEXEC)
        keep_and_hand_over(keep=stderr_read, hand_over=stderr_write)
        if len(stdin) > DEFAULT_PIPE_SIZE:
            # Much goes in, and so much will come out. Past the user's quota the kernel refuses: that is fine.
            with contextlib.suppress(OSError):
                fcntl.fcntl(stdin_write, fcntl.F_SETPIPE_SZ, LARGE_PIPE_SIZE)
                fcntl.fcntl(stdout_read, fcntl.F_SETPIPE_SZ, LARGE_PIPE_SIZE)

        written = _write_what_fits(stdin_write, stdin)
        pid = spawner.spawn(argv, stdin=stdin_read, stdout=stdout_write, stderr=stderr_write)
        pidfd = _open_pidfd(pid)
        on_failure.pop_all()
    child = Child(pid=pid, pidfd=pidfd, stdin=stdin_write, stdout=stdout_read, stderr=stderr_read, written=written)
    if written == len(stdin):
        child.close_stdin()
    return child


def _write_what_fits(descriptor: int, data: bytes | memoryview) -> int:
    try:
        return os.write(descriptor, data) if len(data) else 0
    except BlockingIOError:
        return 0


def _open_pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except OSError:
        # Out of descriptors, most likely: a process that cannot be watched must not live.
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def reap_strays(known: Callable[[int], bool]) -> None:
    """Reap ended processes that left their function's group and were handed to this process as their reaper.

    Children of this process's own group are left alone: whoever started them waits for them.
    """
    while True:
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is None or known(ended.si_pid):
            return
        try:
            group = os.getpgid(ended.si_pid)
            if group == os.getpgrp() or known(group):
                return
            os.waitpid(ended.si_pid, os.WNOHANG)
        except (ProcessLookupError, ChildProcessError):
            return
