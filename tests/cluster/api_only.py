"""An API server with its etcd and nothing else: for tests that play the kubelet through the status subresource.

It listens on free ports of the loopback interface and needs neither root nor a namespace, since it runs no pods; there
can be any number of them. No controller runs, so that a namespace has no ServiceAccount until somebody makes one.
"""

from __future__ import annotations

import shutil
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import cast

from cluster import control_plane, credentials
from cluster.components import ClusterError, Components, Identity
from cluster.control_plane import Endpoints
from cluster.layout import Layout, api_only


class ApiServer:
    """Started in a directory of its own, which goes with it."""

    def __init__(self, directory: Path) -> None:
        self.layout: Layout = api_only(directory)
        self.endpoints = Endpoints("127.0.0.1", 0, 0, 0)
        """Where it listens, once it is started."""
        self._components = Components(directory)

    def start(self) -> None:
        if not self.layout.kube.exists():
            raise ClusterError("Kubernetes is not built yet: `make cluster-up` does it, once")
        self.layout.run.mkdir(parents=True, exist_ok=True)
        self.endpoints = endpoints = Endpoints("127.0.0.1", *_free_ports(3))
        credentials.make(self.layout, endpoints.server)
        # There is no node that could reach a service: nobody maintains the endpoints of the service `kubernetes`.
        control_plane.start(
            self.layout, self._components, endpoints, self.layout.run / "etcd", "--endpoint-reconciler-type=none"
        )
        control_plane.wait_until_ready(self.layout, self._components, endpoints.server)

    def restart(self) -> None:
        """The API server alone: it forgets what it remembers of the past; etcd keeps the objects."""
        self._components.stop("kube-apiserver")
        limit = time.monotonic() + control_plane.START_SECONDS
        while not control_plane.is_ready(self.layout, self.endpoints.server):
            # The last one may have held the port for a moment longer than it lived.
            self._components.resume("kube-apiserver")
            if time.monotonic() > limit:
                raise ClusterError("the API server cannot be restarted")
            time.sleep(0.1)

    def processes(self) -> dict[str, Identity]:
        return {name: self._components.require(name) for name in self._components.names}

    def stop(self) -> None:
        for name in ("kube-apiserver", "etcd"):
            self._components.stop(name)
        shutil.rmtree(self.layout.run, ignore_errors=True)

    def __enter__(self) -> ApiServer:
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.stop()


def _free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago, all of them different."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [cast(int, probe.getsockname()[1]) for probe in probes]
