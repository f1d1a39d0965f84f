"""What the runner knows of the cluster, through watches that break: nothing is missed, and nothing stale is served."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cluster.api_only import ApiServer
from control_plane import local_images
from control_plane.faults import InitFails
from control_plane.site import PlayedSite
from control_plane.test_templates import FLAG as FROM_TEMPLATE
from control_plane.test_templates import template, versions
from support.calls import served, until_ok, wish
from support.client import Client
from support.defects import with_defect
from support.load import Load
from support.metrics import Metrics
from support.processes import eventually
from support.push import Push
from support.relay import Relay


@pytest.fixture
def image(push: Push) -> str:
    return push("obliging", local_images.obliging())


async def test_a_pod_that_is_deleted_while_the_watch_is_cut(site: PlayedSite, image: str, api_relay: Relay) -> None:
    place = site.account()
    place.api = api_relay.address
    async with Client(site.start(place).address) as client:
        served(await client.evaluate(image, wish()))
        first = site.only_pod()["metadata"]
        api_relay.close()
        site.delete_pod(first["name"])
        await eventually(lambda: site.functions.find(f"pods/{first['name']}") is None, what="it is gone", seconds=30)
        api_relay.reopen()
        # Its wrapper may live for a moment longer than Kubernetes says.
        async with Load(client, image) as load:
            await eventually(lambda: len(site.living()) == 1, what="there is another pod", seconds=60)
        assert load.served
    assert site.only_pod()["metadata"]["uid"] != first["uid"]


async def test_a_watch_that_breaks_again_and_again(site: PlayedSite, image: str, api_relay: Relay) -> None:
    place = site.account()
    place.api = api_relay.address
    async with Client(site.start(place, "--pod-ttl=2s", "--scan-interval=1s").address) as client:
        async with Load(client, image) as load:
            for _ in range(10):
                await load.more(10)
                api_relay.cut()
                await asyncio.sleep(0.1)
        assert load.served
        await eventually(lambda: site.pods() == [], what="collection goes on", seconds=60)
        # The Service of a pod that was made since then is known as well.
        served(await client.evaluate(image, wish()))
        await eventually(lambda: site.pods() == [] and site.services() == [], what="both are gone", seconds=60)


async def test_a_template_that_changes_while_the_watch_is_cut(site: PlayedSite, image: str, api_relay: Relay) -> None:
    site.write_template(template(site, "one"))
    place = site.account()
    place.api = api_relay.address
    async with Client(site.start(place, FROM_TEMPLATE).address) as client:
        first = served(await client.evaluate(image, wish())).pod
        api_relay.close()
        site.write_template(template(site, "two"))
        api_relay.reopen()
        async with Load(client, image) as load:
            await load.until(lambda call: call.pod != first, what="from a pod of the new template")
        assert load.served
    assert versions(site) == ["one", "two"]


async def test_history_that_is_gone_is_listed_anew(
    site: PlayedSite, image: str, api_relay: Relay, api_server: ApiServer
) -> None:
    """An API server that was restarted has forgotten it: it answers the watch with 410 Gone."""
    place = site.account()
    place.api = api_relay.address
    runner = site.start(place)
    async with Client(runner.address) as client:
        served(await client.evaluate(image, wish()))
        first = site.only_pod()["metadata"]
        api_relay.close()
        site.delete_pod(first["name"])
        site.functions.create({"apiVersion": "v1", "kind": "ConfigMap"}, "something-happened")
        await asyncio.to_thread(api_server.restart)
        api_relay.reopen()
        await eventually(lambda: _listings(runner.lines) > 1, what="the pods are listed anew", seconds=60)
        second = served(await client.evaluate(image, wish()))
    pod = site.only_pod()["metadata"]
    assert pod["uid"] != first["uid"]
    assert second.pod == pod["name"]


def _listings(lines: list[str]) -> int:
    return sum("event=listed" in line and "/pods " in line for line in lines)


async def test_a_pod_of_another_runner_is_known_as_soon_as_it_serves(site: PlayedSite, image: str) -> None:
    """Nothing but the watch tells the second runner of it."""
    first, second = site.runner(), site.runner()
    async with Client(first.address) as client:
        made = served(await client.evaluate(image, wish()))
    second.wait_for_line(f'event="pod adopted" pod={made.pod} ')
    async with Client(second.address) as client:
        assert served(await client.evaluate(image, wish())).pod == made.pod
    assert len(site.pods()) == 1


DEAD_WATCH = """
import asyncio
from krm_runner.kube.reflector import Reflector

async def watch(self, watch=Reflector._watch):
    if self._path.endswith("/pods"):
        await asyncio.sleep(1)  # the service has started meanwhile
        raise RuntimeError("a defect")
    await watch(self)

Reflector._watch = watch
"""
UNREADABLE_POD = """
from krm_runner.pods.census import Census

def changed(self, kind, found, changed=Census.changed):
    if found["metadata"]["name"].startswith("unlucky"):
        raise RuntimeError("a defect")
    changed(self, kind, found)

Census.changed = changed
"""


async def test_a_watch_that_dies_ends_the_service(site: PlayedSite, tmp_path: Path) -> None:
    """It would serve pods for ever that are gone, and look healthy."""
    runner = site.start(site.account(), environment=with_defect(tmp_path, DEAD_WATCH), waits=False)
    assert runner.process.wait(30) == 1
    runner.wait_for_line('event="loop ended unexpectedly: the service ends" loop="watch of pods"')
    runner.wait_for_line('krm-runner serve: the loop "watch of pods" ended unexpectedly \\(RuntimeError: a defect\\)')


async def test_an_event_that_cannot_be_handled_does_not_end_the_watch(
    site: PlayedSite, push: Push, tmp_path: Path
) -> None:
    unlucky, lucky = (push(name, local_images.obliging()) for name in ("unlucky", "lucky"))
    place = site.account()
    for change in ("change=ADDED ", ""):
        # The second runner finds the pod in its first list.
        metrics = Metrics()
        environment = metrics.environment | with_defect(tmp_path, UNREADABLE_POD)
        runner = site.start(place, environment=environment)
        async with Client(runner.address) as client:
            if change:
                await client.evaluate(unlucky, wish(), timeout=2)
            served(await client.evaluate(lucky, wish()))
        runner.wait_for_line(rf'event="unexpected error" where="watch event" path=\S*pods {change}name=unlucky-v1-1-')
        assert metrics.sum("internal_errors_total", where="watch event") > 0
        assert runner.process.poll() is None


CLOCK = """
import time
from pathlib import Path

def set_back(time=time.time):
    return time() - (3600 if Path("{gate}").exists() else 0)

time.time = set_back
"""


async def test_a_wall_clock_that_is_set_back_delays_no_restart(site: PlayedSite, image: str, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    runner = site.start(site.account(), environment=with_defect(tmp_path, CLOCK.format(gate=gate)))
    site.kubelet.fault = InitFails(1, "not today")
    async with Client(runner.address) as client:
        assert (await client.evaluate(image, wish())).reason == "POD_CANNOT_START"
        site.kubelet.fault = None
        gate.touch()
        await until_ok(client, image)
