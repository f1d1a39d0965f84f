"""How many CPUs this process may use: its affinity, and its cgroup's quota."""

from __future__ import annotations

import math
import os
from pathlib import Path


def usable_cpus(cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """At least one."""
    available = len(os.sched_getaffinity(0))
    quota = _quota_v2(cgroup_root) or _quota_v1(cgroup_root)
    return max(1, min(available, math.ceil(quota)) if quota else available)


def _quota_v2(root: Path) -> float | None:
    """`max 100000` or `50000 100000`: microseconds per period."""
    try:
        quota, period = (root / "cpu.max").read_text().split()
        return None if quota == "max" else int(quota) / int(period)
    except (OSError, ValueError):
        return None


def _quota_v1(root: Path) -> float | None:
    try:
        quota = int((root / "cpu" / "cpu.cfs_quota_us").read_text())
        period = int((root / "cpu" / "cpu.cfs_period_us").read_text())
        return quota / period if quota > 0 else None
    except (OSError, ValueError):
        return None
