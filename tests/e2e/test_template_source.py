"""The pod template in a ConfigMap of a real API server: watched, polled, broken, missing and mended."""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from krm_runner.core.json_object import JsonObject, as_object, as_text
from krm_runner.core.pod_template import PodTemplate, built_in_template
from krm_runner.core.wrapper_delivery import InitContainer
from krm_runner.kube.client import KubeClient
from krm_runner.kube.own_namespace import own_namespace
from krm_runner.pods.template_source import BuiltInTemplate, ConfigMapTemplate, TemplateSource
from support.processes import eventually
from support.relay import Relay
from support.service_account import account
from unit.test_pod_template import MINIMAL, SEED_POD, SEED_SERVICE

NAME = "pod-template"


@pytest.fixture
async def namespace(client: KubeClient) -> str:
    name = f"test-{uuid.uuid4().hex[:10]}"
    await client.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    return name


class Map:
    """The ConfigMap, as an operator writes it."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client = client
        self._collection = f"/api/v1/namespaces/{namespace}/configmaps"

    async def write(self, **data: str) -> str:
        """Its new version."""
        found: JsonObject = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME}, "data": {**data}}
        try:
            made = await self._client.create(self._collection, found)
        except Exception:
            made = await self._client.replace(f"{self._collection}/{NAME}", found)
        return as_text(as_object(made["metadata"])["resourceVersion"])

    async def delete(self) -> None:
        await self._client.delete(f"{self._collection}/{NAME}")


@pytest.fixture
def config_map(client: KubeClient, namespace: str) -> Map:
    return Map(client, namespace)


@contextlib.asynccontextmanager
async def kept(source: TemplateSource) -> AsyncGenerator[list[str]]:
    """The versions that its listener hears of."""
    heard: list[str] = []

    def hear(template: PodTemplate) -> None:
        heard.append(template.version)

    source.on_change = hear
    task = asyncio.create_task(source.keep())
    try:
        yield heard
    finally:
        assert not task.done()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def version(source: TemplateSource) -> str:
    return source.current.version if source.current else ""


@pytest.fixture
async def polled(client: KubeClient, namespace: str) -> AsyncIterator[KubeClient]:
    """An account that has what the specification's Role grants: no watch."""
    async with account(client, namespace, verbs=["get", "list"], resources=["configmaps"]) as granted:
        yield granted


async def test_the_built_in_one_is_always_there() -> None:
    template = built_in_template(delivery=InitContainer("example.com/wrapper:v1"), max_message_bytes=1)
    source: TemplateSource = BuiltInTemplate(template)
    await source.load(timeout=0)
    async with kept(source) as heard:
        assert (source.current, source.problem, heard) == (template, "", [])


@pytest.mark.parametrize("how", ["watched", "polled"])
async def test_changes_count_and_broken_ones_do_not(
    how: str, client: KubeClient, polled: KubeClient, namespace: str, config_map: Map
) -> None:
    first = await config_map.write(template=SEED_POD, serviceTemplate=SEED_SERVICE)
    source = ConfigMapTemplate(
        client if how == "watched" else polled, namespace=namespace, name=NAME, poll_interval=0.05
    )
    assert NAME in source.problem
    with capture_logs() as logs:
        await source.load(timeout=20)
        assert (version(source), source.problem) == (first, "")
        async with kept(source) as heard:
            second = await config_map.write(template=MINIMAL)
            await eventually(lambda: version(source) == second, what="the new one counts")
            await config_map.write(template="kind: [broken")
            await eventually(lambda: bool(source.problem), what="the broken one is refused")
            assert "--function-pod-template" in source.problem
            assert NAME in source.problem
            assert namespace in source.problem
            broken = source.problem
            await config_map.write(template=MINIMAL.replace("name: function", "name: other"))
            await eventually(lambda: source.problem != broken, what="the next broken one is refused")
            assert 'one container named "function"' in source.problem
            await config_map.delete()
            await eventually(lambda: "does not exist" in source.problem, what="its end is noticed")
            assert version(source) == second
            third = await config_map.write(template=SEED_POD)
            await eventually(lambda: version(source) == third, what="the mended one counts")
            assert source.problem == ""
        assert heard == [second, third]
    said = [entry["event"] for entry in logs if entry["log_level"] != "debug"]
    assert said.count("pod template in force") == 3
    assert said.count("pod template not read, the last good one stays") == 3
    # The specification's example has its annotations in the wrong place, twice.
    assert said.count("pod template") == 2
    assert said.count("pod template cannot be watched, it is polled") == (1 if how == "polled" else 0)


async def test_one_that_is_missing_at_first_is_found_later(client: KubeClient, namespace: str, config_map: Map) -> None:
    source = ConfigMapTemplate(client, namespace=namespace, name=NAME)
    await source.load(timeout=20)
    assert source.current is None
    assert source.problem == f'--function-pod-template: ConfigMap "{NAME}" in namespace {namespace}: it does not exist'
    async with kept(source) as heard:
        only = await config_map.write(template=MINIMAL)
        await eventually(lambda: version(source) == only, what="it is found")
        assert (heard, source.problem) == ([only], "")


async def test_others_of_the_namespace_are_none_of_it(client: KubeClient, namespace: str, config_map: Map) -> None:
    await config_map.write(template=MINIMAL)
    source = ConfigMapTemplate(client, namespace=namespace, name="another")
    async with kept(source) as heard:
        await eventually(lambda: "does not exist" in source.problem, what="it was listed")
        assert heard == []


async def test_an_api_server_that_is_away_is_waited_for_and_then_left(
    client: KubeClient, namespace: str, config_map: Map, relay: Relay
) -> None:
    only = await config_map.write(template=MINIMAL)
    relay.close()
    source = ConfigMapTemplate(client, namespace=namespace, name=NAME)
    await source.load(timeout=0.5)
    assert "the API server cannot be reached" in source.problem
    loading = asyncio.create_task(source.load(timeout=60))
    relay.reopen()
    await loading
    assert (version(source), source.problem) == (only, "")
    relay.close()
    await source.load(timeout=0.3)
    assert (version(source), source.problem) == (only, "")


async def test_an_account_that_may_not_even_read_it_says_so(client: KubeClient, namespace: str) -> None:
    async with account(client, namespace, verbs=["get"], resources=["secrets"]) as nobody:
        source = ConfigMapTemplate(nobody, namespace=namespace, name=NAME)
        await source.load(timeout=20)
        assert "cannot get resource" in source.problem


def test_the_namespace_is_that_of_the_service_account(tmp_path: Path) -> None:
    (tmp_path / "namespace").write_text("porch-system-2\n")
    assert own_namespace(tmp_path / "namespace") == "porch-system-2"
    assert own_namespace(tmp_path / "missing") == "porch-system"
