"""The API of any cluster, for tests: plain JSON through `kubectl proxy`, which knows every way to authenticate.

The tests look at the cluster with another client than the one that the runner is made with.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlencode

Json = dict[str, Any]
_SECONDS = 60


class ApiError(Exception):
    """The API server refused; `reason` is its own word for it."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason


class Kube:
    """The administrator's view."""

    def __init__(self, kubeconfig: Path, kubectl: Path | str = "kubectl") -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="kube-")
        self._socket = Path(self._directory.name) / "api"
        self._proxy = subprocess.Popen(
            [kubectl, "proxy", f"--kubeconfig={kubeconfig}", f"--unix-socket={self._socket}"],
            stdout=subprocess.DEVNULL,
            env=os.environ | {"KUBECONFIG": str(kubeconfig)},
        )
        wait_until(self._listens, what="kubectl proxy listens")

    def create(self, manifest: Json) -> Json:
        """The object as the API server has it."""
        return self.request("POST", collection(manifest, manifest["metadata"].get("namespace")), manifest)

    def read(self, path: str) -> Json:
        return self.request("GET", path)

    def items(self, path: str, **query: str) -> list[Json]:
        """What a list has."""
        found: list[Json] = self.request("GET", f"{path}?{urlencode(query)}" if query else path)["items"]
        return found

    def delete(self, path: str, **options: object) -> None:
        self.request("DELETE", path, {"kind": "DeleteOptions", "apiVersion": "v1", **options})

    def patch(self, path: str, change: Json) -> Json:
        """A merge patch: for a pod's status, that of its status subresource."""
        return self.request("PATCH", path, change, "application/merge-patch+json")

    def watch(self, path: str) -> Watch:
        """What happens to the objects of a list, beginning with those that are there."""
        connection = _UnixConnection(self._socket)
        connection.request("GET", f"{path}?watch=true")
        return Watch(connection)

    def text(self, path: str) -> str:
        """What is no JSON: logs."""
        return self._exchange("GET", path, None, "").decode(errors="replace")

    def request(self, method: str, path: str, body: Json | None = None, content_type: str = "application/json") -> Json:
        answer: Json = json.loads(self._exchange(method, path, body, content_type))
        return answer

    def close(self) -> None:
        self._proxy.terminate()
        self._proxy.wait(30)
        self._directory.cleanup()

    def __enter__(self) -> Kube:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _exchange(self, method: str, path: str, body: Json | None, content_type: str) -> bytes:
        connection = _UnixConnection(self._socket)
        try:
            headers = {"Content-Type": content_type} if body is not None else {}
            connection.request(method, path, json.dumps(body) if body is not None else None, headers)
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        if response.status >= 400:
            raise _error(response.status, content)
        return content

    def _listens(self) -> bool:
        if self._proxy.poll() is not None:
            raise AssertionError(f"kubectl proxy has ended with exit code {self._proxy.returncode}")
        return self._socket.exists()


def collection(manifest: Json, namespace: str | None) -> str:
    """Where objects of this kind are."""
    version, kind = str(manifest["apiVersion"]), str(manifest["kind"]).lower()
    plural = f"{kind[:-1]}ies" if kind.endswith("y") else f"{kind}es" if kind.endswith("s") else f"{kind}s"
    group = f"/apis/{version}" if "/" in version else f"/api/{version}"
    return f"{group}/namespaces/{namespace}/{plural}" if namespace else f"{group}/{plural}"


def wait_until(condition: Callable[[], bool], *, what: str, seconds: float = _SECONDS) -> None:
    """Fails the test when it never happens."""
    limit = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > limit:
            raise AssertionError(f"never happened in {seconds:.0f} s: {what}")
        time.sleep(0.1)


def _error(status: int, content: bytes) -> ApiError:
    try:
        said = json.loads(content)
        return ApiError(status, said.get("reason", ""), said.get("message", ""))
    except ValueError:
        return ApiError(status, "", content.decode(errors="replace")[:500])


class Watch:
    """Changes as they come: what kind of change, and the object. Any thread may close it, which ends the iteration."""

    def __init__(self, connection: _UnixConnection) -> None:
        connection.sock.settimeout(None)
        self._connection = connection
        self._socket = connection.sock
        self._is_closed = False
        self._is_read = False

    def __iter__(self) -> Iterator[tuple[str, Json]]:
        self._is_read = True
        try:
            with self._connection.getresponse() as response:
                if response.status >= 400:
                    raise _error(response.status, response.read())
                for line in response:
                    event = json.loads(line)
                    yield event["type"], event["object"]
        except (OSError, http.client.HTTPException):
            if not self._is_closed:
                raise
        finally:
            self._connection.close()

    def close(self) -> None:
        self._is_closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if not self._is_read:
            self._connection.close()


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
