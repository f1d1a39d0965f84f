"""Deletes the ConfigMaps by which an earlier version delivered the wrapper server.

Runners of that version keep extending the time of theirs. So one is deleted only after its time, when no runner uses it
any more: during a rolling update both versions are there. For one release; then this module goes.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import structlog

from krm_runner.core.errors import (
    KubernetesConflictError,
    KubernetesError,
    KubernetesForbiddenError,
    KubernetesNotFoundError,
)
from krm_runner.core.json_object import JsonObject, as_list, as_object, as_text
from krm_runner.core.pod_facts import unix_seconds
from krm_runner.core.pod_manifest import RECLAIM_AFTER
from krm_runner.kube.client import KubeClient

_log = structlog.get_logger("krm_runner.pods")
LABEL = "krm-runner/wrapper-server"
_LOOK_INTERVAL = 600.0
_RETRY_INTERVAL = 30.0


async def delete_retired_config_maps(
    client: KubeClient,
    *,
    namespace: str,
    look_interval: float = _LOOK_INTERVAL,
    clock: Callable[[], float] = time.time,
) -> None:
    """Return when there are none, or the account may not list or delete them."""
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    while True:
        try:
            found = await client.get(path, {"labelSelector": LABEL}, metadata_only=True)
            remaining = [as_object(each) for each in as_list(found.get("items"))]
            for each in remaining:
                await _delete_if_expired(client, path, as_object(each.get("metadata")), now=clock())
        except KubernetesForbiddenError as error:
            _log.debug("config maps of an earlier version not looked for", error=str(error))
            return
        except KubernetesError as error:
            _log.debug("config maps of an earlier version not deleted, tried again", error=str(error))
            await asyncio.sleep(_RETRY_INTERVAL)
            continue
        if not remaining:
            return
        await asyncio.sleep(look_interval)


async def _delete_if_expired(client: KubeClient, path: str, metadata: JsonObject, *, now: float) -> None:
    name = as_text(metadata.get("name"))
    until = unix_seconds(as_text(as_object(metadata.get("annotations")).get(RECLAIM_AFTER)))
    if until is not None and until > now:
        return
    preconditions = {key: as_text(metadata.get(key)) for key in ("uid", "resourceVersion")}
    options: JsonObject = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
    try:
        await client.delete(f"{path}/{name}", options)
    except (KubernetesNotFoundError, KubernetesConflictError):
        return  # another runner deleted it, or an older one extended its time
    _log.info("config map of an earlier version deleted", config_map=name)
