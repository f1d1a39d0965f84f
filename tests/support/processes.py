"""What lives and what is open, from /proc."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

PROC = Path("/proc")


def command_lines() -> list[str]:
    """The command lines of all processes."""
    found: list[str] = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip())
            except OSError:
                continue
    return found


def children(pid: int) -> list[int]:
    """The children of a process, zombies included."""
    found: list[int] = []
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == pid:
                found.append(int(entry.name))
    return found


def name_of(pid: int) -> str:
    """The name of a process's program; empty when it is gone."""
    try:
        return (PROC / str(pid) / "comm").read_text().strip()
    except OSError:
        return ""


def command_of(pid: int) -> bytes:
    """A process's command line; empty when it is gone or a zombie."""
    try:
        return (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return b""


def is_alive(pid: int) -> bool:
    """Whether a process runs, or could; one that has ended and that nobody has reaped does not."""
    try:
        state = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def of_pod(uid: str, words: str) -> list[int]:
    """The processes of a pod whose command line has these words, but for what is still a copy of its parent."""
    parents: dict[int, int] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                groups = (entry / "cgroup").read_text().replace("_", "-")
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if f"pod{uid}" in groups and words in line:
                parents[int(entry.name)] = parent
    return [process for process, parent in parents.items() if parent not in parents]


def open_descriptors(pid: int) -> list[str]:
    """What the descriptors of a process point to."""
    found: list[str] = []
    for entry in (PROC / str(pid) / "fd").iterdir():
        try:
            found.append(str(entry.readlink()))
        except OSError:
            continue
    return found


def pipes(pid: int) -> int:
    """How many pipes and pidfds a process has open."""
    return sum(1 for target in open_descriptors(pid) if target.startswith("pipe:") or "pidfd" in target)


def resident_kib(pid: int) -> int:
    """How much memory a process holds now."""
    status = (PROC / str(pid) / "status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS:")).split()[1])


def open_connections(pid: int, *, to: int) -> list[str]:
    """Those of one process to that port, by the kernel's own list."""
    own = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    found: list[str] = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            is_open, is_there = fields[3] == "01", int(fields[2].rpartition(":")[2], 16) == to
            if is_open and is_there and f"socket:[{fields[9]}]" in own:
                found.append(fields[1])
    return found


async def eventually(condition: Callable[[], bool], *, what: str, seconds: float = 20) -> None:
    """Waits until the condition holds; fails the test when it never does."""
    async with asyncio.timeout(seconds) as limit:
        while not condition():
            if limit.expired():
                break
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                raise AssertionError(f"never happened: {what}") from None
