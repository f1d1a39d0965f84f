"""What a cluster could leave behind on the machine, written down line by line, to compare before and after."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable
from pathlib import Path

from cluster import kernel_settings
from cluster.cgroups import CGROUPS
from cluster.components import Identity
from cluster.layout import cache_directory, full

_DIRECTORIES = ("/run", "/var/lib", "/var/log", "/etc/cni", "/run/secrets")


def traces() -> set[str]:
    """Kind and value: interfaces, rules, routes, mounts, cgroups, settings, loop devices, files, processes."""
    found = {f"interface {line.split(':')[1]}" for line in _lines("ip", "-oneline", "link")}
    found |= {f"route {line.strip()}" for line in _lines("ip", "route", "show", "table", "all")}
    found |= {f"rule {line.strip()}" for line in _lines("nft", "list", "ruleset")}
    found |= {f"mount {line.split()[4]}" for line in Path("/proc/self/mountinfo").read_text().splitlines()}
    found |= {f"cgroup {path}" for path in _cgroups()}
    found |= {f"setting {name}={value}" for name, value in kernel_settings.current().items()}
    found |= {f"forwarding {Path('/proc/sys/net/ipv4/ip_forward').read_text().strip()}"}
    found |= {f"loop device {path.read_text().strip()}" for path in Path("/sys/block").glob("loop*/loop/backing_file")}
    found |= {f"file {path}" for directory in _DIRECTORIES for path in _entries(Path(directory))}
    found |= {f"file {path}" for path in _entries(cache_directory()) if path.name not in _KEPT}
    return found | {f"process {name}" for name in _processes()}


_KEPT = {"binaries", "busybox", "layers", "lock", "log.previous", "store"}


def _lines(*command: str) -> list[str]:
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


def _cgroups() -> Iterable[Path]:
    return (path for path in CGROUPS.rglob("*") if path.is_dir() and "kube" in str(path))


def _entries(directory: Path) -> list[Path]:
    return list(directory.iterdir()) if directory.is_dir() else []


def _processes() -> Iterable[str]:
    """Those of a cluster: by a network that is not the machine's, or by what they were told. API servers without a
    cluster, of which there may be any number, are nobody's trace."""
    own = os.readlink("/proc/self/ns/net")
    state = os.fsencode(full().run)
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or Identity.of(int(entry.name)) is None:
            continue
        try:
            program = Path(os.readlink(entry / "exe"))
            network = os.readlink(entry / "ns" / "net")
            told = (entry / "cmdline").read_bytes()
        except OSError:
            continue
        if state in told or network != own:
            yield f"{entry.name} {program.name}"
