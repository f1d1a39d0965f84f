"""The copy of a collection, kept through everything that happens to a watch, on a real API server."""

from __future__ import annotations

import asyncio
import contextlib
import json
import uuid
from collections.abc import AsyncGenerator

import pytest
from aiohttp import web
from kubernetes_asyncio.client.configuration import Configuration

from krm_runner.core.json_object import JsonObject, as_object, as_text
from krm_runner.kube.client import KubeClient
from krm_runner.kube.reflector import ChangeKind, Reflector
from support.processes import eventually
from support.relay import Relay


class Names:
    """Names and data of the ConfigMaps that the copy holds, and how often it was filled anew."""

    def __init__(self) -> None:
        self.known: dict[str, object] = {}
        self.listings = 0

    def replaced(self, objects: list[JsonObject]) -> None:
        self.listings += 1
        self.known = {_name(found): found.get("data") for found in objects}

    def changed(self, kind: ChangeKind, found: JsonObject) -> None:
        if kind is ChangeKind.DELETED:
            self.known.pop(_name(found), None)
        else:
            self.known[_name(found)] = found.get("data")


def _name(found: JsonObject) -> str:
    return as_text(as_object(found.get("metadata")).get("name"))


@pytest.fixture
async def namespace(client: KubeClient) -> str:
    name = f"test-{uuid.uuid4().hex[:10]}"
    await client.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return f"/api/v1/namespaces/{name}/configmaps"


def config_map(name: str, value: str = "", label: str = "ours") -> JsonObject:
    metadata: JsonObject = {"name": name, "labels": {"whose": label}}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"value": value}}


@contextlib.asynccontextmanager
async def kept(client: KubeClient, path: str, watch_seconds: float = 300) -> AsyncGenerator[tuple[Names, Reflector]]:
    names = Names()
    reflector = Reflector(client, path, names, query={"labelSelector": "whose=ours"}, watch_seconds=watch_seconds)
    task = asyncio.create_task(reflector.run())
    try:
        await asyncio.wait_for(reflector.listed.wait(), 20)
        yield names, reflector
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def test_what_is_there_and_what_changes_is_known(client: KubeClient, namespace: str) -> None:
    await client.create(namespace, config_map("first"))
    await client.create(namespace, config_map("theirs", label="other"))
    async with kept(client, namespace) as (names, _):
        assert names.known == {"first": {"value": ""}}
        # Longer than the lines that stream readers take by default.
        large = "x" * 500_000
        await client.create(namespace, config_map("second", large))
        await eventually(lambda: names.known.get("second") == {"value": large}, what="the new one is known")
        await client.replace(f"{namespace}/first", config_map("first", "changed"))
        await eventually(lambda: names.known.get("first") == {"value": "changed"}, what="the change is known")
        await client.delete(f"{namespace}/second")
        await eventually(lambda: "second" not in names.known, what="the end of one is known")
        assert names.listings == 1


async def test_a_watch_that_ends_goes_on_where_it_was(client: KubeClient, namespace: str) -> None:
    async with kept(client, namespace, watch_seconds=1) as (names, reflector):
        connected = reflector.connected_since
        for number in range(5):
            await client.create(namespace, config_map(f"map-{number}"))
            await asyncio.sleep(0.5)
        await eventually(lambda: len(names.known) == 5, what="all are known")
        assert names.listings == 1
        assert reflector.connected_since == connected


async def test_a_connection_that_is_cut_loses_nothing(client: KubeClient, namespace: str, relay: Relay) -> None:
    async with kept(client, namespace) as (names, _):
        for number in range(5):
            relay.cut()
            with contextlib.suppress(Exception):
                await client.create(namespace, config_map(f"map-{number}"))
            await eventually(lambda number=number: f"map-{number}" in names.known, what="it is known")  # type: ignore[misc]
        assert names.listings == 1


async def test_an_api_server_that_is_away_changes_nothing_and_is_found_again(
    client: KubeClient, namespace: str, relay: Relay, caplog: pytest.LogCaptureFixture
) -> None:
    await client.create(namespace, config_map("first"))
    async with kept(client, namespace) as (names, reflector):
        connected = reflector.connected_since
        assert connected is not None
        relay.close()
        await eventually(lambda: reflector.connected_since is None, what="the loss is noticed")
        assert names.known == {"first": {"value": ""}}
        relay.reopen()
        await client.create(namespace, config_map("second"))
        await eventually(lambda: "second" in names.known, what="what happened meanwhile is known", seconds=60)
        assert names.listings == 1
        assert reflector.connected_since is not None
        assert reflector.connected_since > connected


@pytest.mark.parametrize("gone", ["event", "status"])
async def test_history_that_is_gone_is_listed_anew(gone: str) -> None:
    """By a server of the test's own: a real one forgets its history only after minutes."""
    status = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"}
    watches = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal watches
        if "watch" not in request.query:
            item = {"metadata": {"name": f"map-{watches}"}}
            return web.json_response({"metadata": {"resourceVersion": str(watches + 1)}, "items": [item]})
        watches += 1
        if watches > 1:
            await asyncio.sleep(60)
        if gone == "status":
            return web.json_response(status, status=410)
        return web.Response(text=json.dumps({"type": "ERROR", "object": status}) + "\n")

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    (host, port) = runner.addresses[0]
    configuration = Configuration(host=f"http://{host}:{port}")
    try:
        async with KubeClient(configuration) as client, kept(client, "/api/v1/configmaps") as (names, _):
            await eventually(lambda: names.listings == 2, what="everything is listed anew")
            assert set(names.known) == {"map-1"}
    finally:
        await runner.cleanup()
