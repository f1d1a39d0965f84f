"""How much memory this process may use: its cgroup's limit, or the machine's memory."""

from __future__ import annotations

import os
from pathlib import Path


def usable_memory(cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """Bytes; what a container sees of its own cgroup."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limits = (_limit(cgroup_root / "memory.max"), _limit(cgroup_root / "memory" / "memory.limit_in_bytes"))
    return min([machine, *(limit for limit in limits if limit)])


def _limit(path: Path) -> int | None:
    """`max` or a number of bytes; where there is no such file, there is no such limit."""
    try:
        text = path.read_text().strip()
        return None if text == "max" else int(text)
    except (OSError, ValueError):
        return None
