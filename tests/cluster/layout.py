"""Where everything is: the names, addresses, ports and directories of the cluster, and the key of its binaries.

Nothing here touches the machine. The addresses are fixed, since the cluster has a network namespace to itself.
"""

from __future__ import annotations

import hashlib
import os
import platform
from dataclasses import dataclass
from pathlib import Path

KUBERNETES_VERSION = "v1.34.4"
SOURCES = Path(__file__).parent / "binaries"

NODE_NAME = "node"
# The kubelet refuses a loopback address as its node's.
NODE_ADDRESS = "10.245.0.1"
POD_RANGE = "10.244.0.0/16"
SERVICE_RANGE = "10.96.0.0/16"
FIRST_SERVICE_ADDRESS = "10.96.0.1"
DOMAIN = "cluster.local"
PAUSE_IMAGE = "krm-runner.test/pause:1"

ADMINISTRATOR = "admin"
REGISTRY_USER = "tester"
REGISTRY_PASSWORD = "a password for tests only"

MIRRORED_REGISTRIES = ("docker.io", "ghcr.io", "gcr.io")

# What the pods of the cluster may take of the machine, whatever their functions try.
PROCESSES_PER_POD = 256
DISK_BYTES = 8 * 1024**3


@dataclass(frozen=True)
class Registry:
    """A registry of the cluster: images are named `<address>/<repository>`."""

    name: str
    address: str
    has_password: bool = False
    has_tls: bool = False


# A registry in the clear and its twin with TLS serve the same content. The open one with TLS stands on the port that
# the mirrored registries are asked on, and its certificate has their names.
OPEN = Registry("registry-open", "127.0.0.1:5000")
PRIVATE = Registry("registry-private", "127.0.0.1:5001", has_password=True)
OPEN_TLS = Registry("registry-open-tls", f"{NODE_ADDRESS}:443", has_tls=True)
PRIVATE_TLS = Registry("registry-private-tls", f"{NODE_ADDRESS}:5443", has_password=True, has_tls=True)
REGISTRIES = (OPEN, PRIVATE, OPEN_TLS, PRIVATE_TLS)


def cache_directory() -> Path:
    """What outlives a cluster: binaries, and the blobs of the registries."""
    if chosen := os.environ.get("KRM_CLUSTER_CACHE"):
        return Path(chosen).absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "krm-runner" / "cluster"


def binaries_key() -> str:
    """Changes with every source, every version and every architecture."""
    content = hashlib.sha256()
    for path in sorted(path for path in SOURCES.rglob("*") if path.is_file()):
        content.update(str(path.relative_to(SOURCES)).encode() + b"\0" + path.read_bytes())
    return f"{KUBERNETES_VERSION}-{platform.machine()}-{content.hexdigest()[:12]}"


@dataclass(frozen=True)
class Layout:
    """The files of one cluster: `run` is wiped with it, `store` and `binaries` stay."""

    run: Path
    store: Path
    binaries: Path

    @property
    def kube(self) -> Path:
        return self.binaries / "kube"

    @property
    def logs(self) -> Path:
        return self.run / "log"

    @property
    def credentials(self) -> Path:
        return self.run / "credentials"

    @property
    def audit_log(self) -> Path:
        return self.run / "audit.log"

    @property
    def resolv_conf(self) -> Path:
        return self.run / "resolv.conf"

    @property
    def disk(self) -> Path:
        """The file system that pods, containers and images are on: a file of limited size."""
        return self.run / "disk.ext4"

    def kubeconfig(self, user: str = ADMINISTRATOR) -> Path:
        return self.credentials / f"{user.replace(':', '-')}.kubeconfig"

    def certificate(self, name: str) -> Path:
        return self.credentials / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.credentials / f"{name}.key"


def full() -> Layout:
    """The layout of the one full cluster of this machine."""
    cache = cache_directory()
    return Layout(run=cache / "run", store=cache / "store", binaries=cache / "binaries" / binaries_key())


def api_only(run: Path) -> Layout:
    """The layout of an API server of one's own: as many as one likes."""
    return Layout(run=run, store=run, binaries=cache_directory() / "binaries" / binaries_key())
