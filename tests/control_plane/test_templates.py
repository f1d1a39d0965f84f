"""Pod templates in a ConfigMap: the specification's example, changes under load, and ones that are refused."""

from __future__ import annotations

import asyncio
import copy

import pytest

from control_plane import local_images
from control_plane.site import PlayedSite
from krm_runner.core.built_in_template import built_in_service
from support.audit import AuditLog
from support.calls import served, until_ok, wish
from support.client import Client
from support.kube import Json
from support.load import Load
from support.processes import eventually
from support.push import Push
from support.site import TEMPLATE_VERSION, Rights

FLAG = "--function-pod-template=template"
LOOKING_ONLY = Rights(config_maps=("get", "list"))


@pytest.fixture
def image(push: Push) -> str:
    return push("obliging", local_images.obliging())


def template(site: PlayedSite, version: str, **changes: object) -> Json:
    """The built-in one with a label of its own."""
    pod: Json = site.built_in_template()
    pod["metadata"]["labels"]["example.com/version"] = version
    pod["spec"] |= changes
    return pod


def versions(site: PlayedSite) -> list[str]:
    """Of the pods, as their labels say it."""
    return sorted(pod["metadata"]["labels"]["example.com/version"] for pod in site.pods())


@pytest.mark.parametrize("rights", [Rights(), LOOKING_ONLY], ids=["watched", "watching forbidden"])
async def test_a_change_under_load_fails_no_call(
    site: PlayedSite, image: str, rights: Rights, audit_log: AuditLog
) -> None:
    site.write_template(template(site, "one"))
    place = site.account(rights=rights)
    async with Client(site.start(place, FLAG, "--pod-ttl=2s", "--scan-interval=1s").address) as client:
        async with Load(client, image) as load:
            await load.more(20)
            first = site.only_pod()["metadata"]
            under_way = asyncio.ensure_future(client.evaluate(image, wish(call="long", seconds=3)))
            await asyncio.sleep(0.5)
            version = site.write_template(template(site, "two"))
            await load.until(lambda call: call.pod != first["name"], what="from a pod of the new template", seconds=120)
            assert versions(site) == ["one", "two"], "side by side"
            await load.more(50)
            assert served(await under_way).pod == first["name"]
            await eventually(lambda: versions(site) == ["two"], what="the old pod goes by its TTL", seconds=60)
            await load.more(20)
        assert load.served
    (pod,) = site.pods()
    assert pod["metadata"]["annotations"][TEMPLATE_VERSION] == version
    assert len(audit_log.done("create", "pods", site.functions.name)) == 2


async def test_a_pod_of_the_old_template_gets_no_call_after_the_first_to_a_new_one(
    site: PlayedSite, image: str
) -> None:
    """Its time to live is far from over: the front must have been told."""
    site.write_template(template(site, "one"))
    async with Client(site.runner(FLAG).address) as client:
        async with Load(client, image) as load:
            await load.more(20)
            old = site.only_pod()["metadata"]["name"]
            site.write_template(template(site, "two"))
            await load.until(lambda call: call.pod != old, what="from a pod of the new template")
        pods = {served(await client.evaluate(image, wish())).pod for _ in range(20)}
    assert len(pods) == 1
    assert old not in pods


async def test_a_call_that_waits_gets_a_pod_of_the_new_template(site: PlayedSite, image: str) -> None:
    site.write_template(template(site, "one"))
    async with Client(site.runner(FLAG).address) as client:
        with site.kubelet.hold():
            call = asyncio.ensure_future(client.evaluate(image, wish()))
            await eventually(lambda: versions(site) == ["one"], what="its pod is being started")
            site.write_template(template(site, "two"))
            await eventually(lambda: versions(site) == ["one", "two"], what="a pod of the new template is started")
            new = next(pod for pod in site.pods() if pod["metadata"]["labels"]["example.com/version"] == "two")
        assert served(await call).pod == new["metadata"]["name"]


async def test_two_runners_of_which_one_is_late_share_nothing_and_fail_nothing(site: PlayedSite, image: str) -> None:
    """As in a rolling update of the template: the runner that knows the old one goes on with its own pods."""
    site.write_template(template(site, "one"), name="old")
    site.write_template(template(site, "two"), name="new")
    old = site.runner("--function-pod-template=old", "--pod-ttl=2s", "--scan-interval=1s")
    new = site.runner("--function-pod-template=new", "--pod-ttl=2s", "--scan-interval=1s")
    async with Client(old.address) as one, Client(new.address) as other:
        async with Load(one, image) as first, Load(other, image) as second:
            await first.more(50)
            await second.more(50)
        used = [{call.pod for call in load.served.values()} for load in (first, second)]
    assert versions(site) == ["one", "two"]
    assert all(len(pods) == 1 for pods in used)
    assert used[0] != used[1]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ("apiVersion: v1\nkind: Pod\nspec: {containers: [{name: main}]}\n", "must have one container named"),
        ("not: [a pod", "template"),
        ("apiVersion: v1\nkind: Deployment\nspec: {}\n", "kind: Pod"),
    ],
    ids=["no function container", "no YAML", "no Pod"],
)
async def test_a_broken_template_is_refused_and_the_last_good_one_stays(
    site: PlayedSite, image: str, push: Push, broken: str, words: str
) -> None:
    other = push("other", local_images.obliging())
    site.write_template(template(site, "one"))
    runner = site.runner(FLAG)
    async with Client(runner.address) as client:
        pod = served(await client.evaluate(image, wish())).pod
        site.write_template(broken)
        runner.wait_for_line(words)
        assert served(await client.evaluate(image, wish())).pod == pod
        served(await client.evaluate(other, wish()))
        assert versions(site) == ["one", "one"]
        site.write_template(template(site, "two"))
        async with Load(client, image) as load:
            await load.until(lambda call: call.pod != pod, what="from a pod of the mended template")
        assert load.served
    assert versions(site) == ["one", "one", "two"]


async def test_a_template_that_is_not_there_yet(site: PlayedSite, image: str) -> None:
    """The runner starts; its calls say what is missing, and go well when it comes."""
    async with Client(site.runner(FLAG).address) as client:
        answer = await client.evaluate(image, wish(), timeout=20)
        assert answer.code in ("UNAVAILABLE", "FAILED_PRECONDITION")
        assert "template" in answer.message
        site.write_template(template(site, "one"))
        served(await until_ok(client, image, seconds=120))
    assert versions(site) == ["one"]


async def test_a_template_that_is_deleted_counts_as_it_was(site: PlayedSite, image: str) -> None:
    site.write_template(template(site, "one"))
    async with Client(site.runner(FLAG).address) as client:
        pod = served(await client.evaluate(image, wish())).pod
        site.system.kube.delete(site.system.path("configmaps/template"))
        async with Load(client, image) as load:
            await load.more(100)
        assert {call.pod for call in load.served.values()} == {pod}


async def test_a_template_may_add_what_it_likes(site: PlayedSite, image: str) -> None:
    """A sidecar, arguments of the wrapper, a Service with more ports, resources of the function."""
    pod = template(site, "one")
    function = pod["spec"]["containers"][0]
    function["args"] = ["--verbosity", "3"]
    function["resources"] = {"limits": {"memory": "100Mi"}}
    sidecar = {**copy.deepcopy(function), "name": "beside", "image": image, "command": ["/bin/sleep", "3600"]}
    for field in ("args", "readinessProbe", "ports", "resources"):
        sidecar.pop(field)
    pod["spec"]["containers"].insert(0, sidecar)
    service: Json = copy.deepcopy(built_in_service())
    service["spec"]["ports"].append({"name": "more", "port": 80, "targetPort": 80})
    service["spec"].pop("publishNotReadyAddresses")
    site.write_template(pod, service)
    async with Client(site.runner(FLAG).address) as client:
        served(await client.evaluate(image, wish()))
    made = site.only_pod()["spec"]["containers"]
    assert [container["name"] for container in made] == ["beside", "function"]
    assert made[1]["args"][:4] == ["--verbosity", "3", "--port", "9446"]
    assert made[1]["resources"]["limits"]["memory"] == "100Mi"


async def test_without_the_right_to_read_it_the_caller_is_told(site: PlayedSite, image: str) -> None:
    site.write_template(template(site, "one"))
    runner = site.start(site.account(rights=Rights(config_maps=())), FLAG)
    async with Client(runner.address) as client:
        answer = await client.evaluate(image, wish(), timeout=20)
    assert answer.code in ("UNAVAILABLE", "FAILED_PRECONDITION")
    assert 'cannot get resource "configmaps"' in answer.message
