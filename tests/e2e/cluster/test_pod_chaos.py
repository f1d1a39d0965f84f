"""Everything at once: pods deleted, watches cut, runners killed, tags moved and templates changed, under load."""

from __future__ import annotations

import asyncio
import copy
import os
import random
import signal
import time
from collections import Counter

import pytest

from krm_runner.core.built_in_template import built_in_pod
from krm_runner.core.wrapper_delivery import InitContainer
from support import function_images
from support.calls import served, wish
from support.client import Client
from support.in_cluster import InCluster
from support.kube import ApiError, Json
from support.load import Load
from support.processes import eventually, of_pod, open_descriptors
from support.push import Push
from support.relay import Relay
from support.runner import RunnerProcess
from support.site import Site

SECONDS = 30
FLAGS = (
    "--function-pod-template=template",
    "--pod-ttl=10s",
    "--scan-interval=1s",
    "--image-tag-ttl=2s",
    "--max-parallel-pods-per-function=2",
    "--max-waitlist-length=1",
)


class Chaos:
    """What a cluster and its people do to function pods and their runners."""

    def __init__(self, site: Site, push: Push, places: list[InCluster], relay: Relay) -> None:
        self.chance = random.Random(8)
        self.done: Counter[str] = Counter()
        self.runners = [site.start(place, *FLAGS) for place in places]
        self._site = site
        self._push = push
        self._places = places
        self._relay = relay
        self._versions = 0

    async def go_on(self) -> None:
        """One blow after the other."""
        blows = (self.delete_a_pod, self.kill_a_wrapper, self.delete_a_service, self.cut, self.move_a_tag,
                 self.change_the_template, self.forget_a_time)  # fmt: skip
        end = time.monotonic() + SECONDS
        while time.monotonic() < end:
            blow = self.chance.choice(blows)
            try:
                blow()
                self.done[blow.__name__] += 1
            except (ApiError, AssertionError, ProcessLookupError, IndexError, ValueError):
                self.done["missed"] += 1
            await asyncio.sleep(self.chance.uniform(0.2, 3))

    def restart_a_runner(self) -> RunnerProcess:
        self.runners[1].stop(signal.SIGKILL)
        self.runners[1] = self._site.start(self._places[1], *FLAGS)
        return self.runners[1]

    def delete_a_pod(self) -> None:
        self._site.delete_pod(self._any_pod()["metadata"]["name"], seconds=self.chance.choice([0, 1, 30]))

    def kill_a_wrapper(self) -> None:
        (wrapper,) = of_pod(self._any_pod()["metadata"]["uid"], "wrapper-server --port")
        os.kill(wrapper, signal.SIGKILL)

    def delete_a_service(self) -> None:
        name = self._any_pod()["metadata"]["name"]
        self._site.functions.kube.delete(self._site.functions.path(f"services/{name}"))

    def cut(self) -> None:
        self._relay.cut()

    def move_a_tag(self) -> None:
        self._versions += 1
        self._push("moving", function_images.obliging(f"v{self._versions}"))

    def change_the_template(self) -> None:
        self._versions += 1
        write_template(self._site, f"v{self._versions}")

    def forget_a_time(self) -> None:
        self._site.annotate(self._any_pod()["metadata"]["name"], reclaim_after=self.chance.choice([None, "soon", "0"]))

    def _any_pod(self) -> Json:
        return self.chance.choice(self._site.living())


def write_template(site: Site, version: str) -> None:
    pod: Json = copy.deepcopy(built_in_pod(InitContainer(site.wrapper_image)))
    pod["metadata"]["labels"]["example.com/version"] = version
    site.write_template(pod)


@pytest.mark.alone
async def test_calls_survive_and_nothing_is_left(site: Site, push: Push, api_relay: Relay) -> None:
    images = [push("moving", function_images.obliging()), push("other", function_images.obliging())]
    write_template(site, "v0")
    places = [site.account("one"), site.account("two")]
    places[0].api = api_relay.address
    chaos = Chaos(site, push, places, api_relay)
    first = chaos.runners[0]
    async with Client(first.address) as client, Client(chaos.runners[1].address) as other:
        for image in images:
            served(await client.evaluate(image, wish()))
        descriptors = len(open_descriptors(first.pid))
        async with (
            Load(client, images[0], callers=3) as one,
            Load(client, images[1], callers=2, seconds=1) as two,
            Load(other, images[0], callers=2) as three,
        ):
            await chaos.go_on()
        await asyncio.to_thread(chaos.restart_a_runner)
        print(chaos.done, {name: len(load.answers) for name, load in zip("123", (one, two, three), strict=True)})
        # A call may lose two pods in a row: no more than that may happen to it.
        failed = [answer for load in (one, two, three) for answer in load.answers.values() if answer.code != "OK"]
        assert {(answer.code, answer.reason) for answer in failed} <= {("UNAVAILABLE", "POD_LOST")}, failed
        print(f"{len(failed)} calls lost two pods: {[answer.message for answer in failed]}")
        for image in images:
            served(await client.evaluate(image, wish()))
        await eventually(lambda: site.pods() == [] and site.services() == [], what="all is collected", seconds=120)
        # Those to the API server are kept for a minute.
        await eventually(
            lambda: len(open_descriptors(first.pid)) <= descriptors, what="all connections are closed", seconds=90
        )
    unexpected = [
        line for runner in site.runners for line in runner.lines if "Traceback" in line or "unexpected" in line
    ]
    assert unexpected == []
