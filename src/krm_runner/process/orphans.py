"""Processes that somebody else started for us and left behind: adopted, and ended.

Whoever runs functions on our behalf ends them itself. Where it was killed before it could, its functions become
children of this process, which must not leave them running without anybody who waits for them.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import time

from krm_runner.process.descendants import children_of_thread, kill_below, kill_groups

_PR_SET_CHILD_SUBREAPER = 36
_ROUNDS, _PAUSE = 100, 0.002


def adopt_orphans() -> None:
    """From now on, orphans of those that this process starts become its children; where that is refused, init's."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_orphans(leader: int) -> None:
    """Kill the children of this process and their descendants; not its own group, nor that of `leader`, which ended."""
    spared = {os.getpgid(0), leader}
    orphans: list[int] = []
    for thread in os.listdir("/proc/self/task"):
        for child in children_of_thread(os.getpid(), int(thread)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getpgid(child) not in spared:
                    orphans.append(child)
    for _ in range(_ROUNDS):
        if not kill_below(orphans):
            break
        time.sleep(_PAUSE)
    kill_groups(orphans)
