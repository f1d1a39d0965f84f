"""What goes wrong while pods serve: pods die, the API server is away, watches break, runners are killed."""

from __future__ import annotations

import asyncio
import signal
import time
import uuid

import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse

from control_plane import local_images
from control_plane.site import PlayedSite
from support.audit import AuditLog
from support.calls import served, wish
from support.client import Client, check_health
from support.kube import Json
from support.load import Load
from support.namespace import is_ready
from support.processes import command_lines, eventually
from support.push import Push
from support.relay import Relay

NO_RETRY = "--retry-lost-calls=false"


@pytest.fixture
def image(push: Push) -> str:
    return push("obliging", local_images.obliging())


async def until_noted(site: PlayedSite, pod: Json, call: str) -> None:
    """The function has begun with it. Asked at the pod itself."""
    async with asyncio.timeout(30):
        while call not in await site.calls_of(pod):
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("grace", [0, 30])
async def test_a_pod_that_is_deleted_between_calls(site: PlayedSite, image: str, grace: int) -> None:
    async with Client(site.runner().address) as client:
        served(await client.evaluate(image, wish()))
        first = site.only_pod()["metadata"]
        for _ in range(3):
            (old,) = site.living()
            site.delete_pod(old["metadata"]["name"], seconds=grace)
            async with asyncio.timeout(60):
                # One that comes before the pod knows that it is to go is answered well. The next may have its name.
                while all(pod["metadata"]["uid"] == old["metadata"]["uid"] for pod in site.living()):
                    served(await client.evaluate(image, wish()))
                    await asyncio.sleep(0.05)
            served(await client.evaluate(image, wish()))
        await eventually(lambda: len(site.pods()) == 1, what="one is left", seconds=60)
    assert site.only_pod()["metadata"]["uid"] != first["uid"]


@pytest.mark.parametrize("is_first", [True, False], ids=["first call", "further call"])
async def test_a_pod_that_is_deleted_with_grace_ends_its_call_well(
    site: PlayedSite, image: str, is_first: bool
) -> None:
    """The runner knows of a first call. It may not know yet of a further call, which the front has sent to the pod."""
    async with Client(site.runner(NO_RETRY).address) as client:
        if not is_first:
            served(await client.evaluate(image, wish()))
        call = asyncio.ensure_future(client.evaluate(image, wish(call="long", seconds=2)))
        await eventually(lambda: any(is_ready(pod) for pod in site.pods()), what="its pod is ready")
        first = site.only_pod()
        await until_noted(site, first, "long")
        site.delete_pod(first["metadata"]["name"], seconds=30)
        async with Load(client, image, callers=1) as load:
            await load.until(lambda other: other.pod != first["metadata"]["name"], what="from another pod")
        assert load.served, "the pod that goes may have had some of them, and ended them well"
        assert served(await call).pod == first["metadata"]["name"]


@pytest.mark.parametrize("way", ["deleted", "killed"])
async def test_a_call_whose_pod_dies_is_made_once_more(site: PlayedSite, image: str, way: str) -> None:
    async with Client(site.runner().address) as client:
        served(await client.evaluate(image, wish()))
        first = site.only_pod()
        call = asyncio.ensure_future(client.evaluate(image, wish(call="long", seconds=1.5)))
        await until_noted(site, first, "long")
        if way == "deleted":
            site.delete_pod(first["metadata"]["name"])
        else:
            site.kubelet.kill(first)
        assert served(await call).call == "long"
        (second,) = (pod for pod in site.living() if pod["metadata"]["uid"] != first["metadata"]["uid"])
        assert await site.calls_of(second) == ["long"]


@pytest.mark.parametrize("way", ["deleted", "killed"])
async def test_a_call_whose_pod_dies_is_not_repeated_where_that_is_not_wanted(
    site: PlayedSite, image: str, way: str
) -> None:
    async with Client(site.runner(NO_RETRY).address) as client:
        served(await client.evaluate(image, wish()))
        first = site.only_pod()
        call = asyncio.ensure_future(client.evaluate(image, wish(call="long", seconds=20)))
        await until_noted(site, first, "long")
        if way == "deleted":
            site.delete_pod(first["metadata"]["name"])
        else:
            site.kubelet.kill(first)
        answer = await call
        assert (answer.code, answer.reason) == ("UNAVAILABLE", "POD_LOST")
        assert first["metadata"]["name"] in answer.message
        assert answer.retry_delay
        served(await client.evaluate(image, wish()))


@pytest.mark.parametrize(("way", "words"), [("memory", "OOMKilled"), ("eviction", "low on resource: memory")])
async def test_a_lost_call_is_told_what_happened_to_its_pod(site: PlayedSite, image: str, way: str, words: str) -> None:
    async with Client(site.runner(NO_RETRY).address) as client:
        served(await client.evaluate(image, wish()))
        first = site.only_pod()
        call = asyncio.ensure_future(client.evaluate(image, wish(call="long", seconds=20)))
        await until_noted(site, first, "long")
        if way == "memory":
            site.kubelet.run_out_of_memory(first)
        else:
            site.kubelet.evict(first, "The node was low on resource: memory")
        answer = await call
        assert (answer.code, answer.reason) == ("UNAVAILABLE", "POD_LOST")
        assert words in answer.message
        served(await client.evaluate(image, wish()))


@pytest.mark.parametrize("grace", [0, 30])
async def test_all_pods_are_deleted_under_load(site: PlayedSite, image: str, grace: int) -> None:
    """Without grace a call may lose a second pod while it is made once more: it is told so, and nothing else fails."""
    runner = site.runner("--max-parallel-pods-per-function=3", "--max-waitlist-length=1")
    async with Client(runner.address) as client, Load(client, image, callers=6) as load:
        await load.more(50)
        for _ in range(3):
            for pod in site.living():
                site.delete_pod(pod["metadata"]["name"], seconds=grace)
            await load.more(50)
    runner.stop()
    if grace:
        assert load.served
    lost = [answer for answer in load.answers.values() if answer.code != "OK"]
    assert all((answer.code, answer.reason) == ("UNAVAILABLE", "POD_LOST") for answer in lost), load.failures
    assert all(answer.retry_delay for answer in lost)
    assert len(lost) <= sum("call goes to another pod" in line for line in runner.lines), (
        "each of them was made once more"
    )


async def test_warm_calls_go_on_while_the_api_server_is_away(
    site: PlayedSite, image: str, push: Push, api_relay: Relay
) -> None:
    other = push("other", local_images.obliging())
    place = site.account()
    place.api = api_relay.address
    async with Client(site.start(place, "--pod-ttl=2s", "--scan-interval=1s").address) as client:
        async with Load(client, image) as load:
            await load.more(20)
            api_relay.close()
            end = time.time() + 5
            cold = await client.evaluate(other, wish(), timeout=2)
            assert cold.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED"), "it needs the API server"
            assert (await check_health(client.channel)).status == HealthCheckResponse.SERVING, (
                "losing it does not change health"
            )
            await load.until(lambda call: call.ended > end, what="after 5 s without the API server")
            api_relay.reopen()
            served(await client.evaluate(other, wish()))
            await load.more(50)
        assert load.served


async def test_a_runner_that_starts_without_an_api_server_serves_when_it_comes(
    site: PlayedSite, image: str, api_relay: Relay
) -> None:
    place = site.account()
    place.api = api_relay.address
    api_relay.close()
    runner = site.start(place)
    async with Client(runner.address) as client:
        assert (await check_health(client.channel)).status == HealthCheckResponse.SERVING
        first = await client.evaluate(image, wish(), timeout=1)
        assert first.code in ("UNAVAILABLE", "DEADLINE_EXCEEDED"), first
        call = asyncio.ensure_future(client.evaluate(image, wish(), timeout=60))
        api_relay.reopen()
        answer = await call
        if answer.code != "OK":
            assert answer.code == "UNAVAILABLE"
            answer = await client.evaluate(image, wish())
        served(answer)


async def test_a_token_that_is_rotated_is_read_again(site: PlayedSite, image: str) -> None:
    place = site.account()
    async with Client(site.start(place).address) as client:
        served(await client.evaluate(image, wish()))
        place.rotate_token()
        site.delete_pod(site.only_pod()["metadata"]["name"])
        served(await client.evaluate(image, wish()))


async def test_a_killed_runners_pods_serve_the_next(site: PlayedSite, image: str, audit_log: AuditLog) -> None:
    place = site.account()
    first = site.start(place)
    async with Client(first.address) as client:
        made = served(await client.evaluate(image, wish()))
    uid = site.only_pod()["metadata"]["uid"]
    first.stop(signal.SIGKILL)
    async with Client(site.start(place).address) as client:
        assert served(await client.evaluate(image, wish())).pod == made.pod
    assert site.only_pod()["metadata"]["uid"] == uid
    assert len(audit_log.done("create", "pods", site.functions.name)) == 1
    assert len(audit_log.done("create", "services", site.functions.name)) == 1


async def test_a_runner_killed_in_a_cold_start_leaves_a_pod_that_the_next_uses(
    site: PlayedSite, image: str, audit_log: AuditLog
) -> None:
    place = site.account()
    first = site.start(place)
    async with Client(first.address) as client:
        with site.kubelet.hold():
            call = asyncio.ensure_future(client.evaluate(image, wish()))
            await eventually(lambda: bool(site.pods() and site.services()), what="its pod is being started")
            first.stop(signal.SIGKILL)
            assert (await call).code == "UNAVAILABLE"
    async with Client(site.start(place).address) as client:
        served(await client.evaluate(image, wish()))
        served(await client.evaluate(image, wish()))
    assert len(site.pods()) == len(site.services()) == 1
    assert len(audit_log.done("create", "pods", site.functions.name)) == 1


async def test_a_runner_that_is_asked_to_end_lets_its_calls_end_and_leaves_its_pods(
    site: PlayedSite, image: str, audit_log: AuditLog
) -> None:
    runner = site.runner("--shutdown-delay=1s")
    async with Client(runner.address) as client:
        served(await client.evaluate(image, wish()))
        call = asyncio.ensure_future(client.evaluate(image, wish(call="long", seconds=1.5)))
        await until_noted(site, site.only_pod(), "long")
        code = await asyncio.to_thread(runner.stop)
        assert served(await call).call == "long"
    assert code == 0
    assert len(site.living()) == len(site.services()) == 1
    assert audit_log.done("delete", "pods", site.functions.name) == []


async def test_a_runner_that_is_asked_to_end_in_a_cold_start_leaves_the_pod(site: PlayedSite, image: str) -> None:
    runner = site.runner("--shutdown-delay=0s", "--shutdown-timeout=20s")
    async with Client(runner.address) as client:
        with site.kubelet.hold():
            call = asyncio.ensure_future(client.evaluate(image, wish(call="first")))
            await eventually(lambda: bool(site.pods()), what="its pod is being started")
            end = asyncio.ensure_future(asyncio.to_thread(runner.stop))
            await asyncio.to_thread(runner.wait_for_line, "event=stopping")
        served(await call)
        code = await end
    assert code == 0
    assert len(site.living()) == len(site.services()) == 1


async def test_a_call_that_is_cancelled_ends_its_function(site: PlayedSite, image: str) -> None:
    async with Client(site.runner().address) as client:
        served(await client.evaluate(image, wish()))
        pod = site.only_pod()
        seconds = f"3333.{uuid.uuid4().int % 10**9}"
        call = client.start(image, wish(call="given-up", seconds=seconds))
        await until_noted(site, pod, "given-up")
        await eventually(lambda: f"sleep {seconds}" in command_lines(), what="the function runs")
        call.cancel()
        await eventually(lambda: f"sleep {seconds}" not in command_lines(), what="the function is ended")
        served(await client.evaluate(image, wish()))


async def test_a_rolling_update_of_the_runner_keeps_every_pod(
    site: PlayedSite, image: str, audit_log: AuditLog
) -> None:
    """The new one is there before the old one goes; calls move over."""
    old = site.runner("--shutdown-delay=0s")
    async with Client(old.address) as client:
        made = served(await client.evaluate(image, wish()))
    new = site.runner()
    async with Client(new.address) as client:
        assert await asyncio.to_thread(old.stop) == 0
        assert served(await client.evaluate(image, wish())).pod == made.pod
    assert len(audit_log.done("create", "pods", site.functions.name)) == 1
    assert audit_log.done("delete", "pods", site.functions.name) == []
