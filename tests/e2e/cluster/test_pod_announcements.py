"""Pods that say themselves that they serve, before Kubernetes does; and whoever says so in their place."""

from __future__ import annotations

import asyncio
import socket

import pytest

from cluster import layout
from e2e.cluster.test_pod_templates import FLAG as FROM_TEMPLATE
from e2e.cluster.test_pod_templates import template
from e2e.cluster.test_pod_wrapper_delivery import FLAGS as CONFIG_MAPS
from support import function_images
from support.calls import served, wish
from support.client import Answer, Client
from support.processes import eventually
from support.push import Push
from support.runner import RunnerProcess
from support.site import WRAPPER_RIGHTS, Site

ANNOUNCED = f"--announce-address={layout.NODE_ADDRESS}:0"
GATE = "example.com/gate"


@pytest.fixture
def image(push: Push) -> str:
    return push("obliging", function_images.obliging())


def start(site: Site, *flags: str) -> RunnerProcess:
    return site.start(site.account("runner", WRAPPER_RIGHTS), ANNOUNCED, *flags)


def told(site: Site) -> tuple[tuple[str, int], str]:
    """What the only pod was told: where to announce itself, and in which words."""
    (container,) = site.only_pod()["spec"]["containers"]
    (value,) = [each["value"] for each in container["env"] if each["name"] == "KRM_RUNNER_ANNOUNCE"]
    address, _, message = value.partition(" ")
    host, _, port = address.rpartition(":")
    return (host, int(port)), message


def say(to: tuple[str, int], message: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
        stranger.sendto(message.encode(), to)


@pytest.mark.parametrize("delivery", [(), CONFIG_MAPS], ids=["init-container", "config-map"])
async def test_a_pod_is_heard_and_served_by(site: Site, image: str, delivery: tuple[str, ...]) -> None:
    runner = start(site, *delivery)
    async with Client(runner.address) as client:
        answer = served(await client.evaluate(image, wish()))
        runner.wait_for_line(r'event="pod ready".* announce_seconds=')
        pod = site.only_pod()["metadata"]
        assert answer.pod == pod["name"]
        await eventually(lambda: site.only_pod()["status"].get("podIP"), what="Kubernetes knows its address")
        assert served(await client.evaluate(image, wish())).pod == pod["name"]
        # Afterwards it is one pod like the others.
        site.delete_pod(pod["name"])
        served(await client.evaluate(image, wish()))
    assert not [line for line in runner.lines if "elsewhere" in line]


@pytest.fixture
def gated(site: Site, image: str) -> tuple[RunnerProcess, str]:
    """A runner whose pods wait for somebody to open a gate, and an image to ask it for."""
    site.write_template(template(site, "gated", schedulingGates=[{"name": GATE}]))
    return site.runner(ANNOUNCED, FROM_TEMPLATE), image


async def behind_the_gate(
    site: Site, client: Client, image: str
) -> tuple[asyncio.Future[Answer], tuple[str, int], str]:
    """A call that waits, and what its pod was told."""
    call = asyncio.ensure_future(client.evaluate(image, wish()))
    await eventually(lambda: bool(site.living()), what="the pod is there")
    return call, *told(site)


def open_gate(site: Site) -> None:
    pod = site.only_pod()["metadata"]["name"]
    site.functions.kube.patch(site.functions.path(f"pods/{pod}"), {"spec": {"schedulingGates": None}})


async def test_a_stranger_without_the_word_is_not_heard(site: Site, gated: tuple[RunnerProcess, str]) -> None:
    runner, image = gated
    async with Client(runner.address) as client:
        call, to, message = await behind_the_gate(site, client, image)
        pod, _, word = message.partition("/")
        for wrong in (f"{pod}/{word[:-1]}x", f"{pod}/{'0' * len(word)}", pod, "", "x" * 2000):
            say(to, wrong)
        open_gate(site)
        assert served(await call).pod == pod
    runner.stop()
    assert not [line for line in runner.lines if "elsewhere" in line]


async def test_a_word_from_elsewhere_gets_no_calls_for_long(site: Site, gated: tuple[RunnerProcess, str]) -> None:
    """Whoever may read pods knows their words. There is nobody at that address; Kubernetes has the last word."""
    runner, image = gated
    async with Client(runner.address) as client:
        call, to, message = await behind_the_gate(site, client, image)
        say(to, message)
        open_gate(site)
        assert served(await call).pod == message.partition("/")[0]
    runner.wait_for_line('event="pod announced itself from elsewhere"')
