"""What goes wrong while pods serve: pods die, the API server is away, watches break, runners are killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from functools import partial

import pytest

from cluster import control_plane
from cluster.full import ENDPOINTS, FullCluster
from support import function_images
from support.calls import served, wish
from support.client import Client
from support.kube import Json
from support.load import Load
from support.processes import eventually, of_pod
from support.push import Push
from support.site import Site


@pytest.fixture
def image(push: Push) -> str:
    return push("obliging", function_images.obliging())


def kill_wrapper(pod: Json) -> None:
    (wrapper,) = of_pod(pod["metadata"]["uid"], "wrapper-server --port")
    os.kill(wrapper, signal.SIGKILL)


async def until_noted(site: Site, pod: Json, call: str) -> None:
    """The function has begun with it. Asked at the pod itself."""
    async with asyncio.timeout(30):
        while call not in await site.calls_of(pod):
            await asyncio.sleep(0.05)


async def pod_of(site: Site, call: str, pods: Mapping[str, Json]) -> str:
    """The name of the one of them that has begun with the call."""
    async with asyncio.timeout(30):
        while True:
            for name, pod in pods.items():
                if call in await site.calls_of(pod):
                    return name


def take_off_the_network(pod: Json) -> None:
    """As if its node were gone: nobody hears from it any more, and nothing tells those who have a connection."""
    (wrapper,) = of_pod(pod["metadata"]["uid"], "wrapper-server --port")
    subprocess.run(
        ["nsenter", f"--net=/proc/{wrapper}/ns/net", "ip", "link", "set", "eth0", "down"], check=True, timeout=10
    )


@pytest.mark.parametrize("way", ["deleted", "killed"])
async def test_a_call_whose_pod_dies_is_made_once_more(site: Site, image: str, way: str) -> None:
    async with Client(site.runner().address) as client:
        served(await client.evaluate(image, wish()))
        first = site.only_pod()
        call = asyncio.ensure_future(client.evaluate(image, wish(call="long", seconds=4)))
        await until_noted(site, first, "long")
        if way == "deleted":
            site.delete_pod(first["metadata"]["name"])
        else:
            kill_wrapper(first)
        assert served(await call).call == "long"
        (second,) = (pod for pod in site.living() if pod["metadata"]["uid"] != first["metadata"]["uid"])
        assert await site.calls_of(second) == ["long"]


async def test_a_function_that_takes_more_memory_than_it_may(site: Site, image: str) -> None:
    """The kernel takes the function, or all of its pod: that is the kubelet's choice."""
    config = site.cache_config({"name": image, "resources": {"limits": {"memory": "40Mi"}}})
    flags = (f"--pod-cache-config={config}", "--warm-up-pod-cache=false")
    async with Client(site.runner(*flags).address) as client:
        served(await client.evaluate(image, wish()))
        answer = await client.evaluate(image, wish(memory="much"))
        assert answer.code in ("UNAVAILABLE", "INTERNAL"), answer
        assert image in answer.message
        served(await client.evaluate(image, wish()))


async def test_all_pods_are_deleted_under_load(site: Site, image: str) -> None:
    runner = site.runner("--max-parallel-pods-per-function=3", "--max-waitlist-length=1")
    async with Client(runner.address) as client, Load(client, image, callers=6) as load:
        await load.more(50)
        for _ in range(3):
            for pod in site.living():
                site.delete_pod(pod["metadata"]["name"], seconds=30)
            await load.more(50)
    assert load.served


@pytest.mark.alone
async def test_warm_calls_go_on_while_the_api_server_is_stopped(site: Site, image: str, breakable: FullCluster) -> None:
    """The server itself, for everybody: proxies, DNS and the kubelet miss it too."""
    async with Client(site.runner("--pod-ttl=8s", "--scan-interval=1s").address) as client:
        async with Load(client, image) as load:
            await load.more(20)
            uid = site.only_pod()["metadata"]["uid"]
            breakable.stop("kube-apiserver")
            try:
                end = time.time() + 20
                await load.until(lambda call: call.ended > end, what="after 20 s without the API server")
            finally:
                breakable.resume("kube-apiserver")
            is_ready = partial(control_plane.is_ready, breakable.layout, ENDPOINTS.server)
            await eventually(is_ready, what="the API server is ready", seconds=60)
            await load.more(100)
        assert load.served
        assert site.only_pod()["metadata"]["uid"] == uid


@pytest.mark.alone
async def test_calls_go_on_when_a_node_is_lost(site: Site, image: str, breakable: FullCluster) -> None:
    """Its kubelet is silent, its pod out of reach, and nobody says so. The other pod stands for one elsewhere."""
    runner = site.runner("--max-parallel-pods-per-function=2", "--max-waitlist-length=1")
    async with Client(runner.address) as client:
        calls = (client.evaluate(image, wish(seconds=3), timeout=60) for _ in range(4))
        for answer in await asyncio.gather(*calls):
            served(answer)
        pods = {pod["metadata"]["name"]: pod for pod in site.living()}
        assert len(pods) == 2
        async with Load(client, image, callers=2) as load:
            call = asyncio.ensure_future(client.evaluate(image, wish(call="long", seconds=6), timeout=100))
            lost = await pod_of(site, "long", pods)
            breakable.stop("kubelet")
            take_off_the_network(pods.pop(lost))
            assert served(await call).pod in pods, "made once more, by the other"
            async with asyncio.timeout(120):
                while not site.is_node_lost():
                    await asyncio.sleep(0.5)
            await load.more(50)
        assert load.served
    runner.wait_for_line(f"pod={lost} .*it does not answer any more, or the network to it is gone")
