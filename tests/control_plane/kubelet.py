"""A played kubelet: runs the function pods of one namespace as processes on loopback addresses.

A test can hold pods back (`hold`), make their start fail (`fault`), and end them (`kill`, `run_out_of_memory`,
`evict`). Images are not pulled: their entrypoints are files of this machine (`control_plane.local_images`). Pods
without a container `function` are left alone.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from control_plane.faults import Fault, Unschedulable
from control_plane.pod import FUNCTION, PlayedPod
from support.kube import ApiError, Json
from support.namespace import Namespace

_PAUSE = 0.02
"""Between two watches."""
_INTERRUPTIONS = (OSError, ApiError, http.client.HTTPException)


class Kubelet:
    """Runs pods from the moment it is entered; every process that it started ends with it."""

    def __init__(self, namespace: Namespace, directory: Path, wrapper: Path) -> None:
        self.namespace = namespace
        self.directory = directory
        self.wrapper = wrapper
        self.fault: Fault | None = None
        """What pods that are started from now on run into. Clearing it frees the unschedulable ones."""
        self._may_start = threading.Event()
        self._may_start.set()
        self._pods: dict[str, PlayedPod] = {}
        self._kube = namespace.kube
        self._watch = self._kube.watch(namespace.path("pods"))
        self._watcher = threading.Thread(target=self._follow, name="played kubelet")
        self._is_over = False
        self.errors: list[Exception] = []
        """What went wrong in the kubelet itself: it fails the test."""

    @property
    def may_start(self) -> bool:
        """Whether pods may be scheduled now."""
        return self._may_start.is_set() and not isinstance(self.fault, Unschedulable)

    @contextmanager
    def hold(self) -> Generator[None]:
        """No pod gets a node meanwhile."""
        self._may_start.clear()
        try:
            yield
        finally:
            self._may_start.set()

    def kill(self, pod: Json) -> None:
        """As if the wrapper had crashed."""
        self._of(pod).end("Error")

    def run_out_of_memory(self, pod: Json) -> None:
        """The kernel takes everything in the container."""
        self._of(pod).end("OOMKilled")

    def evict(self, pod: Json, message: str, *, forgets_container: bool = False) -> None:
        """The node is short of something: the pod fails as a whole. The container of a function may be removed before
        that is reported: then the status is that of the spare's container, and only an event has the reason."""
        self._of(pod).evict(message, forgets_container=forgets_container)

    def __enter__(self) -> Kubelet:
        self._watcher.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._is_over = True
        while self._watcher.is_alive():
            self._watch.close()
            self._watcher.join(0.1)
        for pod in self._pods.values():
            pod.stop()
        for pod in self._pods.values():
            pod.join()

    def _of(self, pod: Json) -> PlayedPod:
        return self._pods[pod["metadata"]["uid"]]

    def _follow(self) -> None:
        """Through watches that end, as they do when the API server is restarted."""
        try:
            while not self._is_over:
                with suppress(*_INTERRUPTIONS):
                    for kind, found in self._watch:
                        self._saw(found, is_gone=kind == "DELETED")
                if not self._is_over:
                    time.sleep(_PAUSE)
                    with suppress(*_INTERRUPTIONS):
                        self._catch_up()
        except Exception as error:
            self.errors.append(error)
        finally:
            self._watch.close()

    def _catch_up(self) -> None:
        """Open another watch, and see which pods went between the two."""
        self._watch = self._kube.watch(self.namespace.path("pods"))
        there = {pod["metadata"]["uid"] for pod in self._kube.items(self.namespace.path("pods"))}
        for uid, pod in self._pods.items():
            if uid not in there:
                pod.saw(pod.pod, is_gone=True)

    def _saw(self, pod: Json, *, is_gone: bool) -> None:
        uid = pod["metadata"]["uid"]
        if uid not in self._pods:
            if is_gone or not _is_function_pod(pod):
                return
            self._pods[uid] = PlayedPod(self, pod)
        self._pods[uid].saw(pod, is_gone=is_gone)


def _is_function_pod(pod: Json) -> bool:
    """Others are left to the test."""
    return any(container["name"] == FUNCTION for container in pod["spec"]["containers"])
