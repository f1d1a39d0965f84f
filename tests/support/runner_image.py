"""The runner's image, built for the tests, and its files as a container sees them: read-only, as its user."""

from __future__ import annotations

import os
import subprocess
import tarfile
from io import BytesIO
from pathlib import Path

from images import function_runner
from images.__main__ import cache_directory
from images.debian import PackageError
from images.function_runner import Parts
from support.front import built_front
from support.machine import missing
from support.wrapper import built_wrapper

# In a mount namespace of its own: the new root with /dev, /proc and a /tmp of its own, the rest read-only.
_ENTER = """
set -eu
root=$1 user=$2
shift 2
mount --make-rprivate /
mount --bind "$root" "$root"
mount --rbind /dev "$root/dev"
mount --rbind /proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
chmod 1777 "$root/tmp"
mount -o remount,bind,ro "$root"
chroot=$(command -v chroot)
cd "$root"
exec env -i PATH=/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 HOME=/tmp PYTHONDONTWRITEBYTECODE=1 \
    "$chroot" --userspec="$user:$user" "$root" "$@"
"""


def built_runner_image() -> Parts:
    """Built now; what it is made from is fetched once."""
    try:
        programs = function_runner.Programs(wrapper=built_wrapper(), front=built_front())
        return function_runner.build(programs, cache_directory())
    except PackageError as error:
        missing(str(error))


def unpack(parts: Parts, root: Path) -> Path:
    """Its layers, one over the other."""
    for layer in parts.image.layers:
        with tarfile.open(fileobj=BytesIO(layer.content), mode="r:gz") as archive:
            archive.extractall(root, filter="fully_trusted")
    for name in ("dev", "proc"):
        (root / name).mkdir()
    root.chmod(0o755)
    return root


def entered(root: Path, *, user: int = 65532) -> list[str]:
    """The command before a command that runs inside."""
    if os.geteuid() != 0:
        missing("not root: cannot change the root")
    return ["unshare", "--mount", "sh", "-c", _ENTER, "sh", str(root), str(user)]


def run(root: Path, *command: str, **options: str) -> subprocess.CompletedProcess[str]:
    """One command inside; options are `input`."""
    return subprocess.run(
        [*entered(root), *command], capture_output=True, text=True, timeout=60, check=False, input=options.get("input")
    )
