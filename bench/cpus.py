"""Who runs on which CPU, and when the machine has nothing else to do: so that a figure is that of what is measured."""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path

_PROC = Path("/proc")
_IDLE_SHARE = 0.7
_PERIOD_SECONDS = 1.0
_PERIODS = 3
"""So many in a row must be idle."""
_LONGEST_SECONDS = 60.0


def descendants(pid: int) -> list[int]:
    """The processes that it started, and those that they did."""
    children: dict[int, list[int]] = {}
    for child in (int(entry.name) for entry in _PROC.iterdir() if entry.name.isdigit()):
        with suppress(OSError):
            fields = (_PROC / str(child) / "stat").read_text().rpartition(")")[2].split()
            children.setdefault(int(fields[1]), []).append(child)
    found: list[int] = []
    left = [pid]
    while left:
        below = children.get(left.pop(), [])
        found += below
        left += below
    return found


def is_of_a_pod(pid: int) -> bool:
    """Whether the kubelet counts it."""
    try:
        return "/kubepods" in (_PROC / str(pid) / "cgroup").read_text()
    except OSError:
        return False


@contextmanager
def restricted(processes: Iterable[int], cpus: Collection[int]) -> Generator[None]:
    """All threads of these processes run on these CPUs alone, and so does what they start; later on all of them."""
    kept = list(processes)
    _assign(kept, cpus)
    try:
        yield
    finally:
        _assign(kept, range(os.cpu_count() or 1))


def wait_until_idle() -> bool:
    """Until the CPUs have had little to do for some seconds; false if that does not come."""
    end = time.monotonic() + _LONGEST_SECONDS
    in_a_row = 0
    while in_a_row < _PERIODS and time.monotonic() < end:
        before = _ticks()
        time.sleep(_PERIOD_SECONDS)
        idle, whole = (after - earlier for after, earlier in zip(_ticks(), before, strict=True))
        in_a_row = in_a_row + 1 if idle >= _IDLE_SHARE * whole else 0
    return in_a_row == _PERIODS


def _assign(processes: Iterable[int], cpus: Collection[int]) -> None:
    for process in processes:
        with suppress(OSError):
            for thread in (_PROC / str(process) / "task").iterdir():
                with suppress(OSError):
                    os.sched_setaffinity(int(thread.name), cpus)


def _ticks() -> tuple[int, int]:
    """Of all CPUs since the start of the machine: idle, and in all."""
    fields = [int(field) for field in (_PROC / "stat").read_text().partition("\n")[0].split()[1:9]]
    return fields[3] + fields[4], sum(fields)
