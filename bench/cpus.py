"""Who runs on which CPU and with which share, and when the machine is idle: so that a figure is of what is measured."""

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
_CGROUPS = Path("/sys/fs/cgroup")
_UNBOUND_WORK = Path("/sys/devices/virtual/workqueue/cpumask")
_KTHREADD = 2
_GROUP = "krm-runner-bench"


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


@contextmanager
def kernel_restricted(cpus: Collection[int]) -> Generator[None]:
    """So does the kernel's own work that belongs to no CPU: what others cause there is done by whoever has time."""
    with restricted(descendants(_KTHREADD), cpus):
        before = _UNBOUND_WORK.read_text() if _UNBOUND_WORK.exists() else ""
        if before:
            _UNBOUND_WORK.write_text(f"{sum(1 << cpu for cpu in cpus):x}")
        try:
            yield
        finally:
            if before:
                _UNBOUND_WORK.write_text(before)


@contextmanager
def as_a_container(processes: Iterable[int], *, beside: int, millicores: int) -> Generator[None]:
    """They have the share of CPUs that a pod has which asks for so much, on the node of the pod with that process."""
    kept = {process: _group_of(process) for process in processes}
    # Of a container, of its pod, of the pods of its class.
    group = _group_of(beside).parent.parent / _GROUP
    group.mkdir()
    shares = max(2, millicores * 1024 // 1000)
    if (group / "cpu.shares").exists():
        (group / "cpu.shares").write_text(str(shares))
    else:
        (group / "cpu.weight").write_text(str(1 + (shares - 2) * 9999 // 262142))
    try:
        for process in kept:
            _join(process, group)
        yield
    finally:
        for process, before in kept.items():
            _join(process, before)
        group.rmdir()


def _group_of(process: int) -> Path:
    """The one that counts its CPU time."""
    lines = [line.split(":", 2) for line in (_PROC / str(process) / "cgroup").read_text().splitlines()]
    for _, controllers, path in lines:
        if "cpu" in controllers.split(","):
            return _CGROUPS / controllers / path.lstrip("/")
    return next(_CGROUPS / path.lstrip("/") for _, controllers, path in lines if not controllers)


def _join(process: int, group: Path) -> None:
    with suppress(ProcessLookupError):
        (group / "cgroup.procs").write_text(str(process))


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
