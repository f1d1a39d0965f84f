"""Keeps the pull secret equal to the mounted credentials: made, compared, written again when the file changes.

What to do is decided in `core.pull_secret`; here it is done. Several runners do this at once: whoever comes second
finds a conflict, looks again, and mostly finds nothing left to do. A runner overwrites only when its own file changed,
so that one whose mount lags behind does not undo what another wrote; a Secret that is gone is made again.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Protocol

import structlog

from krm_runner.core.backoff import Backoff
from krm_runner.core.errors import (
    ConfigurationError,
    KrmRunnerError,
    KubernetesConflictError,
    KubernetesNotFoundError,
    KubernetesUnavailableError,
)
from krm_runner.core.json_object import JsonObject
from krm_runner.core.pull_secret import Create, Decision, LeaveAlone, Refuse, Update, decide
from krm_runner.core.registry_auth import parse_docker_config
from krm_runner.files.watched_file import Signature, read_bounded, signature_of

_log = structlog.get_logger("krm_runner.pods")
_LOOK_INTERVAL = 1.0
_CHECK_INTERVAL = 60.0
_MAX_CONFLICTS = 10
_BACKOFF = Backoff(first=1.0, longest=30.0)
_CONFLICT_BACKOFF = Backoff(first=0.05, longest=1.0)


class Api(Protocol):
    """What is needed of the Kubernetes API."""

    async def get(self, path: str) -> JsonObject: ...

    async def create(self, path: str, body: JsonObject) -> JsonObject: ...

    async def replace(self, path: str, body: JsonObject) -> JsonObject: ...


class PullSecret:
    """One Secret and the file that it is a copy of."""

    def __init__(
        self, api: Api, *, path: Path, name: str, namespace: str, check_interval: float = _CHECK_INTERVAL
    ) -> None:
        self._api = api
        self._path = path
        self.name = name
        self._namespace = namespace
        self._check_interval = check_interval
        self._collection = f"/api/v1/namespaces/{namespace}/secrets"
        self._tried: Signature = None
        """The version of the file that was looked at last."""
        self._written: Signature = None
        """The version of the file that the Secret was made equal to."""

    async def ensure(self, *, overwrite: bool = True) -> Decision:
        """Make the Secret equal to the file, once; what was done.

        ConfigurationError when the file is broken or the Secret is somebody else's; a KubernetesError when the API
        server refuses or is away.
        """
        signature = self._tried = signature_of(self._path)
        content = read_bounded(self._path)
        await asyncio.to_thread(parse_docker_config, content, source=str(self._path))
        for attempt in range(1, _MAX_CONFLICTS + 1):
            try:
                decision = await self._try_once(content, overwrite=overwrite)
            except KubernetesConflictError:
                if attempt == _MAX_CONFLICTS:
                    raise
                await asyncio.sleep(_CONFLICT_BACKOFF.delay(attempt, chance=random.random()))  # noqa: S311 - jitter
            else:
                self._written = signature
                return decision
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def keep(self) -> None:
        """Make it so whenever the file changes, and look now and then whether it is still there; never returns."""
        failures, wait = 0, 0.0
        while True:
            await self._wait_for_change(wait)
            try:
                await self.ensure(overwrite=signature_of(self._path) != self._written)
            except KrmRunnerError as error:
                failures += 1
                wait = _BACKOFF.delay(failures, chance=random.random())  # noqa: S311 - jitter
                if isinstance(error, KubernetesUnavailableError):
                    wait = max(wait, error.retry_after or 0.0)
                _log.error("pull secret not kept", secret=self.name, error=str(error), again_after=wait)
            else:
                failures, wait = 0, self._check_interval

    async def _wait_for_change(self, seconds: float) -> None:
        """Returns when the file is another than was tried last, or the time is over.

        A change counts when two looks saw the same: a file that is just being written is not read.
        """
        loop = asyncio.get_running_loop()
        end, previous = loop.time() + seconds, self._tried
        while loop.time() < end:
            await asyncio.sleep(_LOOK_INTERVAL)
            seen = signature_of(self._path)
            if seen is not None and seen == previous != self._tried:
                return
            previous = seen

    async def _try_once(self, content: bytes, *, overwrite: bool) -> Decision:
        path = f"{self._collection}/{self.name}"
        found: JsonObject | None
        try:
            found = await self._api.get(path)
        except KubernetesNotFoundError:
            found = None
        decision = decide(found, content, name=self.name, namespace=self._namespace, overwrite=overwrite)
        match decision:
            case Create(body):
                await self._api.create(self._collection, body)
                _log.info("pull secret created", secret=self.name, namespace=self._namespace)
            case Update(body):
                await self._api.replace(path, body)
                _log.info("pull secret updated", secret=self.name, namespace=self._namespace)
            case Refuse(why):
                raise ConfigurationError(why)
            case LeaveAlone():
                pass
        return decision
