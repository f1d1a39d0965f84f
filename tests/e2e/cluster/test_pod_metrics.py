"""What an operator sees of the pod runtime in its metrics, after real pods did real things."""

from __future__ import annotations

import asyncio

import pytest

from images.oci import Image
from support import function_images
from support.calls import served, wish
from support.client import Client
from support.kube import wait_until
from support.metrics import Metrics
from support.push import Push
from support.site import Site


@pytest.fixture
def image(push: Push) -> str:
    return push("obliging", function_images.obliging())


async def test_cold_starts_calls_failures_and_requests_are_counted(site: Site, image: str, push: Push) -> None:
    broken = push("absent", Image((function_images.alpine(),), entrypoint=("/nowhere/function",)))
    metrics = Metrics()
    runner = site.start(site.account(), "--pod-ttl=4s", "--scan-interval=1s", environment=metrics.environment)
    async with Client(runner.address) as client:
        for _ in range(5):
            served(await client.evaluate(image, wish()))
        assert metrics.sum("pod_leases_total") == 5
        assert metrics.sum("evaluations_total", image=image, runtime="pod", code="OK") == 5
        assert metrics.sum("queue_wait_seconds_count", runtime="pod") == 5
        for phase in ("create", "healthy", "total"):
            assert metrics.sum("pod_start_duration_seconds_count", phase=phase) == 1
        assert 0 < metrics.sum("pod_start_duration_seconds_sum", phase="total") < 60
        wait_until(lambda: metrics.sum("pods", image=image, state="ready") == 1, what="the pod is counted")
        assert metrics.values("pod_calls_waiting", image=image) == [0]

        assert (await client.evaluate(broken, wish())).code == "FAILED_PRECONDITION"
        assert metrics.sum("pod_start_failures_total") == 1
        assert metrics.sum("evaluations_total", image=broken, runtime="pod", code="FAILED_PRECONDITION") == 1
        wait_until(lambda: metrics.sum("pod_deletions_total", reason="failed_to_start") == 1, what="it is deleted")
        wait_until(lambda: metrics.sum("pod_deletions_total", reason="expired") == 1, what="the other one expires")
        wait_until(lambda: metrics.values("pods", image=image, state="ready") in ([], [0]), what="it is gone")
    for verb, resource in (("list", "pods"), ("watch", "pods"), ("create", "pods"), ("create", "services")):
        assert metrics.sum("kubernetes_requests_total", verb=verb, resource=resource, status="2xx") >= 1
    assert metrics.sum("kubernetes_requests_total", verb="delete", resource="pods") >= 2


async def test_lost_pods_and_repeated_calls_are_counted(site: Site, image: str) -> None:
    metrics = Metrics()
    runner = site.start(site.account(), environment=metrics.environment)
    async with Client(runner.address) as client:
        served(await client.evaluate(image, wish()))
        assert metrics.sum("pod_retries_total") == 0
        first = site.only_pod()
        call = asyncio.ensure_future(client.evaluate(image, wish(call="long", seconds=3)))
        async with asyncio.timeout(30):
            while "long" not in await site.calls_of(first):
                await asyncio.sleep(0.05)
        site.delete_pod(first["metadata"]["name"])
        served(await call)
    assert metrics.sum("pod_leases_total") == 3
    assert metrics.sum("pod_losses_total", reason="in_the_call") == 1
    assert metrics.sum("pod_retries_total", reason="in_the_call") == 1
