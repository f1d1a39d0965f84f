"""How a pod is, with what the cluster says beside the pod itself: its events, and the last lines of a container's log.

Both need rights that the runner's role may not have: what is refused is said once, and left out for a while. The answer
never takes long: what has not come by then is left out too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol, TypeVar

import structlog

from krm_runner.core.errors import KubernetesError, KubernetesForbiddenError
from krm_runner.core.json_object import JsonObject, as_list, as_object, as_text
from krm_runner.core.pod_status import (
    PodStatus,
    Ready,
    SilentEnd,
    Terminating,
    pod_status,
    silent_end,
    with_last_words,
)

T = TypeVar("T")

_log = structlog.get_logger("krm_runner.pods")
_PATIENCE = 2.0
_FORBIDDEN_FOR = 600.0
_MAX_EVENTS = 100
_LOG_LINES = 10
_LOG_BYTES = 4096


class Api(Protocol):
    """What is needed of the Kubernetes API."""

    async def get(self, path: str, query: Mapping[str, str], *, timeout: float | None = None) -> JsonObject: ...

    async def text(self, path: str, query: Mapping[str, str], *, limit: int, timeout: float | None = None) -> str: ...


class Evidence:
    """Of the pods of one namespace."""

    def __init__(self, api: Api, *, namespace: str, forbidden_for: float = _FORBIDDEN_FOR) -> None:
        self._api = api
        self._namespace = f"/api/v1/namespaces/{namespace}"
        self._forbidden_for = forbidden_for
        self._forbidden_until: dict[str, float] = {}
        """What the account may not read, and when that is tried again."""

    async def status_of(self, pod: JsonObject) -> PodStatus:
        """Never raises but CancelledError, and never takes much longer than two seconds."""
        status = pod_status(pod)
        if isinstance(status, Ready | Terminating):
            return status
        silent = silent_end(pod)
        events = asyncio.create_task(self._ask("events", lambda: self._events(pod)))
        words = asyncio.create_task(self._ask("logs", lambda: self._last_words(pod, silent)))
        try:
            await asyncio.wait({events, words}, timeout=_PATIENCE)
        finally:
            events.cancel()
            words.cancel()
        said = words.result() if words.done() else None
        heard = events.result() if events.done() else None
        return pod_status(with_last_words(pod, silent, said) if silent and said else pod, heard or ())

    async def _events(self, pod: JsonObject) -> list[JsonObject]:
        uid = as_text(as_object(pod.get("metadata")).get("uid"))
        query = {"fieldSelector": f"involvedObject.uid={uid},type=Warning", "limit": str(_MAX_EVENTS)}
        found = await self._api.get(f"{self._namespace}/events", query, timeout=_PATIENCE)
        return [as_object(event) for event in as_list(found.get("items"))]

    async def _last_words(self, pod: JsonObject, silent: SilentEnd | None) -> str:
        if silent is None:
            return ""
        name = as_text(as_object(pod.get("metadata")).get("name"))
        query = {"container": silent.container, "tailLines": str(_LOG_LINES), "limitBytes": str(_LOG_BYTES)}
        if silent.is_previous:
            query["previous"] = "true"
        text = await self._api.text(f"{self._namespace}/pods/{name}/log", query, limit=_LOG_BYTES, timeout=_PATIENCE)
        return text.strip()

    async def _ask(self, what: str, ask: Callable[[], Awaitable[T]]) -> T | None:
        """The answer, if it may be had."""
        now = asyncio.get_running_loop().time()
        if now < self._forbidden_until.get(what, now):
            return None
        try:
            return await ask()
        except KubernetesForbiddenError as error:
            if what not in self._forbidden_until:
                _log.info(f"{what} of pods may not be read: errors have less to say", error=str(error))
            self._forbidden_until[what] = now + self._forbidden_for
        except KubernetesError as error:
            _log.debug(f"{what} of a pod not read", error=str(error))
        return None
