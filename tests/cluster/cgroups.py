"""The cgroups of the kubelet's pods: the one thing that survives their namespaces. Version 1 and 2."""

from __future__ import annotations

import time
from contextlib import suppress
from pathlib import Path

from cluster.components import ClusterError

CGROUPS = Path("/sys/fs/cgroup")


def of_pods() -> list[Path]:
    """The topmost ones: one in each hierarchy of version 1, or the one of version 2."""
    return sorted(CGROUPS.glob("kubepods")) + sorted(CGROUPS.glob("*/kubepods"))


def refuse_another_kubelet() -> None:
    """Two on one machine would take each other's pods for orphans, dead or alive."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and _is_kubelet(entry):
            raise ClusterError(f"another kubelet runs on this machine (process {entry.name}): one cluster at a time")
    for top in of_pods():
        if any((path / "cgroup.procs").read_text() for path in _with_descendants(top)):
            raise ClusterError(f"pods of another kubelet run on this machine ({top}): one cluster at a time")


def remove() -> None:
    limit = time.monotonic() + 10
    while tops := of_pods():
        for top in tops:
            for path in reversed(_with_descendants(top)):
                with suppress(OSError):  # still emptying
                    path.rmdir()
        if time.monotonic() > limit:
            raise ClusterError(f"cannot remove {tops[0]}: `cat {tops[0]}/cgroup.procs` says who is in it")
        time.sleep(0.02)


def _is_kubelet(process: Path) -> bool:
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    program = words[0].rpartition(b"/")[2]
    return program == b"kubelet" or (program == b"kube" and words[1:2] == [b"kubelet"])


def _with_descendants(top: Path) -> list[Path]:
    return [top, *sorted(path for path in top.rglob("*") if path.is_dir())]
