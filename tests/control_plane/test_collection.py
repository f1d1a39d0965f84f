"""Pods that nobody needs go, with their Services; nothing else does."""

from __future__ import annotations

import signal
import time

import pytest

from control_plane import local_images
from control_plane.site import PlayedSite
from support.audit import AuditLog
from support.calls import served, wish
from support.client import Client
from support.kube import Json, wait_until
from support.load import Load
from support.processes import eventually
from support.push import Push
from support.site import LABEL, RECLAIM_AFTER

SCAN = "--scan-interval=1s"
PAST = "1000000000"


@pytest.fixture
def image(push: Push) -> str:
    return push("obliging", local_images.obliging())


def service(name: str, labels: dict[str, str]) -> Json:
    spec = {"ports": [{"port": 9446, "targetPort": 9446}], "selector": {LABEL: name}}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"labels": labels}, "spec": spec}


async def test_an_expired_pod_goes_with_its_service(site: PlayedSite, image: str) -> None:
    async with Client(site.runner(SCAN, "--pod-ttl=1s").address) as client:
        first = served(await client.evaluate(image, wish()))
        uid = site.only_pod()["metadata"]["uid"]
        await eventually(lambda: site.pods() == [] and site.services() == [], what="both are gone", seconds=60)
        assert served(await client.evaluate(image, wish())).pod == first.pod, "the number is free again"
    assert site.only_pod()["metadata"]["uid"] != uid


async def test_use_extends_a_pods_time(site: PlayedSite, image: str, audit_log: AuditLog) -> None:
    async with Client(site.runner(SCAN, "--pod-ttl=2s").address) as client:
        async with Load(client, image, callers=1, pause=0.3) as load:
            await load.more(1)
            pod = site.only_pod()["metadata"]
            limit = int(pod["annotations"][RECLAIM_AFTER])
            await load.until(lambda call: call.ended > limit + 2, what="long after its first time")
        assert site.only_pod()["metadata"]["uid"] == pod["uid"]
        assert int(site.reclaim_after(pod["name"])) > limit
    assert {call.pod for call in load.served.values()} == {pod["name"]}
    assert audit_log.done("delete", "pods", site.functions.name) == []


async def test_a_functions_own_ttl(site: PlayedSite, image: str, push: Push) -> None:
    other = push("other", local_images.obliging())
    config = site.cache_config({"name": image, "timeToLive": "1s"})
    async with Client(site.runner(SCAN, f"--pod-cache-config={config}", "--warm-up-pod-cache=false").address) as client:
        gone, stays = served(await client.evaluate(image, wish())), served(await client.evaluate(other, wish()))
        await eventually(
            lambda: [found["metadata"]["name"] for found in (*site.pods(), *site.services())] == [stays.pod, stays.pod],
            what="one goes, with its Service",
            seconds=60,
        )
    assert gone.pod != stays.pod


@pytest.mark.parametrize("text", [None, "soon", "-5", "1e99", ""], ids=["missing", "word", "negative", "huge", "empty"])
async def test_a_time_that_cannot_be_read_is_replaced(site: PlayedSite, image: str, text: str | None) -> None:
    async with Client(site.runner(SCAN).address) as client:
        pod = served(await client.evaluate(image, wish())).pod
        uid = site.only_pod()["metadata"]["uid"]
        site.annotate(pod, reclaim_after=text)

        def is_mended() -> bool:
            now = site.reclaim_after(pod)
            return now.isdigit() and time.time() < int(now) < time.time() + 31 * 60

        wait_until(is_mended, what="it has a new time")
        assert served(await client.evaluate(image, wish())).pod == pod
    assert site.only_pod()["metadata"]["uid"] == uid


async def test_a_pod_whose_time_somebody_else_extends_stays(site: PlayedSite, image: str) -> None:
    async with Client(site.runner(SCAN, "--pod-ttl=1s").address) as client:
        pod = served(await client.evaluate(image, wish())).pod
        site.annotate(pod, reclaim_after=str(int(time.time()) + 3600))
        other = served(await client.evaluate(image, wish(seconds=3))).pod
        assert other == pod
    assert site.living()


async def test_pods_of_nobody_that_is_here_go_when_their_time_is_over(site: PlayedSite, image: str) -> None:
    """Made by a runner that is gone, for a function that nobody calls."""
    first = site.runner()
    async with Client(first.address) as client:
        pod = served(await client.evaluate(image, wish())).pod
    first.stop(signal.SIGKILL)
    site.annotate(pod, reclaim_after=PAST)
    site.runner(SCAN)
    await eventually(lambda: site.pods() == [] and site.services() == [], what="both are gone", seconds=60)


async def test_a_failed_pod_goes_at_once(site: PlayedSite, image: str) -> None:
    """Its wrapper is killed; its time is far away, and so is the next scan."""
    async with Client(site.runner("--scan-interval=1h").address) as client:
        pod = served(await client.evaluate(image, wish())).pod
        uid = site.only_pod()["metadata"]["uid"]
        site.kubelet.kill(site.only_pod())
        await eventually(
            lambda: all(found["metadata"]["uid"] != uid for found in site.pods()), what="it is gone", seconds=60
        )
        served(await client.evaluate(image, wish()))
    assert site.only_pod()["metadata"]["uid"] != uid
    assert pod


async def test_a_service_whose_pod_is_gone_goes(site: PlayedSite, image: str) -> None:
    site.functions.create(service("orphan-v1-1-00000000", {LABEL: "orphan-v1-1-00000000"}), "orphan-v1-1-00000000")
    async with Client(site.runner(SCAN, "--pod-start-timeout=2s").address) as client:
        served(await client.evaluate(image, wish()))
        await eventually(lambda: len(site.services()) == 1, what="the orphan is gone", seconds=60)
        assert site.services()[0]["metadata"]["name"] == site.only_pod()["metadata"]["name"]
        served(await client.evaluate(image, wish()))


async def test_what_has_not_our_label_is_never_touched(site: PlayedSite, image: str, audit_log: AuditLog) -> None:
    """However much it looks as if its time were over."""
    for name in ("bystander", "failed"):
        site.run_bystander(name)
    site.functions.kube.patch(site.functions.path("pods/failed/status"), {"status": {"phase": "Failed"}})
    for name in ("bystander", "failed"):
        site.annotate(name, reclaim_after=PAST)
    site.functions.create(service("bystander", {"app": "x"}), "bystander")
    place = site.account()
    async with Client(site.start(place, SCAN, "--pod-ttl=1s", "--pod-start-timeout=2s").address) as client:
        served(await client.evaluate(image, wish()))
        await eventually(lambda: site.pods() == [] and site.services() == [], what="ours are gone", seconds=60)
        served(await client.evaluate(image, wish()))
        await eventually(lambda: site.pods() == [] and site.services() == [], what="and again", seconds=60)
    assert site.functions.find("pods/bystander")
    assert site.functions.find("pods/failed")
    assert site.functions.find("services/bystander")
    touched = [request for request in audit_log.requests(place.user) if request.name in ("bystander", "failed")]
    assert touched == []


async def test_a_pod_without_its_service_gets_it_again(site: PlayedSite, image: str) -> None:
    """The way to a pod is its Service: one that somebody deleted must not be the end of the function."""
    first = site.runner(SCAN)
    async with Client(first.address) as client:
        pod = served(await client.evaluate(image, wish())).pod
    first.stop(signal.SIGKILL)
    site.functions.kube.delete(site.functions.path(f"services/{pod}"))
    async with Client(site.runner(SCAN).address) as client:
        served(await client.evaluate(image, wish()))
        await eventually(
            lambda: (
                {found["metadata"]["name"] for found in site.services()}
                == {found["metadata"]["name"] for found in site.living()}
            ),
            what="every pod has its Service",
            seconds=60,
        )


async def test_a_pod_that_somebody_puts_our_label_on_is_no_function(site: PlayedSite, image: str) -> None:
    """It serves no calls, and harms none."""
    site.run_bystander("odd")
    site.functions.kube.patch(site.functions.path("pods/odd"), {"metadata": {"labels": {LABEL: "odd"}}})
    ready = {"phase": "Running", "podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}
    site.functions.kube.patch(site.functions.path("pods/odd/status"), {"status": ready})
    async with Client(site.runner(SCAN).address) as client:
        assert served(await client.evaluate(image, wish())).pod != "odd"
