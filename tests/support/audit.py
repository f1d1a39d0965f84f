"""The API server's audit log, counted: who asked for what, how often."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path


@dataclass(frozen=True)
class Request:
    """One request, when it was answered; a watch when it began and when it ended."""

    user: str
    verb: str
    resource: str
    namespace: str
    name: str
    code: int
    stage: str
    at: float
    """When it came in, in unix seconds."""


class AuditLog:
    """From the moment on that it was made."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._start = path.stat().st_size

    def requests(self, user: str | None = None, namespace: str | None = None) -> list[Request]:
        """What is complete; `user` as Kubernetes says it: `system:serviceaccount:<namespace>:<name>`."""
        with self._path.open("rb") as file:
            file.seek(self._start)
            content = file.read()
        complete = content[: content.rfind(b"\n") + 1]
        found = [_request(line) for line in complete.splitlines()]
        return [request for request in found if user in (None, request.user) and namespace in (None, request.namespace)]

    def done(self, verb: str, resource: str, namespace: str, user: str | None = None) -> list[Request]:
        """What was asked for and was granted, in the order in which it ended."""
        return [
            request
            for request in self.requests(user, namespace)
            if (request.verb, request.resource, request.stage) == (verb, resource, "ResponseComplete")
            and request.code < 300
        ]

    def count(self, user: str | None = None, namespace: str | None = None) -> Counter[str]:
        """`<verb> <resource>` → how often; a watch counts once."""
        wanted = [request for request in self.requests(user, namespace) if request.stage != "ResponseStarted"]
        return Counter(f"{request.verb} {request.resource}" for request in wanted)


def _request(line: bytes) -> Request:
    event = json.loads(line)
    about = event.get("objectRef", {})
    resource = "/".join(part for part in (about.get("resource", ""), about.get("subresource", "")) if part)
    return Request(
        user=event["user"]["username"],
        verb=event["verb"],
        resource=resource or event["requestURI"],
        namespace=about.get("namespace", ""),
        name=about.get("name", ""),
        code=event.get("responseStatus", {}).get("code", 0),
        stage=event["stage"],
        at=datetime.fromisoformat(event["requestReceivedTimestamp"]).timestamp(),
    )
