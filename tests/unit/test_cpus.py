"""How many CPUs a container may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from krm_runner.process.cpus import usable_cpus

AVAILABLE = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("max 100000", AVAILABLE),
        ("50000 100000", 1),
        ("100000 100000", 1),
        ("150000 100000", min(2, AVAILABLE)),
        ("odd", AVAILABLE),
    ],
)
def test_quota_of_cgroup_v2(tmp_path: Path, content: str, expected: int) -> None:
    (tmp_path / "cpu.max").write_text(content)
    assert usable_cpus(tmp_path) == expected


@pytest.mark.parametrize(("quota", "expected"), [("-1", AVAILABLE), ("20000", 1)])
def test_quota_of_cgroup_v1(tmp_path: Path, quota: str, expected: int) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text(quota)
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000")
    assert usable_cpus(tmp_path) == expected


def test_no_cgroup(tmp_path: Path) -> None:
    assert usable_cpus(tmp_path) == AVAILABLE
