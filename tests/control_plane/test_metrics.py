"""What an operator sees of the pod runtime in its metrics, after real pods did real things."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from functools import partial

import pytest

from control_plane import local_images
from control_plane.site import PlayedSite
from support.calls import served, wish
from support.client import Client
from support.kube import wait_until
from support.metrics import Metrics
from support.processes import eventually
from support.push import Push


@pytest.fixture
def image(push: Push) -> str:
    return push("obliging", local_images.obliging())


async def test_cold_starts_calls_failures_and_requests_are_counted(site: PlayedSite, image: str, push: Push) -> None:
    broken = push("absent", local_images.absent())
    metrics = Metrics()
    runner = site.start(site.account(), "--pod-ttl=2s", "--scan-interval=1s", environment=metrics.environment)
    async with Client(runner.address) as client:
        for _ in range(5):
            served(await client.evaluate(image, wish()))
        # A call that was promised its pod is reported a moment after its answer.
        evaluated = partial(metrics.sum, "evaluations_total", image=image, runtime="pod", code="OK")
        wait_until(lambda: evaluated() == 5, what="all calls are reported")
        assert metrics.sum("pod_leases_total") == 5
        assert metrics.sum("queue_wait_seconds_count", runtime="pod") == 5
        for phase in ("create", "healthy", "total"):
            assert metrics.sum("pod_start_duration_seconds_count", phase=phase) == 1
        assert 0 < metrics.sum("pod_start_duration_seconds_sum", phase="total") < 60
        wait_until(lambda: metrics.sum("pods", image=image, state="ready") == 1, what="the pod is counted")
        assert metrics.values("pod_calls_waiting", image=image) == [0]

        assert (await client.evaluate(broken, wish())).code == "FAILED_PRECONDITION"
        assert metrics.sum("pod_start_failures_total") == 1
        refused = partial(metrics.sum, "evaluations_total", image=broken, runtime="pod", code="FAILED_PRECONDITION")
        wait_until(lambda: refused() == 1, what="the failed call is counted, a moment after its answer")
        wait_until(lambda: metrics.sum("pod_deletions_total", reason="failed_to_start") == 1, what="it is deleted")
        wait_until(lambda: metrics.sum("pod_deletions_total", reason="expired") == 1, what="the other one expires")
        wait_until(lambda: metrics.values("pods", image=image, state="ready") in ([], [0]), what="it is gone")
    for verb, resource in (("list", "pods"), ("watch", "pods"), ("create", "pods"), ("create", "services")):
        assert metrics.sum("kubernetes_requests_total", verb=verb, resource=resource, status="2xx") >= 1
    assert metrics.sum("kubernetes_requests_total", verb="delete", resource="pods") >= 2


async def test_lost_pods_and_repeated_calls_are_counted(site: PlayedSite, image: str) -> None:
    metrics = Metrics()
    runner = site.start(site.account(), environment=metrics.environment)
    async with Client(runner.address) as client:
        served(await client.evaluate(image, wish()))
        assert metrics.sum("pod_retries_total") == 0
        first = site.only_pod()
        call = asyncio.ensure_future(client.evaluate(image, wish(call="long", seconds=1.5)))
        async with asyncio.timeout(30):
            while "long" not in await site.calls_of(first):
                await asyncio.sleep(0.05)
        # A call that was promised its pod is known to the runner a moment later, and stays where it is until then.
        wait_until(lambda: metrics.sum("pod_leases_total") == 2, what="the runner knows of the call", seconds=2)
        site.delete_pod(first["metadata"]["name"])
        served(await call)
    wait_until(lambda: metrics.sum("pod_leases_total") == 3, what="the call and its repetition are reported")
    assert metrics.sum("pod_losses_total", reason="in_the_call") == 1
    assert metrics.sum("pod_retries_total", reason="in_the_call") == 1


async def test_the_next_calls_of_a_function_are_promised_its_pod(site: PlayedSite, image: str) -> None:
    metrics = Metrics()
    runner = site.start(site.account(), environment=metrics.environment)

    def is_reported(calls: int) -> bool:
        return metrics.sum("pod_leases_total") == calls

    async with Client(runner.address) as client:
        for number in range(1, 4):
            served(await client.evaluate(image, wish()))
            await eventually(partial(is_reported, number), what="the call is reported")
            # What was decided ahead is told right after that.
            await asyncio.sleep(0.2)
        assert metrics.by("pod_leases_total", "promised") == {("no",): 1, ("yes",): 2}
        site.delete_pod(site.only_pod()["metadata"]["name"])
        # Until the runner knows it, a call may find the pod alive, and be answered by it.
        runner.wait_for_line('event="pod gone"')
        served(await client.evaluate(image, wish()))
        await eventually(partial(is_reported, 4), what="the call is reported")
    assert metrics.by("pod_leases_total", "promised") == {("no",): 2, ("yes",): 2}


async def test_many_callers_have_their_pods_without_a_question_and_in_equal_parts(site: PlayedSite, image: str) -> None:
    metrics = Metrics()
    config = site.cache_config({"name": image, "maxParallelPodsPerFunction": 2, "minReadyPods": 2})
    flags = (f"--pod-cache-config={config}", "--wait-for-warm-up=true")
    runner = site.start(site.account(), *flags, environment=metrics.environment)
    wait_until(lambda: metrics.sum("pods", image=image, state="ready") == 2, what="both pods are ready")
    async with Client(runner.address) as client:
        for _ in range(10):
            for answer in await asyncio.gather(*(client.evaluate(image, wish()) for _ in range(8))):
                served(answer)
    wait_until(lambda: metrics.sum("evaluations_total", runtime="pod", code="OK") == 80, what="all calls are reported")
    # Who comes first may have to ask, and those who come with it.
    assert metrics.sum("pod_leases_total", promised="yes") >= 72
    by_pod = Counter(re.findall(r"event=evaluated .* pod=(\S+)", "\n".join(runner.lines)))
    assert len(by_pod) == 2
    assert min(by_pod.values()) >= 30


async def test_a_tag_that_is_looked_up_each_time_is_promised_to_nobody(site: PlayedSite, image: str) -> None:
    metrics = Metrics()
    runner = site.start(site.account(), "--image-tag-ttl=0", environment=metrics.environment)
    async with Client(runner.address) as client:
        for _ in range(3):
            served(await client.evaluate(image, wish()))
            await asyncio.sleep(0.2)
    assert metrics.by("pod_leases_total", "promised") == {("no",): 3}
