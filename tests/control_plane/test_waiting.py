"""Calls that wait for a pod: in their order, no longer than their deadline, and told what they waited for."""

from __future__ import annotations

import asyncio
import re
import time

import pytest

from control_plane import local_images
from control_plane.faults import Unschedulable
from control_plane.site import PlayedSite
from support.audit import AuditLog
from support.calls import served, wish
from support.client import Client
from support.processes import eventually
from support.push import Push
from support.site import LABEL, RECLAIM_AFTER


@pytest.fixture
def image(push: Push) -> str:
    return push("obliging", local_images.obliging())


async def test_calls_that_wait_for_a_start_are_executed_in_their_order(site: PlayedSite, image: str) -> None:
    site.write_template(one_at_a_time(site))
    names = [f"call-{number}" for number in range(8)]
    async with Client(site.runner("--function-pod-template=template").address) as client:
        with site.kubelet.hold():
            calls: list[asyncio.Task[object]] = []
            for name in names:
                calls.append(asyncio.create_task(client.evaluate(image, wish(call=name))))
                # Until the first call has looked up its image, a later one may overtake it.
                await eventually(lambda: bool(site.pods()), what="the pod is being started")
                await asyncio.sleep(0.05)
        await asyncio.gather(*calls)
        assert await site.calls_of(site.only_pod()) == names


async def test_one_that_leaves_the_queue_does_not_hold_up_the_others(site: PlayedSite, image: str) -> None:
    site.write_template(one_at_a_time(site))
    async with Client(site.runner("--function-pod-template=template").address) as client:
        with site.kubelet.hold():
            first = client.start(image, wish(call="first"))
            waiting = asyncio.ensure_future(first.code())
            await eventually(lambda: bool(site.pods()), what="the pod is being started")
            late = asyncio.ensure_future(client.evaluate(image, wish(call="late"), timeout=0.5))
            last = asyncio.ensure_future(client.evaluate(image, wish(call="last")))
            assert (await late).code == "DEADLINE_EXCEEDED"
            first.cancel()
            await waiting
        served(await last)
        assert await site.calls_of(site.only_pod()) == ["last"]


async def test_a_deadline_that_passes_says_what_the_call_waited_for(site: PlayedSite, image: str) -> None:
    """In the log: a client whose own clock is ahead does not wait for the answer."""
    runner = site.runner()
    said = re.compile(
        r'event=evaluated .* code=DEADLINE_EXCEEDED .* it still waited for pod \\"obliging-\S+\\": Pending'
    )
    async with Client(runner.address) as client, asyncio.timeout(30):
        with site.kubelet.hold():
            # The runner's deadline is 20 ms ahead of the client's: a call that took longer to reach it is cancelled.
            while not any(map(said.search, list(runner.lines))):
                late = await client.evaluate(image, wish(), timeout=1)
                assert late.code == "DEADLINE_EXCEEDED"


async def test_a_full_pod_gets_company_and_a_full_function_a_queue(site: PlayedSite, image: str) -> None:
    flags = ("--max-parallel-pods-per-function=2", "--max-waitlist-length=1")
    async with Client(site.runner(*flags).address) as client:
        long = [asyncio.ensure_future(client.evaluate(image, wish(call=f"long-{n}", seconds=1))) for n in range(4)]
        await eventually(lambda: len(site.pods()) == 2, what="a second pod is started")
        for answer in await asyncio.gather(*long):
            served(answer)
    assert len(site.pods()) == len(site.services()) == 2


async def test_a_call_that_waits_for_a_second_pod_gets_the_first_when_that_has_room_again(
    site: PlayedSite, image: str
) -> None:
    flags = ("--max-parallel-pods-per-function=2", "--max-waitlist-length=1")
    async with Client(site.runner(*flags).address) as client:
        first = served(await client.evaluate(image, wish()))
        with site.kubelet.hold():
            long = asyncio.ensure_future(client.evaluate(image, wish(call="long", seconds=1)))
            async with asyncio.timeout(20):
                while "long" not in await site.calls_of(site.pods()[0]):
                    await asyncio.sleep(0.05)
            others = [asyncio.ensure_future(client.evaluate(image, wish(call=f"other-{n}"))) for n in range(3)]
            await eventually(lambda: len(site.pods()) == 2, what="a second pod is created, and does not start")
            for answer in await asyncio.gather(long, *others):
                assert served(answer).pod == first.pod


async def test_growth_that_finds_no_room_leaves_its_calls_to_the_pods_that_are_there(
    site: PlayedSite, image: str
) -> None:
    flags = ("--max-parallel-pods-per-function=2", "--max-waitlist-length=1")
    async with Client(site.runner(*flags).address) as client:
        first = served(await client.evaluate(image, wish()))
        site.kubelet.fault = Unschedulable()
        answers = await asyncio.gather(*(client.evaluate(image, wish(seconds=0.3)) for _ in range(6)))
        assert {served(answer).pod for answer in answers} == {first.pod}


async def test_calls_whose_pod_is_deleted_while_it_starts_get_another(site: PlayedSite, image: str) -> None:
    async with Client(site.runner().address) as client:
        with site.kubelet.hold():
            calls = [asyncio.ensure_future(client.evaluate(image, wish(call=f"call-{n}"))) for n in range(3)]
            await eventually(lambda: bool(site.pods()), what="their pod is being started")
            first = site.only_pod()["metadata"]
            site.delete_pod(first["name"])
            await eventually(
                lambda: [pod["metadata"]["uid"] for pod in site.living()] not in ([], [first["uid"]]),
                what="another pod is started",
            )
        assert len({served(answer).pod for answer in await asyncio.gather(*calls)}) == 1
        assert sorted(await site.calls_of(site.only_pod())) == ["call-0", "call-1", "call-2"]


async def test_a_pod_that_a_call_waits_for_does_not_expire(site: PlayedSite, image: str, audit_log: AuditLog) -> None:
    async with Client(site.runner("--pod-ttl=1s", "--scan-interval=1s").address) as client:
        with site.kubelet.hold():
            call = asyncio.ensure_future(client.evaluate(image, wish()))
            await eventually(lambda: bool(site.pods()), what="its pod is being started")
            limit = int(site.reclaim_after(site.only_pod()["metadata"]["name"]))
            await eventually(lambda: time.time() > limit, what="its time is over")
            # A scan from now on finds both expired, and deletes this one.
            leave_expired(site, "expired")
            await eventually(lambda: site.functions.find("pods/expired") is None, what="a scan has deleted the other")
        served(await call)
    assert len(audit_log.done("create", "pods", site.functions.name)) == 2, "the expired one, and one for the call"


def leave_expired(site: PlayedSite, name: str) -> None:
    """A pod with our label that nobody uses, and whose time is over."""
    site.run_bystander(name)
    change = {"metadata": {"labels": {LABEL: name}, "annotations": {RECLAIM_AFTER: "1000000000"}}}
    site.functions.kube.patch(site.functions.path(f"pods/{name}"), change)


def one_at_a_time(site: PlayedSite) -> object:
    """The built-in template with a wrapper server that executes one function at a time."""
    pod = site.built_in_template()
    pod["spec"]["containers"][0]["args"] = ["--max-parallel", "1"]
    return pod
