"""Many calls, few pods: growth within the limits, one execution for each call, no request to Kubernetes on the way."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import AsyncExitStack

import pytest

from control_plane import local_images
from control_plane.site import PlayedSite
from support.audit import AuditLog
from support.calls import Served, served, wish
from support.client import Answer, Client
from support.load import Load
from support.processes import eventually
from support.push import Push


@pytest.fixture
def image(push: Push) -> str:
    return push("obliging", local_images.obliging())


async def calls(client: Client, image: str, names: list[str], **wishes: object) -> list[Served]:
    """All at once; all must be answered."""
    answers = await asyncio.gather(*(client.evaluate(image, wish(call=name, **wishes)) for name in names))
    return [served(answer) for answer in answers]


@pytest.mark.parametrize("pods", [1, 3])
async def test_fifty_first_calls_at_once(site: PlayedSite, image: str, pods: int, audit_log: AuditLog) -> None:
    names = [f"call-{number}" for number in range(50)]
    async with Client(site.runner(f"--max-parallel-pods-per-function={pods}").address) as client:
        done = await calls(client, image, names, seconds=0.05)
        # The pods that came too late for a call are there as well.
        await eventually(lambda: all(pod["status"].get("podIP") for pod in site.pods()), what="all are started")
        assert sorted(await site.calls_of(*site.pods())) == sorted(names), "each was executed once"
    assert [call.call for call in done] == names
    assert len(site.pods()) == len(site.services()) == pods
    assert len(audit_log.done("create", "pods", site.functions.name)) == pods


async def test_a_functions_own_limits(site: PlayedSite, image: str, push: Push) -> None:
    other = push("other", local_images.obliging())
    config = site.cache_config({"name": image, "maxParallelPodsPerFunction": 2, "maxWaitlistLength": 1})
    flags = (f"--pod-cache-config={config}", "--warm-up-pod-cache=false")
    names = [f"call-{number}" for number in range(8)]
    async with Client(site.runner(*flags).address) as client:
        both = await asyncio.gather(calls(client, image, names, seconds=0.5), calls(client, other, names, seconds=0.5))
    assert Counter(pod["metadata"]["annotations"]["krm-runner/image"] for pod in site.pods()) == {image: 2, other: 1}
    assert len({call.pod for call in both[1]}) == 1


async def test_calls_are_spread_over_the_pods_that_are_there(site: PlayedSite, image: str) -> None:
    flags = ("--max-parallel-pods-per-function=2", "--max-waitlist-length=1")
    async with Client(site.runner(*flags).address) as client:
        names = [f"call-{number}" for number in range(4)]
        await calls(client, image, names, seconds=1)
        await eventually(lambda: len(site.pods()) == 2, what="there are two pods")
        async with Load(client, image, callers=1) as load:
            await load.until(lambda call: call.pod == site.pods()[0]["metadata"]["name"], what="from the first pod")
            await load.until(lambda call: call.pod == site.pods()[1]["metadata"]["name"], what="from the second pod")
        # One after the other, so that nothing but the turn decides.
        turns = [call.pod for call in list(load.served.values())[-6:]]
    assert len(set(turns)) == 2


async def test_a_queue_has_an_end(site: PlayedSite, image: str) -> None:
    async with Client(site.runner("--max-queue-length=3").address) as client:
        answers = await asyncio.gather(
            *(client.evaluate(image, wish(call=f"call-{number}", seconds=1)) for number in range(20))
        )
        refused = [answer for answer in answers if answer.code != "OK"]
        assert refused
        assert {(answer.code, answer.reason) for answer in refused} == {("RESOURCE_EXHAUSTED", "QUEUE_FULL")}
        assert all(answer.retry_delay for answer in refused)
        did = await site.calls_of(site.only_pod())
    assert len(did) == len(set(did)) == len(answers) - len(refused)


async def test_a_warm_evaluation_asks_the_api_server_for_nothing(
    site: PlayedSite, image: str, audit_log: AuditLog
) -> None:
    place = site.account()
    async with Client(site.start(place).address) as client:
        served(await client.evaluate(image, wish()))
        await _until_quiet(audit_log, place.user)
        before = audit_log.count(place.user)
        for _ in range(5):
            await calls(client, image, [""] * 50)
        assert audit_log.count(place.user) - before == Counter()


async def test_extending_a_pods_time_is_all_that_warm_evaluations_write(
    site: PlayedSite, image: str, audit_log: AuditLog
) -> None:
    place = site.account()
    async with Client(site.start(place, "--pod-ttl=4s", "--scan-interval=1s").address) as client:
        served(await client.evaluate(image, wish()))
        await _until_quiet(audit_log, place.user)
        before, began = audit_log.count(place.user), time.monotonic()
        while time.monotonic() < began + 4:
            await calls(client, image, [""] * 20)
        asked, seconds = audit_log.count(place.user) - before, time.monotonic() - began
    assert set(asked) == {"patch pods"}
    assert asked["patch pods"] <= seconds + 1, "at most once in a quarter of the TTL"


async def test_runners_use_each_others_pods(site: PlayedSite, image: str, audit_log: AuditLog) -> None:
    pods: set[str] = set()
    for runner in [site.runner() for _ in range(3)]:
        async with Client(runner.address) as client:
            pods.add(served(await client.evaluate(image, wish())).pod)
    assert len(pods) == 1
    assert len(audit_log.done("create", "pods", site.functions.name)) == 1


@pytest.mark.parametrize("replicas", [2, 3])
async def test_runners_that_start_a_function_together_make_one_pod(
    site: PlayedSite, image: str, audit_log: AuditLog, replicas: int
) -> None:
    async with AsyncExitStack() as stack:
        runners = [site.runner() for _ in range(replicas)]
        clients = [await stack.enter_async_context(Client(runner.address)) for runner in runners]
        answers = await asyncio.gather(*(client.evaluate(image, wish()) for client in clients * 5))
    assert len({served(answer).pod for answer in answers}) == 1
    assert len(audit_log.done("create", "pods", site.functions.name)) == 1


async def test_a_call_longer_than_the_ttl_ends_well_beside_another_runner(
    site: PlayedSite, image: str, audit_log: AuditLog
) -> None:
    # Runners write a pod's new time once a second, in whole seconds: a shorter TTL may run out between two writes.
    flags = ("--pod-ttl=3s", "--scan-interval=1s", "--retry-lost-calls=false")
    first, _ = site.runner(*flags), site.runner(*flags)
    async with Client(first.address) as client:
        call = served(await client.evaluate(image, wish(call="long", seconds=7)))
        assert audit_log.done("delete", "pods", site.functions.name) == []
        assert await site.calls_of(site.only_pod()) == ["long"]
    assert call.pod == site.only_pod()["metadata"]["name"]
    await eventually(lambda: site.pods() == [] and site.services() == [], what="then it goes", seconds=60)


async def test_two_runners_under_load_with_a_short_ttl(site: PlayedSite, push: Push, audit_log: AuditLog) -> None:
    """Pods come and go all the time, by the hand of either runner; no call notices."""
    flags = ("--pod-ttl=2s", "--scan-interval=1s", "--retry-lost-calls=false", "--max-parallel-pods-per-function=2")
    runners = [site.runner(*flags), site.runner(*flags)]
    busy, *quiet = (push(f"obliging-{number}", local_images.obliging()) for number in range(6))
    chance = random.Random(8)
    end = time.monotonic() + 15
    answers: list[Answer] = []

    async def calls_now_and_then(client: Client, function: str) -> None:
        """About as often as a pod's time passes, so that calls come in that very moment; some last longer than it."""
        while time.monotonic() < end:
            answers.append(await client.evaluate(function, wish(seconds=chance.choice([0, 0, 0.5, 5])), timeout=60))
            await asyncio.sleep(chance.uniform(1.5, 4))

    async with (
        Client(runners[0].address) as one,
        Client(runners[1].address) as other,
        Load(one, busy, pause=0.1) as first,
        Load(other, busy, pause=0.1, seconds=0.5) as second,
    ):
        await asyncio.gather(*(calls_now_and_then(client, name) for name in quiet for client in (one, other)))
    everything = [*(served(answer) for answer in answers), *first.served.values(), *second.served.values()]
    deletions = audit_log.done("delete", "pods", site.functions.name)
    assert len(deletions) > 3, "hardly any was collected: this shows nothing"
    for call in everything:
        # Its clock has whole seconds, of which the first may be anybody's; and in the second after it, the other runner
        # may not have heard yet that the pod is in use. Such a pod is deleted with grace, and the call ends well.
        under_it = [it for it in deletions if it.name == call.pod and call.began + 2 <= it.at <= call.ended]
        assert not under_it, f"{call} lost its pod: {under_it}"


async def _until_quiet(audit_log: AuditLog, user: str) -> None:
    """Nothing is asked for a while: what a start brings about is over."""
    last, since = audit_log.count(user), time.monotonic()
    limit = since + 30
    while time.monotonic() < since + 1:
        await asyncio.sleep(0.1)
        assert time.monotonic() < limit, f"it never stops asking: {audit_log.count(user) - last}"
        if (now := audit_log.count(user)) != last:
            last, since = now, time.monotonic()
