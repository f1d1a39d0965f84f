"""Functions whose pods are there before anybody calls."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse

from control_plane import local_images
from control_plane.site import PlayedSite
from support.audit import AuditLog
from support.calls import served, wish
from support.client import Client, check_health
from support.kube import Json
from support.namespace import is_ready
from support.processes import eventually
from support.push import Push
from support.site import ASKED_FOR


@pytest.fixture
def images(push: Push) -> list[str]:
    return [push(f"obliging-{number}", local_images.obliging()) for number in range(3)]


def flag(path: Path) -> str:
    return f"--pod-cache-config={path}"


def functions(pods: list[Json]) -> Counter[str]:
    """Whose pods these are."""
    return Counter(pod["metadata"]["annotations"][ASKED_FOR] for pod in pods)


def ready(site: PlayedSite) -> Counter[str]:
    return functions([pod for pod in site.pods() if is_ready(pod)])


async def until_ready(site: PlayedSite, images: list[str]) -> None:
    await eventually(lambda: ready(site) == Counter(images), what="their pods are ready", seconds=60)


async def test_pods_are_there_before_the_first_call(site: PlayedSite, images: list[str], audit_log: AuditLog) -> None:
    runner = site.runner(flag(site.cache_config(*({"name": image} for image in images))))
    await until_ready(site, images)
    async with Client(runner.address) as client:
        for image in images:
            served(await client.evaluate(image, wish()))
    assert len(audit_log.done("create", "pods", site.functions.name)) == len(images)


async def test_runners_that_start_together_make_one_pod_of_each(
    site: PlayedSite, images: list[str], audit_log: AuditLog
) -> None:
    config = flag(site.cache_config(*({"name": image} for image in images)))
    places = [site.account(f"runner-{number}") for number in range(3)]
    runners = [site.start(place, config, waits=False) for place in places]
    await until_ready(site, images)
    for runner in runners:
        async with Client(runner.address) as client:
            for image in images:
                served(await client.evaluate(image, wish()))
    assert ready(site) == Counter(images)
    assert len(audit_log.done("create", "pods", site.functions.name)) == len(images)
    assert len(site.services()) == len(images)


async def test_one_that_fails_does_not_hold_up_the_rest(site: PlayedSite, images: list[str]) -> None:
    absent = images[0].replace(":v1", ":absent")
    runner = site.runner(flag(site.cache_config({"name": absent}, *({"name": image} for image in images))))
    await until_ready(site, images)
    assert "MANIFEST_UNKNOWN" in runner.wait_for_line(f"{absent}.*").string
    async with Client(runner.address) as client:
        served(await client.evaluate(images[0], wish()))


async def test_a_change_of_the_file_applies(site: PlayedSite, images: list[str]) -> None:
    runner = site.runner(flag(site.cache_config({"name": images[0]})))
    await until_ready(site, images[:1])
    site.cache_config({"name": images[0]}, {"name": images[1], "maxParallelPodsPerFunction": 2})
    await until_ready(site, images[:2])
    (site.cache_config()).write_text("- name: [broken\n")
    runner.wait_for_line("pod-cache-config.yaml.*(broken|YAML|line)")
    async with Client(runner.address) as client:
        served(await client.evaluate(images[1], wish()))
    site.cache_config(*({"name": image} for image in images))
    await until_ready(site, images)


async def test_a_minimum_of_ready_pods_is_kept(site: PlayedSite, push: Push) -> None:
    """One that is lost or busy is made up for before a call comes, and the last one does not expire."""
    image = push("slow", local_images.shell("sleep 2; cat"))
    entry = {"name": image, "minReadyPods": 1, "maxParallelPodsPerFunction": 2, "maxWaitlistLength": 1}
    runner = site.runner(flag(site.cache_config(entry)), "--pod-ttl=1s", "--scan-interval=1s")
    await until_ready(site, [image])
    first = site.only_pod()["metadata"]
    await asyncio.sleep(4)
    assert site.only_pod()["metadata"]["uid"] == first["uid"], "several times its time to live is over"
    site.delete_pod(first["name"])
    await eventually(
        lambda: [pod["metadata"]["uid"] for pod in site.pods() if is_ready(pod)] not in ([], [first["uid"]]),
        what="another pod is ready though nobody called",
    )
    async with Client(runner.address) as client:
        call = asyncio.ensure_future(client.evaluate(image, wish()))
        await eventually(lambda: len(site.pods()) == 2, what="a busy pod gets company before the next call")
        assert (await call).code == "OK"
    site.cache_config()
    await eventually(lambda: not site.pods(), what="nobody wants it any more", seconds=60)


async def test_no_pod_is_made_where_it_is_switched_off(site: PlayedSite, images: list[str]) -> None:
    runner = site.runner(flag(site.cache_config({"name": images[0]})), "--warm-up-pod-cache=false")
    async with Client(runner.address) as client:
        served(await client.evaluate(images[1], wish()))
    assert functions(site.pods()) == Counter(images[1:2])


async def test_the_readiness_of_the_service_may_wait_for_it(site: PlayedSite, images: list[str]) -> None:
    """A function that cannot be started is no reason to wait for ever."""
    absent = images[0].replace(":v1", ":absent")
    config = flag(site.cache_config({"name": absent}, *({"name": image} for image in images)))
    runner = site.start(site.account(), config, "--wait-for-warm-up", waits=False)
    seen: Counter[str] = Counter()
    async with Client(runner.address) as client, asyncio.timeout(60):
        while True:
            seen = functions(site.pods())
            if (await check_health(client.channel)).status == HealthCheckResponse.SERVING:
                break
    assert seen == Counter(images), "all were there before"


async def test_the_warmed_up_pod_of_a_runner_that_is_gone_is_used(
    site: PlayedSite, images: list[str], audit_log: AuditLog
) -> None:
    config = flag(site.cache_config({"name": images[0]}))
    first = site.runner(config)
    await until_ready(site, images[:1])
    first.stop()
    second = site.runner(config)
    async with Client(second.address) as client:
        served(await client.evaluate(images[0], wish()))
    assert len(audit_log.done("create", "pods", site.functions.name)) == 1
