"""A copy of a collection that the cluster holds, kept by list and watch for as long as the process lives.

First everything is listed, then every change is watched from there on; a watch that ends goes on where it stopped, and
where that is too long ago (410 Gone) everything is listed anew. After 410, and while the API server is away, it is
asked again with a delay that grows; the copy stays as it was, and the log says so. What the objects mean is the copy's
business, and so is what to do where the account may not list or watch, or there is nothing to list, if it wants to
know.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping
from enum import Enum
from typing import NoReturn, Protocol, cast

import structlog

from krm_runner.core.backoff import Backoff
from krm_runner.core.errors import KubernetesError, KubernetesUnavailableError
from krm_runner.core.json_object import JsonObject, as_object, as_text
from krm_runner.kube.client import KubeClient
from krm_runner.telemetry.internal_errors import contained

_log = structlog.get_logger("krm_runner.kube")
_FORBIDDEN, _NOT_FOUND, _GONE = 403, 404, 410
_WATCH_SECONDS = 300.0
_SILENCE_MARGIN = 15.0
_LONGEST_SILENCE = 150.0
"""Bookmarks come about once a minute: a connection without a word for longer is dead."""
_SHORTEST_WATCH = 0.5
_BACKOFF = Backoff(first=0.2, longest=5.0)
"""For an API server that is away: calls wait for what the watch will show."""
_BACKOFF_WHEN_REFUSED = Backoff(first=0.2, longest=30.0)


class ChangeKind(Enum):
    """What happened to an object."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"


class Copy(Protocol):
    """Whoever is told."""

    def replaced(self, objects: list[JsonObject]) -> None:
        """These are all there are now."""
        ...

    def changed(self, kind: ChangeKind, found: JsonObject) -> None:
        """One of them is another now."""
        ...


class Reflector:
    """Keeps one copy."""

    def __init__(
        self,
        client: KubeClient,
        path: str,
        copy: Copy,
        *,
        query: Mapping[str, str] | None = None,
        watch_seconds: float = _WATCH_SECONDS,
        is_certain: bool = True,
        metadata_only: bool = False,
    ) -> None:
        self.listed = asyncio.Event()
        """Set once everything was listed for the first time."""
        self._client = client
        self._path = path
        self._copy = copy
        self._query = dict(query or {})
        self._watch_seconds = watch_seconds
        self._is_certain = is_certain
        self._metadata_only = metadata_only
        self._version = ""
        self._failures = 0
        self._connected_since: float | None = None
        self._trouble: KubernetesError | None = None

    @property
    def trouble(self) -> KubernetesError | None:
        """What the API server said, or why it said nothing, when it was asked last; None while it answers."""
        return self._trouble

    @property
    def connected_since(self) -> float | None:
        """Since when (on the loop's clock) every change is heard of; None while the API server is away.

        What was missed meanwhile may still be on its way: who must not act on old knowledge waits a while from then.
        """
        return self._connected_since

    async def run(self) -> NoReturn:
        """Never returns, and never gives up; cancel it.

        Where it is not certain that the account may do this, or that there is such a collection (`is_certain`),
        KubernetesForbiddenError and KubernetesNotFoundError say so.
        """
        while True:
            try:
                if not self._version:
                    await self._list()
                await self._watch()
            except KubernetesError as error:
                if error.status == _GONE:
                    # Everything must be listed; if the list is too old again, not in a tight loop.
                    self._version = ""
                if error.status in (_FORBIDDEN, _NOT_FOUND) and not self._is_certain:
                    self._connected_since = None
                    raise
                await self._wait_after(error)

    async def _list(self) -> None:
        listing = await self._client.get(self._path, self._query, metadata_only=self._metadata_only)
        items = listing.get("items")
        objects = [as_object(item) for item in cast(list[object], items)] if isinstance(items, list) else []
        self._copy.replaced(objects)
        self._version = as_text(as_object(listing.get("metadata")).get("resourceVersion"))
        self._connected()
        self.listed.set()
        _log.debug("listed", path=self._path, count=len(objects), resource_version=self._version)

    async def _watch(self) -> None:
        """Returns when the server ends the watch, as it does now and then."""
        # Not all watches of all runners end in the same moment.
        seconds = self._watch_seconds * random.uniform(0.8, 1.2)  # noqa: S311 - jitter
        query = self._query | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(max(1, round(seconds))),
        }
        loop = asyncio.get_running_loop()
        started = loop.time()
        async with (
            self._client.stream(
                self._path, query, seconds=seconds + _SILENCE_MARGIN, metadata_only=self._metadata_only
            ) as lines,
            asyncio.timeout(_LONGEST_SILENCE) as silence,
        ):
            self._connected()
            opened = loop.time()
            try:
                async for line in lines:
                    silence.reschedule(loop.time() + _LONGEST_SILENCE)
                    self._hear(line)
                    self._failures = 0
                    # Many changes may come in one piece: other tasks run between them.
                    await asyncio.sleep(0)
            finally:
                if loop.time() - opened >= _BACKOFF.longest:
                    self._failures = 0
        if loop.time() - started < _SHORTEST_WATCH:
            # Without this a server that ends every watch at once would be asked without pause.
            raise KubernetesUnavailableError(f"watch of {self._path}: it ended at once")

    def _hear(self, line: bytes) -> None:
        event = _event(line)
        kind, found = as_text(event.get("type")), as_object(event.get("object"))
        if kind == "ERROR":
            message = as_text(found.get("message")) or "no reason given"
            if found.get("code") == _GONE:
                raise KubernetesError(f"watch of {self._path}: {message}", status=_GONE)
            raise KubernetesUnavailableError(f"watch of {self._path}: {message}")
        version = as_text(as_object(found.get("metadata")).get("resourceVersion"))
        if kind != "BOOKMARK":
            try:
                change = ChangeKind(kind)
            except ValueError as error:
                raise KubernetesUnavailableError(f"watch of {self._path}: an event of unknown type {kind!r}") from error
            self._tell(change, found)
        self._version = version or self._version

    def _tell(self, change: ChangeKind, found: JsonObject) -> None:
        """Hand one event on. A defect in what is done about it must not end the watch of all other objects."""
        name = as_text(as_object(found.get("metadata")).get("name"))
        with contained("watch event", path=self._path, change=change.value, name=name):
            self._copy.changed(change, found)

    def _connected(self) -> None:
        if self._trouble is not None:
            _log.info("the API server answers again", path=self._path, failures=self._failures)
        self._trouble = None
        if self._connected_since is None:
            self._connected_since = asyncio.get_running_loop().time()

    async def _wait_after(self, error: KubernetesError) -> None:
        self._failures += 1
        self._connected_since = None
        self._trouble = error
        is_refused = not isinstance(error, KubernetesUnavailableError) and error.status != _GONE
        backoff = _BACKOFF_WHEN_REFUSED if is_refused else _BACKOFF
        delay = backoff.delay(self._failures, chance=random.random())  # noqa: S311 - jitter
        if isinstance(error, KubernetesUnavailableError):
            delay = max(delay, error.retry_after or 0.0)
        _log.warning("watch interrupted", path=self._path, error=str(error), again_after=delay, failures=self._failures)
        await asyncio.sleep(delay)


def _event(line: bytes) -> JsonObject:
    try:
        return as_object(json.loads(line))
    except (ValueError, RecursionError) as error:
        raise KubernetesUnavailableError("the API server sends a watch event that is no JSON") from error
