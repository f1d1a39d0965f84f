"""A played pod: the scheduler, the kubelet and the container runtime, as far as the API server shows what they do.

The pod is bound, its containers are reported through the status subresource, and its function container is a process on
a loopback address of the pod's own. It is restarted when its image changes, and the object is removed once somebody has
deleted it and the process has ended.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from control_plane.faults import Fault, InitFails, Rejected, Silent, Unschedulable, Waiting
from support.kube import ApiError, Json
from support.namespace import Namespace
from support.server import listens

NODE = "played-node"
WRAPPER_PORT = 9446
FUNCTION = "function"
_LAST_WORDS = 2000
_TICK = 0.02


class _GoneError(Exception):
    """The pod is no more, or the kubelet ends."""


class Node(Protocol):
    """Where pods run."""

    @property
    def namespace(self) -> Namespace: ...

    @property
    def directory(self) -> Path:
        """For the files of pods."""
        ...

    @property
    def wrapper(self) -> Path:
        """The program that their function containers run."""
        ...

    @property
    def fault(self) -> Fault | None:
        """What pods run into that are started now."""
        ...

    @property
    def may_start(self) -> bool:
        """Whether pods may be scheduled now."""
        ...

    @property
    def errors(self) -> list[Exception]:
        """Where what goes wrong in the playing itself is put."""
        ...


class PlayedPod:
    """One pod from its creation to its end, in a thread of its own."""

    def __init__(self, node: Node, pod: Json) -> None:
        self.pod = pod
        self._name: str = pod["metadata"]["name"]
        self._node = node
        self._kube = node.namespace.kube
        self._path = node.namespace.path(f"pods/{self._name}")
        self._directory = node.directory / pod["metadata"]["uid"]
        self._directory.mkdir(parents=True)
        self._address = f"127.{random.randint(1, 254)}.{random.randint(0, 255)}.{random.randint(1, 254)}"
        self._changed = threading.Event()
        self._is_gone = False
        self._process: subprocess.Popen[bytes] | None = None
        self._ends_as = "Error"
        self._evicted = ""
        self._forgets_container = False
        self._restarts = 0
        self._reported_ready = False
        self._thread = threading.Thread(target=self._live, name=f"pod {self._name}")
        self._thread.start()

    # --- what happens to it ---------------------------------------------------------------------------------------

    def saw(self, pod: Json, *, is_gone: bool) -> None:
        """The watch shows it so."""
        self.pod = pod
        self._is_gone |= is_gone
        self._changed.set()

    def stop(self) -> None:
        """The kubelet ends: nothing is left of the pod on this machine."""
        self._is_gone = True
        self._changed.set()

    def join(self) -> None:
        """Wait until that is so."""
        self._thread.join(10)

    def end(self, reason: str) -> None:
        """Kill its function container, for this reason."""
        assert self._process is not None, f"pod {self._name} runs nothing"
        self._ends_as = reason
        os.kill(self._process.pid, signal.SIGKILL)

    def evict(self, message: str, *, forgets_container: bool) -> None:
        """End the pod as a whole, for want of something on its node."""
        self._forgets_container = forgets_container
        self._evicted = message
        self._changed.set()

    # --- its life -------------------------------------------------------------------------------------------------

    def _live(self) -> None:
        try:
            self._schedule()
            if self._begin():
                self._serve()
            self._wait(lambda: False)
        except _GoneError:
            pass
        except Exception as error:
            self._node.errors.append(error)
        finally:
            self._kill()

    def _schedule(self) -> None:
        if isinstance(self._node.fault, Unschedulable):
            condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}
            self._report({"conditions": [{**condition, "message": self._node.fault.message}]})
        self._wait(lambda: self._node.may_start and not self.pod["spec"].get("schedulingGates"))
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": self._name}, "target": target}
        self._ask("POST", f"{self._path}/binding", binding)

    def _begin(self) -> bool:
        """Whether its containers come to be started."""
        match self._node.fault:
            case Rejected(reason, message):
                self._report({"phase": "Failed", "reason": reason, "message": message})
                return False
            case InitFails(code, message):
                ended = {"terminated": {"exitCode": code, "reason": "Error", "message": message}}
                self._report({"phase": "Failed", **self._statuses(_waiting("PodInitializing"), init=ended)})
                return False
            case Waiting(reason, message, event):
                if event:
                    self._warn(event)
                state = _waiting("ContainerCreating") if event else _waiting(reason, message)
                self._report({"phase": "Pending", "podIP": self._address, **self._statuses(state)})
                return False
            case _:
                return True

    def _serve(self) -> None:
        """Run its function container until the pod is gone or has failed, and again when it gets another image."""
        while True:
            image = self._function["image"]
            if not self._start():
                return
            process = self._process
            assert process is not None
            self._report({"phase": "Running", **self._statuses(_running())})
            while process.poll() is None and not self._is_deleted and not self._evicted:
                if self._function["image"] != image:
                    break
                if listens(f"{self._address}:{WRAPPER_PORT}") and not self._reported_ready:
                    self._report({"phase": "Running", **self._statuses(_running(), is_ready=True)})
                self._pause()
            if self._is_deleted:
                self._leave()
            if self._evicted:
                self._kill()
                self._report_eviction()
                return
            if process.poll() is not None:
                self._report_end(process.returncode)
                return
            self._terminate(5)
            self._restarts += 1

    def _start(self) -> bool:
        """Start its function container; whether it could be."""
        command: list[str] = self._function.get("command", []) + self._function.get("args", [])
        program, *words = (word.replace("$$", "$") for word in command)
        if isinstance(self._node.fault, Silent):
            program, words = "sleep", ["3600"]
        elif program.endswith("/wrapper-server"):
            program, words = str(self._node.wrapper), ["--address", self._address, *words]
        self._reported_ready = False
        self._ends_as = "Error"
        try:
            with (self._directory / "log").open("wb") as log:
                self._process = subprocess.Popen(
                    [program, *words],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    cwd=self._directory,
                    env=self._environment(),
                    process_group=0,
                )
        except OSError as error:
            message = f"failed to create containerd task: exec: {program!r}: {error.strerror}".lower()
            ended = {"terminated": {"exitCode": 128, "reason": "StartError", "message": message}}
            self._report({"phase": "Failed", **self._statuses(ended)})
            return False
        return True

    def _environment(self) -> dict[str, str]:
        found = {"PATH": os.environ["PATH"], "HOSTNAME": self._name, "TMPDIR": str(self._directory)}
        annotations = self.pod["metadata"].get("annotations", {})
        for variable in self._function.get("env", []):
            field = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            key = field.removeprefix("metadata.annotations['").removesuffix("']")
            found[variable["name"]] = annotations.get(key, "") if field else variable.get("value", "")
        return found

    def _report_end(self, code: int) -> None:
        words = (self._directory / "log").read_text(errors="replace")[-_LAST_WORDS:]
        exit_code = 128 - code if code < 0 else code
        ended = {"terminated": {"exitCode": exit_code, "reason": self._ends_as, "message": words}}
        if self.pod["spec"]["restartPolicy"] == "Never":
            self._report({"phase": "Failed", **self._statuses(ended)})
        else:
            self._report({"phase": "Running", **self._statuses(_waiting("CrashLoopBackOff"), last=ended)})

    def _report_eviction(self) -> None:
        self._warn(self._evicted, reason="Evicted")
        if self._forgets_container:
            self._restarts = 0
            ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
            self._report({"phase": "Succeeded", **self._statuses(ended)})
        else:
            self._report({"phase": "Failed", "reason": "Evicted", "message": self._evicted})

    def _leave(self) -> None:
        """Somebody deleted it: its container has its time to end, then the object goes."""
        self._terminate(self.pod["metadata"].get("deletionGracePeriodSeconds", 0))
        with suppress(_GoneError):
            self._ask("DELETE", self._path, {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0})
        raise _GoneError

    def _terminate(self, seconds: float) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            end = time.monotonic() + seconds
            while self._process.poll() is None and time.monotonic() < end and not self._is_gone:
                time.sleep(_TICK)
        self._kill()

    def _kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)

    # --- what it looks at and what it says ------------------------------------------------------------------------

    @property
    def _function(self) -> Json:
        containers: list[Json] = self.pod["spec"]["containers"]
        return next(container for container in containers if container["name"] == FUNCTION)

    @property
    def _is_deleted(self) -> bool:
        return "deletionTimestamp" in self.pod["metadata"]

    def _wait(self, condition: Callable[[], bool]) -> None:
        while not condition():
            if self._is_deleted:
                self._leave()
            self._pause()

    def _pause(self) -> None:
        if self._is_gone:
            raise _GoneError
        self._changed.wait(_TICK)
        self._changed.clear()

    def _statuses(
        self, state: Json, *, init: Json | None = None, last: Json | None = None, is_ready: bool = False
    ) -> Json:
        spec = self.pod["spec"]
        done = init or {"terminated": {"exitCode": 0, "reason": "Completed"}}
        is_initialized = init is None
        self._reported_ready = is_ready
        conditions = {
            "PodScheduled": True,
            "Initialized": is_initialized,
            "ContainersReady": is_ready,
            "Ready": is_ready,
        }
        found: Json = {
            "podIP": self._address,
            "podIPs": [{"ip": self._address}],
            "conditions": [
                {"type": kind, "status": "True" if holds else "False"} for kind, holds in conditions.items()
            ],
            "initContainerStatuses": [
                _container_status(container, done, is_ready=is_initialized)
                for container in spec.get("initContainers", [])
            ],
            "containerStatuses": [
                _container_status(
                    container,
                    state if container["name"] == FUNCTION else _running(),
                    is_ready=is_ready,
                    last=last,
                    restarts=self._restarts,
                )
                for container in spec["containers"]
            ],
        }
        return found

    def _report(self, status: Json) -> None:
        self._ask("PATCH", f"{self._path}/status", {"status": status}, "application/merge-patch+json")

    def _warn(self, message: str, *, reason: str = "Failed") -> None:
        metadata = self.pod["metadata"]
        about = {"kind": "Pod", "name": self._name, "namespace": metadata["namespace"], "uid": metadata["uid"]}
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{self._name}.{uuid.uuid4().hex[:8]}", "namespace": metadata["namespace"]},
            "involvedObject": {**about, "fieldPath": f"spec.containers{{{FUNCTION}}}"},
            "type": "Warning",
            "reason": reason,
            "message": message,
            "lastTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        self._ask("POST", self._node.namespace.path("events"), event)

    def _ask(self, method: str, path: str, body: Json, content_type: str = "application/json") -> None:
        """Patiently, since the API server may be restarted meanwhile."""
        while True:
            try:
                self._kube.request(method, path, body, content_type)
                return
            except ApiError as error:
                if error.status in (404, 409):
                    # It went just now, or another of its name has come.
                    raise _GoneError from None
                if error.status < 500:
                    raise
            self._pause()


def _waiting(reason: str, message: str = "") -> Json:
    return {"waiting": {"reason": reason, "message": message}}


def _running() -> Json:
    return {"running": {"startedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}}


def _container_status(
    container: Json, state: Json, *, is_ready: bool, last: Json | None = None, restarts: int = 0
) -> Json:
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": container["image"],
        "ready": is_ready,
        "restartCount": restarts,
        "state": state,
        "lastState": last or {},
    }
