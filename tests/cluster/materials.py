"""What must be there before a cluster is, while package registries are in reach: packages, binaries, functions.

Everything is built once, into a cache directory keyed by what it is built from, and put in place by one rename: an
interrupted build goes on where it stopped, since Go keeps what it has compiled.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from cluster.components import ClusterError, Identity
from cluster.layout import KUBERNETES_VERSION, SOURCES, Layout, cache_directory
from cluster.progress import Progress

ROOT = Path(__file__).parent.parent.parent
CATALOG = ROOT / ".cache" / "catalog"
_BUSYBOX = Path(__file__).parent / "busybox"
_POLICY = Path("/usr/sbin/policy-rc.d")
# Program → Debian package. Nothing is installed for a program that is there already, wherever it is from.
_CLUSTER_PROGRAMS = {
    "containerd": "containerd",
    "docker-registry": "docker-registry",
    "htpasswd": "apache2-utils",
    "ip": "iproute2",
    "mkfs.ext4": "e2fsprogs",
    "nft": "nftables",
    "openssl": "openssl",
    "runc": "runc",
}
_IMAGE_PROGRAMS = {"bzip2": "bzip2", "make": "make", "musl-gcc": "musl-tools", "skopeo": "skopeo"}
_NETWORK_PLUGINS = ("/usr/lib/cni/bridge", "/opt/cni/bin/bridge")
_VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


class MissingError(ClusterError):
    """This machine lacks something that cannot be installed here; the message is one line."""


def prepare(layout: Layout, progress: Progress) -> None:
    """Everything that a full cluster and its tests need."""
    if os.geteuid() != 0:
        raise MissingError("not root: no cluster can be started")
    _install_packages(_CLUSTER_PROGRAMS | _IMAGE_PROGRAMS, progress)
    if not any(Path(plugin).exists() for plugin in _NETWORK_PLUGINS):
        _install_packages({"a CNI plugin": "containernetworking-plugins"}, progress)
    build_binaries(layout, progress)
    prepare_images(progress)


def prepare_images(progress: Progress) -> None:
    """What the images of the tests are made from."""
    _install_packages(_IMAGE_PROGRAMS, progress)
    _require_go("the functions of the catalog")
    build_busybox(progress)
    subprocess.run(["sh", ROOT / "bench" / "catalog.sh", CATALOG], check=True, timeout=1800)


def build_binaries(layout: Layout, progress: Progress) -> None:
    if layout.binaries.exists():
        return
    _require_go("Kubernetes")
    progress.note(f"building Kubernetes {KUBERNETES_VERSION} and CoreDNS from source: once, 6 to 17 minutes")
    version = {"gitVersion": KUBERNETES_VERSION, "gitMajor": "1", "gitMinor": "34", "gitTreeState": "clean"}
    stamps = [f"-X {package}.{name}={value}" for package in _VERSION_PACKAGES for name, value in version.items()]
    with _in_place(layout.binaries) as directory:
        command = ["go", "build", "-v", "-trimpath", "-buildvcs=false", "-mod=readonly"]
        _build(
            [
                *command,
                "-ldflags",
                " ".join(["-s -w", *stamps]),
                "-o",
                f"{directory}/",
                "./kube",
                "./coredns",
                "./pause",
            ],
            progress,
        )
        (directory / "kubectl").symlink_to("kube")
    progress.note(f"built, in {layout.binaries}")


def build_busybox(progress: Progress) -> Path:
    """A directory with busybox and the C library it is linked with: musl, as in Alpine's images."""
    key = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(_BUSYBOX.iterdir()))).hexdigest()[:12]
    directory = cache_directory() / "busybox" / key
    if not directory.exists():
        progress.note("building busybox with musl from Debian's source: once, half a minute")
        with _in_place(directory) as target:
            done = subprocess.run(
                ["nice", "sh", _BUSYBOX / "build.sh", target], capture_output=True, text=True, timeout=900, check=False
            )
            if done.returncode:
                raise ClusterError(f"busybox cannot be built: {done.stderr[-2000:]}")
    return directory


def _require_go(what: str) -> None:
    if shutil.which("go") is None:
        raise MissingError(f"no Go toolchain to build {what} with (python -m pip install -r requirements/go.txt)")


def _install_packages(programs: Mapping[str, str], progress: Progress) -> None:
    missing = [program for program in programs if shutil.which(program) is None]
    if not missing:
        return
    wanted = {programs[program] for program in missing}
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingError(f"{', '.join(missing)} missing, and not root on a Debian to install {', '.join(wanted)}")
    progress.note(f"installing {', '.join(sorted(wanted))} (once)")
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    with _no_services():
        subprocess.run(["apt-get", "-qq", "update"], check=True, timeout=600, env=environment)
        install = ["apt-get", "-qq", "install", "--yes", "--no-install-recommends", *sorted(wanted)]
        done = subprocess.run(install, capture_output=True, text=True, timeout=1200, env=environment, check=False)
    if done.returncode:
        raise ClusterError(f"cannot install {', '.join(sorted(wanted))}: {done.stderr.strip()}")
    if "docker-registry" in wanted and shutil.which("systemctl"):
        # Else it takes port 5000 of this machine from the next boot on.
        subprocess.run(["systemctl", "disable", "docker-registry"], capture_output=True, timeout=60, check=False)


@contextmanager
def _no_services() -> Generator[None]:
    """Packages that are installed meanwhile start nothing: Debian asks this file."""
    if _POLICY.exists():
        yield
        return
    _POLICY.write_text("#!/bin/sh\nexit 101\n")
    _POLICY.chmod(0o755)
    try:
        yield
    finally:
        _POLICY.unlink()


@contextmanager
def _in_place(directory: Path) -> Generator[Path]:
    """Another directory, which becomes this one when all went well."""
    for abandoned in directory.parent.glob("*.new"):
        if Identity.of(int(abandoned.suffixes[-2][1:])) is None:
            shutil.rmtree(abandoned)
    temporary = directory.with_name(f"{directory.name}.{os.getpid()}.new")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        if not directory.exists():
            temporary.rename(directory)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _build(command: list[str], progress: Progress) -> None:
    """`go build -v` names every package that it has compiled: a line of progress for a hundred of them."""
    environment = os.environ | {"CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": ""}
    process = subprocess.Popen(
        ["nice", *command], cwd=SOURCES, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    )
    watchdog = threading.Timer(3600, process.kill)
    watchdog.start()
    lines: list[str] = []
    assert process.stdout is not None
    for line in process.stdout:
        lines.append(line)
        if len(lines) % 100 == 0:
            progress.note(f"{len(lines)} steps of the build done, of about 3000 from nothing")
    code = process.wait()
    watchdog.cancel()
    if code:
        raise ClusterError(f"`{' '.join(command)}` failed:\n{''.join(lines[-20:])}")
