"""The full cluster: brought up from nothing in a few seconds, taken down without a trace, its parts stopped at will.

There is one at a time on a machine. Its state never outlives it: what a killed run has left is removed on the way up.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable

from cluster import control_plane, credentials, node, registries
from cluster.components import ClusterError, Components
from cluster.control_plane import Endpoints
from cluster.enclosure import Enclosure
from cluster.layout import NODE_ADDRESS, NODE_NAME, PAUSE_IMAGE, REGISTRIES, Layout
from cluster.progress import Progress
from images.oci import Image, single_layer

ENDPOINTS = Endpoints(NODE_ADDRESS, 6443, 12379, 12380)
READY_SECONDS = 120
_API_CLIENTS = ("kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "coredns")
_DEFAULT_ACCOUNT = ("serviceaccount", "default", "--namespace=default")


class FullCluster:
    """What `up` leaves behind can be found again by another process, with another object of this class."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.enclosure = Enclosure(layout)
        self._ready = layout.run / "ready"

    @property
    def is_up(self) -> bool:
        """Up to its end, with the binaries of this layout, and all of it alive."""
        try:
            binaries = self._ready.read_text()
        except OSError:
            return False
        is_sealed = binaries == str(self.layout.binaries) and self.enclosure.init is not None
        return is_sealed and all(self.running().values())

    def up(self, progress: Progress) -> None:
        if self.is_up:
            return
        self.down()
        self.layout.run.mkdir(parents=True, mode=0o700)
        self.layout.store.mkdir(parents=True, exist_ok=True)
        credentials.make(self.layout, ENDPOINTS.server)
        self.enclosure.make()
        with self.enclosure.inside_network():
            self._start(progress)
        self._ready.write_text(str(self.layout.binaries))

    def down(self) -> None:
        """Whatever there is of it."""
        self._ready.unlink(missing_ok=True)
        self.enclosure.remove()
        logs = self.layout.run.parent / "log.previous"
        if self.layout.logs.exists():
            shutil.rmtree(logs, ignore_errors=True)
            self.layout.logs.rename(logs)
        shutil.rmtree(self.layout.run, ignore_errors=True)
        if self.layout.run.exists():
            raise ClusterError(f"cannot remove {self.layout.run}: is a file of it in use?")

    def stop(self, name: str, number: int = signal.SIGKILL) -> None:
        """Stop one component; `resume` starts it again."""
        self._components.require(name)
        self._components.stop(name, number)

    def resume(self, name: str) -> None:
        """Start a stopped component, by the command line that it had."""
        self._components.resume(name)

    def mend(self) -> None:
        """After parts of it were stopped: everything runs again, and serves.

        What watches the API server waits for longer and longer while that is away: over a minute passes before the
        controllers see a new namespace again. So they are started anew.
        """
        self._components.resume("kube-apiserver")
        control_plane.wait_until_ready(self.layout, self._components, ENDPOINTS.server)
        for name in _API_CLIENTS:
            self._components.stop(name, signal.SIGTERM)
        for name in self._components.names:
            self._components.resume(name)
        self._kubectl("delete", *_DEFAULT_ACCOUNT)
        with self.enclosure.inside_network():
            self._wait_until_serving()

    def running(self) -> dict[str, bool]:
        """Which components there are, and whether they run."""
        components = self._components
        return {name: components.record(name).read() is not None for name in components.names}

    def _start(self, progress: Progress) -> None:
        layout, components = self.layout, self._components
        etcd_directory = layout.run / "etcd"
        control_plane.start(layout, components, ENDPOINTS, etcd_directory)
        registries.start(layout, components)
        components.start("containerd", node.containerd(layout, registries.write_hosts(layout)))
        self._import_pause_image()
        progress.note("containerd is up")
        control_plane.wait_until_ready(layout, components, ENDPOINTS.server)
        progress.note("the API server is ready")
        for name, command in (
            ("kube-controller-manager", node.controllers(layout)),
            ("kube-scheduler", node.scheduler(layout)),
            ("kubelet", node.kubelet(layout)),
            ("kube-proxy", node.proxy(layout)),
            ("coredns", node.dns(layout)),
        ):
            components.start(name, command)
        for manifest in (node.DNS_ROLE, node.DNS_ROLE_BINDING):
            self._kubectl("create", "-f", "-", stdin=json.dumps(manifest))
        _wait(self._is_node_ready, "the node is not ready", components, "kubelet")
        progress.note("the node is ready")
        self._wait_until_serving()
        progress.note("service accounts, DNS and registries are there")

    def _wait_until_serving(self) -> None:
        components = self._components
        _wait(
            lambda: bool(self._kubectl("get", *_DEFAULT_ACCOUNT, "--ignore-not-found", "-o=name")),
            "there is no default ServiceAccount",
            components,
            "kube-controller-manager",
        )
        _wait(lambda: _answers(node.DNS_READY), "DNS is not ready", components, "coredns")
        for registry in REGISTRIES:
            components.require(registry.name)

    def _import_pause_image(self) -> None:
        archive = self.layout.run / "pause.tar"
        pause = single_layer({"/pause": self.layout.binaries / "pause"})
        Image(layers=(pause,), entrypoint=("/pause",)).write_archive(archive, PAUSE_IMAGE)
        ctr = [*self.enclosure.join(), "ctr", f"--address={node.CONTAINERD_SOCKET}", "--namespace=k8s.io"]
        said = ""

        def is_imported() -> bool:
            nonlocal said
            done = subprocess.run(
                [*ctr, "images", "import", archive], capture_output=True, text=True, timeout=60, check=False
            )
            said = done.stderr
            return done.returncode == 0

        _wait(is_imported, "containerd does not take images", self._components, "containerd", lambda: said)

    def _is_node_ready(self) -> bool:
        ready = 'jsonpath={.status.conditions[?(@.type=="Ready")].status}'
        return self._kubectl("get", "node", NODE_NAME, "--ignore-not-found", f"-o={ready}") == "True"

    def _kubectl(self, *arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [self.layout.kube, "kubectl", f"--kubeconfig={self.layout.kubeconfig()}", *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if done.returncode:
            raise ClusterError(f"`kubectl {' '.join(arguments)}` failed: {done.stderr.strip()}")
        return done.stdout

    @property
    def _components(self) -> Components:
        return Components(self.layout.run, self.enclosure.join(), self.enclosure.require().pid)


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _wait(
    condition: Callable[[], bool],
    failure: str,
    components: Components,
    name: str,
    reason: Callable[[], str] = lambda: "",
) -> None:
    """Until it holds, while that component lives."""
    limit = time.monotonic() + READY_SECONDS
    while not condition():
        components.require(name)
        if time.monotonic() > limit:
            log = components.last_lines(name)
            raise ClusterError(f"{failure} after {READY_SECONDS} s {reason()}\nThe end of the log of {name}:\n{log}")
        time.sleep(0.1)
