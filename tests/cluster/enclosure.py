"""The namespaces that a full cluster is sealed in: a network without an uplink, pids, mounts, a disk of limited size.

Nothing can leave through the network; nothing survives the first process of the pid namespace; no mount, interface,
route or rule is seen outside. What is left to put back by hand is little: cgroups, and a few settings of the kernel.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from cluster import cgroups, kernel_settings
from cluster.components import ClusterError, Identity, Record
from cluster.layout import DISK_BYTES, NODE_ADDRESS, SERVICE_RANGE, Layout

_SCRIPT = Path(__file__).parent / "enclose.sh"
_MAKE_SECONDS = 30


class Enclosure:
    """Made, entered and removed; `remove` works on whatever an earlier, killed run has left."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._record = Record(layout.run / "pid" / "enclosure")
        self._network = layout.run / "network"

    @property
    def init(self) -> Identity | None:
        """The process that everything in the enclosure depends on."""
        return self._record.read()

    def require(self) -> Identity:
        if init := self.init:
            return init
        raise ClusterError("the cluster is not up: make cluster-up")

    def make(self) -> None:
        cgroups.refuse_another_kubelet()
        kernel_settings.keep()
        self._layout.logs.mkdir(parents=True)
        self._layout.resolv_conf.write_text(f"nameserver {NODE_ADDRESS}\n")
        _make_disk(self._layout.disk)
        init = self._start()
        limit = time.monotonic() + _MAKE_SECONDS
        while not (self._layout.run / "enclosed").exists():
            if not init.is_alive or time.monotonic() > limit:
                said = (self._layout.logs / "enclosure.log").read_text().strip()
                raise ClusterError(f"the cluster's namespaces cannot be made on this machine: {said}")
            time.sleep(0.01)

    def join(self) -> list[str]:
        """The command that runs another one inside."""
        return ["nsenter", f"--target={self.require().pid}", "--mount", "--pid", "--net", "--"]

    def join_network(self) -> list[str]:
        """Enters the network alone: for what talks to the cluster."""
        return ["nsenter", f"--target={self.require().pid}", "--net", "--"]

    @contextmanager
    def inside_network(self) -> Generator[None]:
        """Takes this thread into the network and back."""
        home = os.open("/proc/self/ns/net", os.O_RDONLY)
        network = os.open(f"/proc/{self.require().pid}/ns/net", os.O_RDONLY)
        try:
            _set_network(network)
            try:
                yield
            finally:
                _set_network(home)
        finally:
            os.close(home)
            os.close(network)

    @property
    def is_home(self) -> bool:
        """Whether this very process is in the network."""
        init = self.init
        return init is not None and _network_of(os.getpid()) == _network_of(init.pid)

    def remove(self) -> None:
        if init := self.init:
            init.end()
        for identity in self._stragglers():
            identity.end()
        # Where no cluster of ours has been, the cgroups of pods are somebody else's.
        if kernel_settings.are_kept():
            cgroups.remove()
            kernel_settings.restore()
        self._wait_until_the_disk_is_free()

    def _wait_until_the_disk_is_free(self) -> None:
        """The kernel lets go of it a moment after the last process that saw it."""
        limit = time.monotonic() + 20
        while str(self._layout.disk) in _loop_files():
            if time.monotonic() > limit:
                raise ClusterError(f"{self._layout.disk} is still mounted somewhere: `losetup --list` shows it")
            time.sleep(0.02)

    def _start(self) -> Identity:
        """Known by pid before it does anything, so that no run can be killed too early to be cleaned up after."""
        init_program = self._layout.binaries / "pause"
        command = [str(word) for word in (_SCRIPT, init_program, self._layout.run, NODE_ADDRESS, SERVICE_RANGE)]
        with subprocess.Popen(
            ["unshare", "--net", "--mount", "--pid", "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            assert process.stdin is not None
            assert process.stdout is not None
            said = process.stdout.readline()
            init = Identity.of(int(said)) if said else None
            network = _network_of(init.pid) if init else None
            if init is None or network is None:
                raise ClusterError("`unshare --net --mount --pid` failed: is this root, or root of a container?")
            self._record.write(init)
            self._network.write_text(network)
            process.stdin.write("go on\n")
        return init

    def _stragglers(self) -> list[Identity]:
        """What entered the network and outlived it: processes of a killed test. Not this one and its ancestors."""
        if not self._network.exists():
            return []
        network, spared = self._network.read_text(), _ancestry(os.getpid())
        pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
        found = (Identity.of(pid) for pid in pids if pid not in spared and _network_of(pid) == network)
        return [identity for identity in found if identity]


def _network_of(pid: int) -> str | None:
    try:
        return os.readlink(f"/proc/{pid}/ns/net")
    except OSError:
        return None


def _set_network(descriptor: int) -> None:
    # os.setns comes with Python 3.12.
    if ctypes.CDLL(None, use_errno=True).setns(descriptor, 0):
        raise ClusterError(f"cannot enter the cluster's network: {os.strerror(ctypes.get_errno())}")


def _ancestry(pid: int) -> set[int]:
    found: set[int] = set()
    while pid > 0:
        found.add(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


def _loop_files() -> set[str]:
    found: set[str] = set()
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # let go of meanwhile
            found.add(path.read_text().strip().removesuffix(" (deleted)"))
    return found


def _make_disk(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(DISK_BYTES)
    # Without a journal: it is never mounted twice.
    options = ["-q", "-F", "-m", "0", "-O", "^has_journal", "-E", "lazy_itable_init=1,nodiscard"]
    subprocess.run(["mkfs.ext4", *options, path], check=True, capture_output=True, timeout=60)
