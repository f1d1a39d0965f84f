"""The runner without one of its permissions: callers and operators read which one, and it works once it is granted.

Each case takes one verb of the base's Role away. That the Role is enough is in tests/e2e/test_rights.py.
"""

from __future__ import annotations

from collections import defaultdict

import pytest

from control_plane import local_images
from control_plane.faults import InitFails
from control_plane.site import PlayedSite
from krm_runner.core.rights import Place, Right, rights_needed
from support.calls import served, until_ok, wish
from support.client import Client
from support.in_cluster import InCluster
from support.processes import eventually
from support.push import Push
from support.site import Rights

FINAL = ("FAILED_PRECONDITION", "POD_CANNOT_START")
FLAGS = ("--function-pod-template=template", "--pod-ttl=1s", "--scan-interval=1s", "--pod-start-timeout=5s")
OF_THE_BASE = tuple(rights_needed(template=True, private_registries=False))
REFUSED = {("create", "pods"), ("create", "services"), ("get", "pods"), ("list", "pods")}
"""Without these a call fails, and its error names the verb."""
LOGGED = {
    ("list", "services"): "watch interrupted",
    ("watch", "pods"): "watch interrupted",
    ("watch", "services"): "watch interrupted",
    ("delete", "pods"): "pod not deleted, tried again later",
    ("delete", "services"): "service of a pod not deleted",
    ("get", "services"): "pod not created",
    ("patch", "pods"): "time to live not written",
    ("list", "events"): "events of pods may not be read",
    ("get", "pods/log"): "logs of pods may not be read",
    ("get", "configmaps"): "pod template not read",
    ("list", "configmaps"): "pod template cannot be watched",
    ("watch", "configmaps"): "pod template cannot be watched",
}
"""Without these the runner goes on as well as it can, and its log says so."""


@pytest.fixture
def image(push: Push) -> str:
    return push("obliging", local_images.obliging())


def account_without(site: PlayedSite, missing: Right) -> InCluster:
    """A place for runners with all permissions of the base but one."""
    verbs: dict[tuple[Place, str], list[str]] = defaultdict(list)
    for right in OF_THE_BASE:
        if right != missing:
            verbs[right.place, right.resource].append(right.verb)
    rules = {
        place: {resource: tuple(each) for (where, resource), each in verbs.items() if where is place} for place in Place
    }
    return site.account_with(functions=rules[Place.FUNCTIONS], own=rules[Place.OWN])


def name_of(right: Right) -> str:
    return f"{right.verb} {right.resource}"


def take_the_name(site: PlayedSite, resource: str) -> None:
    """Somebody else's object has the name that the function's first pod will want, so that the runner must look."""
    name = f"obliging-v1-1-{local_images.obliging().digest.removeprefix('sha256:')[:8]}"
    if resource == "pods":
        site.run_bystander(name)
    else:
        site.functions.create({"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 1}]}}, name)


def test_every_verb_has_its_case() -> None:
    assert {(right.verb, right.resource) for right in OF_THE_BASE} == REFUSED | set(LOGGED)


@pytest.mark.parametrize("right", [each for each in OF_THE_BASE if (each.verb, each.resource) in REFUSED], ids=name_of)
async def test_a_call_that_fails_for_want_of_it_says_so(site: PlayedSite, image: str, right: Right) -> None:
    site.write_template(site.built_in_template())
    runner = site.start(account_without(site, right), *FLAGS)
    if right.verb == "get":
        take_the_name(site, right.resource)
    async with Client(runner.address) as client:
        # A pod that serves before its Service is refused would answer the call.
        with site.kubelet.hold():
            answer = await client.evaluate(image, wish(), timeout=20)
    assert (answer.code, answer.reason) == FINAL, answer.message
    assert f'cannot {right.verb} resource "{right.resource}"' in answer.message
    await eventually(lambda: site.living() == [] or right.verb == "list", what="nothing is left of the launch")


@pytest.mark.parametrize("right", [each for each in OF_THE_BASE if (each.verb, each.resource) in LOGGED], ids=name_of)
async def test_the_log_says_what_is_missing(site: PlayedSite, image: str, push: Push, right: Right) -> None:
    site.write_template(site.built_in_template())
    runner = site.start(account_without(site, right), *FLAGS)
    if right.verb == "get":
        take_the_name(site, right.resource)
    broken = push("broken", local_images.copies())
    async with Client(runner.address) as client:
        await client.evaluate(image, wish(seconds=2), timeout=10)
        site.kubelet.fault = InitFails(3, "")
        await client.evaluate(broken, wish(), timeout=5)
        runner.wait_for_line(f"{LOGGED[right.verb, right.resource]}.*cannot {right.verb} resource .*{right.resource}")


async def test_a_permission_that_is_granted_later_is_used(site: PlayedSite, image: str) -> None:
    place = site.account(rights=Rights(pods=("create",)))
    async with Client(site.start(place).address) as client:
        answer = await client.evaluate(image, wish(), timeout=20)
        assert answer.code in ("FAILED_PRECONDITION", "UNAVAILABLE"), answer
        assert 'cannot list resource "pods"' in answer.message
        site.grant("later", "runner", pods=("get", "list", "watch", "patch", "delete"))
        served(await until_ok(client, image))


async def test_pods_that_may_not_be_deleted_serve_on(site: PlayedSite, image: str) -> None:
    rights = Rights(pods=("create", "get", "list", "watch", "patch"))
    runner = site.start(site.account(rights=rights), "--pod-ttl=1s", "--scan-interval=1s")
    async with Client(runner.address) as client:
        served(await client.evaluate(image, wish()))
        runner.wait_for_line("cannot delete resource \\W+pods")
        served(await client.evaluate(image, wish()))
