"""Keeps FunctionConfig objects deletable.

Porch's own function runner puts a finalizer on every FunctionConfig and removes it when the object is deleted. Where
this runner has replaced it, nothing else would: the object could never be deleted. This module removes the finalizer
from objects that are being deleted, and changes nothing else. Where the cluster has no such objects, or the account may
not watch or change them, it looks again now and then.
"""

from __future__ import annotations

import asyncio
import random
from typing import NoReturn

import structlog

from krm_runner.core.backoff import Backoff
from krm_runner.core.errors import (
    KubernetesConflictError,
    KubernetesError,
    KubernetesForbiddenError,
    KubernetesNotFoundError,
)
from krm_runner.core.json_object import JsonObject, as_list, as_object, as_text
from krm_runner.core.rights import FUNCTION_CONFIGS
from krm_runner.kube.client import KubeClient
from krm_runner.kube.reflector import ChangeKind, Reflector
from krm_runner.telemetry.internal_errors import contained

_log = structlog.get_logger("krm_runner.pods")
_KIND, _, _GROUP = FUNCTION_CONFIGS.partition(".")
_GROUP_PATH = f"/apis/{_GROUP}/v1alpha1"
FINALIZER = "config.porch.kpt.dev/functionconfig-function-runner"
LOOK_INTERVAL = 60.0
"""How often the runner looks whether there are such objects, and whether it may watch them."""
_BACKOFF = Backoff(first=1.0, longest=60.0)


async def serves_function_configs(client: KubeClient) -> bool:
    """Return whether the cluster has FunctionConfig objects; a KubernetesError when that cannot be asked."""
    try:
        group = await client.get(_GROUP_PATH)
    except KubernetesNotFoundError:
        return False
    return any(as_object(each).get("name") == _KIND for each in as_list(group.get("resources")))


class FunctionConfigs:
    """The FunctionConfig objects of one namespace."""

    def __init__(self, client: KubeClient, *, namespace: str, look_interval: float = LOOK_INTERVAL) -> None:
        self._client = client
        self._path = f"{_GROUP_PATH}/namespaces/{namespace}/{_KIND}"
        self._look_interval = look_interval
        self._held: dict[str, JsonObject] = {}
        """The metadata of each object whose deletion waits for the finalizer, by name."""
        self._is_held = asyncio.Event()
        self._has_said_forbidden = False

    async def watch(self) -> NoReturn:
        """Find the objects whose deletion waits for the finalizer. Never returns; cancel it."""
        while True:
            try:
                await self._watch()
            except KubernetesForbiddenError as error:
                self._say_forbidden(error)
            except KubernetesError as error:
                _log.debug("function configs not watched", error=str(error))
            await asyncio.sleep(self._look_interval)

    def replaced(self, objects: list[JsonObject]) -> None:
        """See `kube.reflector.Copy`."""
        self._held.clear()
        for found in objects:
            with contained("watch event", path=self._path, name=as_text(as_object(found.get("metadata")).get("name"))):
                self.changed(ChangeKind.ADDED, found)

    def changed(self, kind: ChangeKind, found: JsonObject) -> None:
        """See `kube.reflector.Copy`."""
        metadata = as_object(found.get("metadata"))
        name = as_text(metadata.get("name"))
        is_held = bool(metadata.get("deletionTimestamp")) and FINALIZER in as_list(metadata.get("finalizers"))
        if kind is ChangeKind.DELETED or not is_held:
            self._held.pop(name, None)
            return
        self._held[name] = metadata
        self._is_held.set()

    async def _watch(self) -> None:
        """Return when the cluster has no such objects."""
        if await serves_function_configs(self._client):
            await Reflector(self._client, self._path, self, is_certain=False, metadata_only=True).run()

    async def remove_finalizers(self) -> NoReturn:
        """Remove the finalizer from the objects that `watch` finds. Never returns; cancel it."""
        failures = 0
        while True:
            await self._is_held.wait()
            self._is_held.clear()
            for name, metadata in list(self._held.items()):
                await self._remove_finalizer(name, metadata)
            if not self._held:
                failures = 0
                continue
            failures += 1
            await asyncio.sleep(_BACKOFF.delay(failures, chance=random.random()))  # noqa: S311 - jitter
            self._is_held.set()

    async def _remove_finalizer(self, name: str, metadata: JsonObject) -> None:
        """Remove it from the object as it was seen; what fails stays in `_held` and is tried again."""
        kept = [each for each in as_list(metadata.get("finalizers")) if each != FINALIZER]
        version = as_text(metadata.get("resourceVersion"))
        patch: JsonObject = {"metadata": {"resourceVersion": version, "finalizers": kept}}
        try:
            await self._client.patch(f"{self._path}/{name}", patch)
        except KubernetesConflictError:
            return  # the watch shows the object as it is now
        except KubernetesNotFoundError:
            self._held.pop(name, None)
        except KubernetesForbiddenError as error:
            self._say_forbidden(error)
        except KubernetesError as error:
            _log.debug("finalizer not removed, tried again", function_config=name, error=str(error))
        else:
            _log.info("finalizer of the previous function runner removed", function_config=name, finalizer=FINALIZER)
            if self._held.get(name) is metadata:
                del self._held[name]

    def _say_forbidden(self, error: KubernetesForbiddenError) -> None:
        if not self._has_said_forbidden:
            self._has_said_forbidden = True
            _log.warning(
                "FunctionConfig objects that the previous function runner holds cannot be deleted",
                error=str(error),
                hint="grant list, watch and patch on functionconfigs to the runner (deploy/base/roles.yaml)",
            )
