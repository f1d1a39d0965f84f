"""Processes that somebody else started for us and left behind: adopted, and ended.

Whoever runs functions on our behalf ends them itself. Where it was killed before it could, its functions become
children of this process, which must not leave them running without anybody who waits for them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


def adopt_orphans() -> None:
    """From now on, orphans of those that this process starts become its children; where that is refused, init's."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_orphans(leader: int) -> int:
    """Kill the groups of all children of this process but its own and that of `leader`, which has ended; how many."""
    spared = {os.getpgid(0), leader}
    killed = 0
    for child in _children():
        with contextlib.suppress(ProcessLookupError, PermissionError):
            group = os.getpgid(child)
            if group not in spared:
                os.killpg(group, signal.SIGKILL)
                killed += 1
    return killed


def _children() -> list[int]:
    """Of every thread."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found += [int(child) for child in (task / "children").read_text().split()]
    return found
