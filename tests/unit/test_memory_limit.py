"""How much memory a container may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from krm_runner.process.memory_limit import usable_memory

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("file", "content", "expected"),
    [
        ("memory.max", "max\n", MACHINE),
        ("memory.max", "1048576\n", 1048576),
        ("memory.max", "odd", MACHINE),
        ("memory/memory.limit_in_bytes", "2097152\n", 2097152),
        ("memory/memory.limit_in_bytes", "9223372036854771712\n", MACHINE),
    ],
)
def test_limits_of_both_cgroups(tmp_path: Path, file: str, content: str, expected: int) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_text(content)
    assert usable_memory(tmp_path) == expected


def test_no_cgroup(tmp_path: Path) -> None:
    assert usable_memory(tmp_path) == MACHINE
