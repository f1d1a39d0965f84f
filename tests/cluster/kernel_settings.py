"""What the kubelet sets for the whole machine, whatever namespace it runs in: kept before, restored after."""

from __future__ import annotations

from pathlib import Path

from cluster.layout import cache_directory

NAMES = (
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
)
_SETTINGS = Path("/proc/sys")


def current() -> dict[str, str]:
    return {name: (_SETTINGS / name).read_text().strip() for name in NAMES if (_SETTINGS / name).exists()}


def keep() -> None:
    """Of several killed runs, what the first one found is what counts."""
    if not are_kept():
        temporary = _kept().with_suffix(".new")
        temporary.write_text("".join(f"{name}={value}\n" for name, value in current().items()))
        temporary.rename(_kept())


def are_kept() -> bool:
    """Whether there is or was a cluster whose settings must be undone."""
    return _kept().exists()


def restore() -> None:
    for line in _kept().read_text().splitlines():
        name, _, value = line.partition("=")
        (_SETTINGS / name).write_text(value)
    _kept().unlink()


def _kept() -> Path:
    return cache_directory() / "kernel-settings"
