"""The platform of the cluster's nodes, which decides which of an image's manifests counts.

The runner's role may not allow to look at nodes, and a cluster may have several platforms: then the answer is None, and
the flag or this machine's own platform decides.
"""

from __future__ import annotations

from typing import Protocol

import structlog

from krm_runner.core.errors import KubernetesError
from krm_runner.core.image_metadata import Platform
from krm_runner.core.json_object import JsonObject, as_list, as_object, as_text

_log = structlog.get_logger("krm_runner.pods")


class Api(Protocol):
    """What is needed of the Kubernetes API."""

    async def get(self, path: str) -> JsonObject: ...


async def node_platform(api: Api) -> Platform | None:
    """The one platform that all nodes have; None when there is no such, or nobody may know."""
    try:
        nodes = await api.get("/api/v1/nodes")
    except KubernetesError as error:
        _log.info("platform of the nodes not known", error=str(error), hint="--image-platform says it")
        return None
    found = {platform for node in as_list(nodes.get("items")) if (platform := platform_of(as_object(node)))}
    if len(found) > 1:
        names = ",".join(sorted(str(platform) for platform in found))
        _log.warning("nodes of several platforms: --image-platform decides which counts", platforms=names)
    return found.pop() if len(found) == 1 else None


def platform_of(node: JsonObject) -> Platform | None:
    """What a node says of itself."""
    info = as_object(as_object(node.get("status")).get("nodeInfo"))
    os, architecture = as_text(info.get("operatingSystem")), as_text(info.get("architecture"))
    return Platform(os, architecture) if os and architecture else None
