"""Finds and kills the descendants of a process by /proc, whatever their process group or session.

Without a /proc, or with one of another PID namespace, nothing is found.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Process:
    """A process, told from a later one with the same pid by its start."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class _Status:
    process: Process
    parent: int
    group: int
    is_alive: bool


def kill_below(leaders: Iterable[int], is_alone: Callable[[], bool] = lambda: False) -> list[Process]:
    """Stop these leaders and their groups, kill their descendants, and return those that were alive.

    The leaders stay, so that this can be repeated until nothing is found. Orphans that were reparented to this process
    count as descendants if they are younger than a leader and `is_alone` says that no other call is in flight.
    """
    leaders = list(leaders)
    for leader in leaders:
        for send in (os.killpg, os.kill):
            _signal(send, leader, signal.SIGSTOP)
    found = _living_below(leaders, is_alone)
    for process in found:
        _signal(os.kill, process.pid, signal.SIGKILL)
    return found


def kill_groups(leaders: Iterable[int]) -> None:
    """SIGKILL to the groups of these leaders, and to leaders that have left them."""
    for leader in leaders:
        for send in (os.killpg, os.kill):
            _signal(send, leader, signal.SIGKILL)


def living_in(group: int) -> list[Process]:
    """Return the living processes of a group."""
    return [status.process for status in _all() if status.group == group and status.is_alive]


def is_alive(process: Process) -> bool:
    """Whether it lives on."""
    status = _status(process.pid)
    return status is not None and status.is_alive and status.process == process


def adopted() -> list[int]:
    """Return the orphans that the kernel reparented to this process.

    They become children of its first thread, which must start no processes itself.
    """
    own = os.getpid()
    return children_of_thread(own, own)


def children_of_thread(pid: int, thread: int) -> list[int]:
    """Those that this thread of a process started, in the order of their start."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{thread}/children").read_bytes().split()]
    except OSError:
        return []


def _living_below(leaders: list[int], is_alone: Callable[[], bool]) -> list[Process]:
    known = {status.process.pid: status for status in _all()}
    children: defaultdict[int, list[_Status]] = defaultdict(list)
    for status in known.values():
        children[status.parent].append(status)
    following = [known[leader] for leader in leaders if leader in known]
    found: list[_Status] = []
    if following and is_alone():
        oldest = min(leader.process.started for leader in following)
        orphans = [known[pid] for pid in adopted() if pid in known and pid not in leaders]
        found = [orphan for orphan in orphans if orphan.process.started >= oldest]
        following += found
    while following:
        descendants = children[following.pop().process.pid]
        found += descendants
        following += descendants
    return [status.process for status in found if status.is_alive]


def _all() -> Iterator[_Status]:
    try:
        if os.readlink("/proc/self") != str(os.getpid()):
            return
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        if name.isdigit() and (status := _status(int(name))) is not None:
            yield status


def _status(pid: int) -> _Status | None:
    """Read a process's status, if it exists."""
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # The name, in parentheses, may hold any bytes.
    state, parent, group, *others = text.rpartition(b")")[2].split()
    threads, started = int(others[14]), int(others[16])
    # A process whose first thread has ended is shown as a zombie while its other threads run.
    return _Status(Process(pid, started), int(parent), int(group), state not in (b"Z", b"X") or threads > 1)


def _signal(send: Callable[[int, int], None], number: int, sent: signal.Signals) -> None:
    # Gone, or another user's.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(number, sent)
