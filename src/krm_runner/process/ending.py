"""Ends a process that leads a group, and all of its descendants, in steps on the event loop that do not block.

The leader is stopped first and stays until none of its descendants lives, since they are found in the tree below it.
Then it is killed and reaped with its group. A process that cannot be killed is reported and waited for.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Protocol

import structlog

from krm_runner.process.descendants import Process, is_alive, kill_below, kill_groups, living_in

_log = structlog.get_logger("krm_runner.exec")

_FIRST_PAUSE, _LAST_PAUSE = 0.001, 0.1
_GRACE = 5.0
"""A process that lives on for longer after SIGKILL is blocked in the kernel, or belongs to another user."""
_LAST_GRACE = 1.0
"""The same for the group, after other processes have used up theirs."""
_REPORT_INTERVAL = 60.0


class Leader(Protocol):
    """The process to end."""

    pid: int
    function: str
    wait_status: int | None
    """None as long as it is not reaped."""


class Ending:
    """Begins when it is made."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        leader: Leader,
        gone: Callable[[], None],
        is_alone: Callable[[], bool] = lambda: False,
    ) -> None:
        """`gone` is called once nothing is left; `is_alone` is as in `kill_below`."""
        self._loop = loop
        self._leader = leader
        self._gone = gone
        self._is_alone = is_alone
        self._began = loop.time()
        self._pause = _FIRST_PAUSE
        self._outside: list[Process] = []
        self._group_is_gone = False
        self._next_report = self._began + _GRACE
        if leader.wait_status is None:
            self._kill_descendants()
        else:
            self._reap()

    def _kill_descendants(self) -> None:
        self._outside = kill_below([self._leader.pid], self._is_alone)
        if self._outside and self._loop.time() < self._began + _GRACE:
            self._again(self._kill_descendants)
            return
        kill_groups([self._leader.pid])
        self._next_report = self._loop.time() + (_LAST_GRACE if self._outside else _GRACE)
        self._pause = _FIRST_PAUSE
        self._reap()

    def _reap(self) -> None:
        self._group_is_gone = self._group_is_gone or self._reap_group()
        self._outside = [process for process in self._outside if is_alive(process)]
        if self._group_is_gone and not self._outside:
            self._gone()
            return
        now = self._loop.time()
        if now >= self._next_report:
            self._next_report = now + _REPORT_INTERVAL
            group = [] if self._group_is_gone else living_in(self._leader.pid)
            _log.error(
                "processes of a function cannot be killed and keep their place",
                pids=",".join(sorted({str(process.pid) for process in (*group, *self._outside)})),
                function=self._leader.function,
                leader=self._leader.pid,
                seconds=round(now - self._began),
                why="they are blocked in the kernel (state D in ps), or belong to another user",
            )
        self._again(self._reap)

    def _again(self, step: Callable[[], None]) -> None:
        self._loop.call_later(self._pause, step)
        self._pause = min(self._pause * 2, _LAST_PAUSE)

    def _reap_group(self) -> bool:
        """Whether the leader and all of its group are reaped; its number may be another group's then."""
        leader = self._leader
        try:
            if leader.wait_status is None:
                pid, status = os.waitpid(leader.pid, os.WNOHANG)
                if pid == 0:
                    return False
                leader.wait_status = status
            while os.waitpid(-leader.pid, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return True
        return False
