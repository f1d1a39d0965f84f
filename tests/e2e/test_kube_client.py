"""Requests of every kind to a real API server, and what is told of them."""

from __future__ import annotations

import asyncio
import os
import uuid
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from cluster.layout import Layout
from krm_runner.core.errors import (
    KubernetesInvalidError,
    KubernetesNotFoundError,
    KubernetesUnavailableError,
)
from krm_runner.core.json_object import JsonObject, as_object
from krm_runner.kube.client import KEPT, KubeClient
from support.played_api import played_api
from support.processes import eventually, open_connections
from support.relay import Relay


@pytest.fixture
async def maps(client: KubeClient) -> str:
    """The ConfigMaps of a namespace of the test's own."""
    name = f"test-{uuid.uuid4().hex[:10]}"
    await client.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return f"/api/v1/namespaces/{name}/configmaps"


def config_map(**data: str) -> JsonObject:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "first"}, "data": data}


async def test_a_patch_is_a_merge_patch(client: KubeClient, maps: str) -> None:
    await client.create(maps, config_map(kept="1", changed="2", removed="3"))
    change: JsonObject = {"data": {"changed": "4", "removed": None, "new": "5"}}
    found = await client.patch(f"{maps}/first", change)
    assert found["data"] == {"kept": "1", "changed": "4", "new": "5"}
    assert as_object(await client.get(f"{maps}/first")) == found


async def test_what_is_against_the_rules_has_its_own_error(client: KubeClient, maps: str) -> None:
    await client.create(maps, config_map())
    with pytest.raises(KubernetesInvalidError, match=r"metadata\.uid.*immutable") as caught:
        await client.patch(f"{maps}/first", {"metadata": {"uid": str(uuid.uuid4())}})
    assert caught.value.status == 422
    with pytest.raises(KubernetesInvalidError):
        await client.create(maps, {**config_map(), "metadata": {"name": "Not A Name"}})


async def test_every_answer_is_told(client: KubeClient, maps: str, relay: Relay) -> None:
    told: list[tuple[str, str, int]] = []
    client.on_answer = lambda verb, path, status: told.append((verb, path.removeprefix(maps), status))
    await client.get(maps)
    await client.create(maps, config_map())
    found = await client.get(f"{maps}/first")
    await client.replace(f"{maps}/first", found)
    await client.patch(f"{maps}/first", {"data": {"a": "b"}})
    await client.delete(f"{maps}/first")
    with pytest.raises(KubernetesNotFoundError):
        await client.get(f"{maps}/first")
    async with client.stream(maps, {"watch": "true", "timeoutSeconds": "1"}, seconds=20) as lines:
        assert [line async for line in lines] == []
    assert told == [
        ("list", "", 200), ("create", "", 201), ("get", "/first", 200), ("update", "/first", 200),
        ("patch", "/first", 200), ("delete", "/first", 200), ("get", "/first", 404), ("watch", "", 200),
    ]  # fmt: skip
    relay.close()
    with pytest.raises(KubernetesUnavailableError):
        await client.get(f"{maps}/first")
    with pytest.raises(KubernetesUnavailableError):
        async with client.stream(maps, {"watch": "true"}, seconds=20):
            pass
    assert told[-2:] == [("get", "/first", 0), ("watch", "", 0)]


async def test_one_request_may_have_less_time_than_others() -> None:
    async def never(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(60)
        return web.Response()

    async with played_api(never) as client:
        with pytest.raises(KubernetesUnavailableError, match=r"no answer within 0\.2s"):
            await client.create("/api/v1/namespaces", {}, timeout=0.2)


async def test_a_text_is_read_up_to_its_limit() -> None:
    async def endless(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/short"):
            return web.Response(text="a line\nand another")
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 1000)

    async with played_api(endless) as client:
        assert await client.text("/api/v1/short") == "a line\nand another"
        assert await client.text("/api/v1/long", {"tailLines": "10"}, limit=2500) == "x" * 2500
        assert await client.text("/api/v1/short") == "a line\nand another"


async def test_many_requests_share_few_connections_and_a_log_has_its_own() -> None:
    connections: set[object] = set()
    under_way = most = 0
    hold = asyncio.Event()

    async def answer(request: web.Request) -> web.Response:
        nonlocal under_way, most
        if request.path.endswith("/log"):
            return web.Response(text="a line")
        connections.add(request.transport)
        under_way += 1
        most = max(most, under_way)
        await hold.wait()
        under_way -= 1
        return web.json_response({})

    async with played_api(answer) as client, asyncio.TaskGroup() as group:
        for _ in range(30):
            group.create_task(client.get("/api/v1/pods"))
        while under_way < 8:
            await asyncio.sleep(0.01)
        assert await client.text("/api/v1/namespaces/a/pods/b/log") == "a line"
        with pytest.raises(KubernetesUnavailableError, match=r"not sent within 0\.2s, 8 other requests") as refused:
            await client.get("/api/v1/pods", timeout=0.2)
        assert not refused.value.is_sent
        hold.set()
    assert most == 8
    assert len(connections) <= 9, "the one of the log may be used again"


async def test_connections_with_old_certificates_are_closed_after_their_last_request(
    api_server: Layout, tmp_path: Path
) -> None:
    go_on = asyncio.Event()
    refusals = [401]
    port = 0

    async def answer(request: web.Request) -> web.StreamResponse:
        nonlocal port
        port = int(request.host.rpartition(":")[2])
        if "watch" not in request.query:
            return web.json_response({}, status=refusals.pop() if refusals else 200)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"before\n")
        await go_on.wait()
        await response.write(b"after\n")
        return response

    authority = tmp_path / "ca.crt"
    certificate = api_server.certificate("ca").read_bytes()
    authority.write_bytes(certificate)
    async with played_api(answer, authority=authority) as client:
        async with client.stream("/api/v1/pods", {"watch": "true"}, seconds=60) as lines:
            arriving = aiter(lines)
            assert await anext(arriving) == b"before"
            authority.write_bytes(certificate + b"\n")
            await client.get("/api/v1/pods")
            assert refusals == []
            assert len(open_connections(os.getpid(), to=port)) == 3, "of the watch, the refused request and the new one"
            go_on.set()
            assert await anext(arriving) == b"after"
        await eventually(lambda: len(open_connections(os.getpid(), to=port)) == 1, what="the old ones are closed")
        await client.get("/api/v1/pods")
        assert len(open_connections(os.getpid(), to=port)) == 1


async def test_connections_are_kept_for_the_next_burst() -> None:
    """By an attribute of the library's that is not public: it must be there."""
    connector = aiohttp.TCPConnector(keepalive_timeout=1)
    assert vars(connector)[KEPT] == 1
    await connector.close()
