"""Verbs on the ConfigMaps of the wrapper server that no first call needs: what happens without them."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
import structlog

from cluster.layout import Layout
from e2e.test_pull_secret import NAMESPACE, Kubectl, clients, kubectl
from krm_runner.core.json_object import JsonObject
from krm_runner.core.pod_manifest import RECLAIM_AFTER
from krm_runner.core.wrapper_config_maps import Part, parts_of
from krm_runner.kube.client import KubeClient
from krm_runner.pods.wrapper_config_maps import WrapperConfigMaps
from support.processes import eventually
from support.service_account import account

__all__ = ["clients", "kubectl"]
VERBS = ("create", "delete", "list", "patch", "watch")


def part(content: bytes) -> Part:
    (only,) = parts_of(b"\x7fELF" + content, source="test")
    return only


@pytest.mark.parametrize("missing", ["patch", "delete"])
async def test_what_cannot_be_extended_or_deleted_is_said_and_left(
    clients: list[KubeClient], kubectl: Kubectl, api_server: Layout, missing: str
) -> None:
    own, old = part(b"own" + missing.encode()), part(b"old" + missing.encode())
    path = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
    expired = int(time.time()) - 60
    found: list[JsonObject] = [
        await clients[0].create(path, each.manifest(namespace=NAMESPACE, reclaim_after=expired)) for each in (own, old)
    ]
    granted = [verb for verb in VERBS if verb != missing]
    async with account(clients[0], NAMESPACE, verbs=granted, resources=["configmaps"]) as client:
        maps = WrapperConfigMaps(client, [own], namespace=NAMESPACE, pod_ttl=60, pods=list, scan_interval=60)
        maps.replaced(found)
        with structlog.testing.capture_logs() as lines:
            keeping = asyncio.create_task(maps.keep())
            # Looked into first, then extended when there is news of it.
            await eventually(lambda: any("found" in line["event"] for line in lines), what="its own one is found")
            maps.replaced(found)
            await eventually(
                lambda: any(f"cannot {missing} resource" in str(line.get("error")) for line in lines),
                what="the log says what is not granted",
            )
            if missing == "delete":
                await eventually(
                    lambda: reclaimed_after(kubectl, own) > time.time(), what="its own one may stay longer"
                )
            keeping.cancel()
    left = kubectl.run("get", "configmaps", "-o", "name").split()
    assert f"configmap/{own.name}" in left
    assert (f"configmap/{old.name}" in left) is (missing == "delete")
    assert (reclaimed_after(kubectl, own) == expired) is (missing == "patch")


def reclaimed_after(kubectl: Kubectl, of: Part) -> int:
    found = json.loads(kubectl.run("get", "configmap", of.name, "-o", "json"))
    return int(found["metadata"]["annotations"][RECLAIM_AFTER])
