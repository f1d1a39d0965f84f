"""Where the template of function pods comes from: it is built in, or a ConfigMap has it.

The ConfigMap is watched; where the account may not watch it is looked at now and then, and the log says that once. A
template that breaks the contract never replaces a good one: the last good one stays in force, also when the ConfigMap
is gone, and `problem` says why the newest does not count.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Protocol

import structlog

from krm_runner.core.backoff import Backoff
from krm_runner.core.errors import (
    ConfigurationError,
    KubernetesError,
    KubernetesForbiddenError,
    KubernetesNotFoundError,
    KubernetesUnavailableError,
)
from krm_runner.core.json_object import JsonObject, as_object, as_text
from krm_runner.core.pod_template import PodTemplate, template_of
from krm_runner.kube.client import KubeClient
from krm_runner.kube.reflector import ChangeKind, Reflector
from krm_runner.telemetry.internal_errors import contained

_log = structlog.get_logger("krm_runner.pods")
_FLAG = "--function-pod-template"
POLL_INTERVAL = 10.0
"""How often the template is read where it may not be watched."""
_POLLS_BEFORE_WATCH = 60
"""Somebody may grant the right to watch meanwhile."""
_BACKOFF = Backoff(first=0.2, longest=2.0)


class TemplateSource(Protocol):
    """Who knows the template that counts."""

    on_change: Callable[[PodTemplate], None]
    """Hears of every new one."""

    @property
    def current(self) -> PodTemplate | None:
        """None while there is none."""
        ...

    @property
    def problem(self) -> str:
        """Why there is no template, or why the newest is refused; empty when all is well."""
        ...

    async def load(self, *, timeout: float) -> None:
        """Returns when it is known what there is, or the time is over."""
        ...

    async def keep(self) -> None:
        """Keeps it up to date; never returns."""
        ...


class BuiltInTemplate:
    """Stays as it is."""

    def __init__(self, template: PodTemplate) -> None:
        self.current: PodTemplate | None = template
        self.problem = ""
        self.on_change: Callable[[PodTemplate], None] = _nobody_listens

    async def load(self, *, timeout: float) -> None:
        """There is nothing to wait for."""

    async def keep(self) -> None:
        """There is nothing to do."""
        await asyncio.Event().wait()


class ConfigMapTemplate:
    """In one ConfigMap, whoever writes it."""

    def __init__(self, client: KubeClient, *, namespace: str, name: str, poll_interval: float = POLL_INTERVAL) -> None:
        self.current: PodTemplate | None = None
        self.problem = f'{_FLAG}: ConfigMap "{name}" in namespace {namespace} was not read yet'
        self.on_change: Callable[[PodTemplate], None] = _nobody_listens
        self._client = client
        self._namespace = namespace
        self._name = name
        self._poll_interval = poll_interval
        self._collection = f"/api/v1/namespaces/{namespace}/configmaps"
        self._path = f"{self._collection}/{name}"
        self._read = ""
        """The version that was looked at last, good or not."""
        self._has_said_polling = False

    async def load(self, *, timeout: float) -> None:
        """Ask until there is an answer, whichever; while the API server is away, until the time is over."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout
        failures = 0
        while (left := deadline - loop.time()) > 0:
            error = await self._look(timeout=left)
            if not isinstance(error, KubernetesUnavailableError):
                return
            failures += 1
            delay = max(_BACKOFF.delay(failures, chance=random.random()), error.retry_after or 0.0)  # noqa: S311 - jitter
            await asyncio.sleep(min(delay, max(0.0, deadline - loop.time())))

    async def keep(self) -> None:
        """Never returns."""
        while True:
            reflector = Reflector(
                self._client,
                self._collection,
                self,
                query={"fieldSelector": f"metadata.name={self._name}"},
                is_certain=False,
            )
            try:
                await reflector.run()
            except (KubernetesForbiddenError, KubernetesNotFoundError) as error:
                self._say_polling(error)
            for _ in range(_POLLS_BEFORE_WATCH):
                await self._look()
                await asyncio.sleep(self._poll_interval)

    def replaced(self, objects: list[JsonObject]) -> None:
        """As the reflector has listed it."""
        with contained("watch event", path=self._path):
            self._take(next((found for found in objects if _metadata(found, "name") == self._name), None))

    def changed(self, kind: ChangeKind, found: JsonObject) -> None:
        """As the reflector has heard of it."""
        if _metadata(found, "name") == self._name:
            self._take(None if kind is ChangeKind.DELETED else found)

    async def _look(self, *, timeout: float | None = None) -> KubernetesError | None:
        """Once; the error when that told nothing of the ConfigMap."""
        try:
            self._take(await self._client.get(self._path, timeout=timeout))
        except KubernetesNotFoundError:
            self._take(None)
        except KubernetesError as error:
            # A template that was read before says more than that it cannot be read now.
            if self.current is None or isinstance(error, KubernetesForbiddenError):
                self._refuse(str(error))
            return error
        return None

    def _take(self, found: JsonObject | None) -> None:
        if found is None:
            self._read = ""
            self._refuse("it does not exist")
            return
        version = _metadata(found, "resourceVersion")
        if version and version == self._read:
            # It may have been unreadable in between.
            if self.current is not None and self.current.version == version:
                self.problem = ""
            return
        self._read = version
        try:
            template = template_of(found)
        except ConfigurationError as error:
            self._refuse(str(error).removeprefix(f'ConfigMap "{self._name}": '))
            return
        self._put_in_force(template)

    def _put_in_force(self, template: PodTemplate) -> None:
        self.problem = ""
        for warning in template.warnings:
            _log.warning("pod template", warning=warning, version=template.version)
        is_new = self.current is None or self.current.version != template.version
        self.current = template
        if is_new:
            _log.info("pod template in force", config_map=self._path, version=template.version)
            self.on_change(template)

    def _refuse(self, why: str) -> None:
        problem = f'{_FLAG}: ConfigMap "{self._name}" in namespace {self._namespace}: {why}'
        if problem == self.problem:
            return
        self.problem = problem
        in_force = self.current.version if self.current else "none"
        _log.error("pod template not read, the last good one stays", error=problem, in_force=in_force)

    def _say_polling(self, error: KubernetesError) -> None:
        if not self._has_said_polling:
            self._has_said_polling = True
            _log.info("pod template cannot be watched, it is polled", error=str(error), seconds=self._poll_interval)


def _metadata(found: JsonObject, name: str) -> str:
    return as_text(as_object(found.get("metadata")).get(name))


def _nobody_listens(_: PodTemplate) -> None:
    pass
