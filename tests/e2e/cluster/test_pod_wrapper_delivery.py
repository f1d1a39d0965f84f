"""The wrapper server from ConfigMaps: pods without an init container, and what becomes of the ConfigMaps."""

from __future__ import annotations

import asyncio
import time

import pytest

from e2e.cluster.test_function_images import HEAD, INPUTS
from krm_runner.core.wrapper_config_maps import parts_of
from support import function_images
from support.audit import AuditLog
from support.calls import served, until_ok, wish
from support.client import Client
from support.kube import Json
from support.processes import eventually
from support.push import Push
from support.runner import RunnerProcess
from support.site import RECLAIM_AFTER, WRAPPER_RIGHTS, Rights, Site
from support.wrapper import packed_wrapper

LABEL = "krm-runner/wrapper-server"
FLAGS = ("--wrapper-delivery=config-map", f"--wrapper-file={packed_wrapper()}")


@pytest.fixture
def image(push: Push) -> str:
    return push("obliging", function_images.obliging())


def start(site: Site, *flags: str, rights: Rights = WRAPPER_RIGHTS) -> RunnerProcess:
    place = site.account(f"runner-{len(site.runners)}", rights)
    return site.start(place, *FLAGS, *flags)


def names() -> list[str]:
    """Of the ConfigMaps of the wrapper server that is built."""
    return sorted(part.name for part in parts_of(packed_wrapper().read_bytes(), source="it"))


def config_maps(site: Site) -> dict[str, Json]:
    found = site.functions.kube.items(site.functions.path("configmaps"), labelSelector=LABEL)
    return {each["metadata"]["name"]: each for each in found}


def leave_behind(site: Site, name: str, *, reclaim_after: float) -> None:
    """As a runner of another version has made it."""
    metadata = {"labels": {LABEL: "packed"}, "annotations": {RECLAIM_AFTER: str(int(reclaim_after))}}
    body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True}
    site.functions.create({**body, "binaryData": {"wrapper-server": "AAAA"}}, name)


@pytest.mark.parametrize("root", ["alpine", "distroless", "scratch"])
async def test_a_first_call_needs_no_init_container(site: Site, push: Push, root: str) -> None:
    resource_list, expected = INPUTS["set-namespace"]
    image = push("set-namespace", function_images.catalog("set-namespace", root))
    async with Client(start(site).address) as client:
        answer = await client.evaluate(image, (HEAD + resource_list).encode())
    assert answer.code == "OK", answer
    assert expected in answer.resource_list.decode()
    pod = site.only_pod()
    assert "initContainers" not in pod["spec"]
    (volume,) = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "wrapper-server-tools"]
    assert sorted(source["configMap"]["name"] for source in volume["projected"]["sources"]) == names()
    made = config_maps(site)
    assert sorted(made) == names()
    for each in made.values():
        assert each["immutable"] is True
        assert int(each["metadata"]["annotations"][RECLAIM_AFTER]) > time.time() + 50 * 60


async def test_the_kubelet_calls_its_pod_ready(site: Site, image: str) -> None:
    async with Client(start(site).address) as client:
        served(await client.evaluate(image, wish()))
    pod = site.only_pod()
    (container,) = pod["spec"]["containers"]
    assert container["readinessProbe"]["grpc"]["port"] == 9446
    await eventually(
        lambda: site.only_pod()["status"]["containerStatuses"][0]["ready"], what="its probe succeeds", seconds=30
    )


async def test_config_maps_that_somebody_deletes_are_made_again(site: Site, push: Push) -> None:
    one, other = (push(name, function_images.obliging()) for name in ("one", "other"))
    runner = start(site)
    async with Client(runner.address) as client:
        served(await client.evaluate(one, wish()))
        before = {name: each["metadata"]["uid"] for name, each in config_maps(site).items()}
        for name in names():
            site.functions.kube.delete(site.functions.path(f"configmaps/{name}"))
        served(await client.evaluate(other, wish()))
        served(await client.evaluate(one, wish()))
    runner.wait_for_line('event="config map of the wrapper server deleted: it is made again"')
    after = {name: each["metadata"]["uid"] for name, each in config_maps(site).items()}
    assert sorted(after) == names()
    assert not set(before.values()) & set(after.values())


async def test_two_runners_share_them(site: Site, image: str, audit_log: AuditLog) -> None:
    runners = [start(site), start(site)]
    async with Client(runners[0].address) as one, Client(runners[1].address) as other:
        answers = await asyncio.gather(one.evaluate(image, wish()), other.evaluate(image, wish()))
    assert len({served(answer).pod for answer in answers}) == 1
    assert sorted(config_maps(site)) == names()
    assert len(audit_log.done("create", "configmaps", site.functions.name)) == len(names())


async def test_expired_ones_of_other_versions_go_unless_a_pod_has_them(site: Site, image: str) -> None:
    past, future = time.time() - 60, time.time() + 3600
    for name, until in (("expired", past), ("in-use-elsewhere", future)):
        leave_behind(site, f"krm-runner-wrapper-{name}", reclaim_after=until)
    runner = start(site, "--scan-interval=1s")
    async with Client(runner.address) as client:
        runner.wait_for_line("expired config map of a wrapper server deleted.*=krm-runner-wrapper-expired")
        served(await client.evaluate(image, wish()))
        leave_behind(site, "krm-runner-wrapper-mounted", reclaim_after=future)
        mount = {"name": "tools", "configMap": {"name": "krm-runner-wrapper-mounted"}}
        pod = {"volumes": [mount], "containers": [{"name": "function", "image": image, "command": ["sleep", "3600"]}]}
        await _run_one_of_ours(site, "older", pod)
        _expire(site, "krm-runner-wrapper-mounted")
        leave_behind(site, "krm-runner-wrapper-late", reclaim_after=past)
        runner.wait_for_line("expired config map of a wrapper server deleted.*=krm-runner-wrapper-late")
        assert "krm-runner-wrapper-mounted" in config_maps(site)
        site.delete_pod("older")
        runner.wait_for_line("expired config map of a wrapper server deleted.*=krm-runner-wrapper-mounted")
    assert sorted(config_maps(site)) == sorted([*names(), "krm-runner-wrapper-in-use-elsewhere"])


async def _run_one_of_ours(site: Site, name: str, spec: Json) -> None:
    confined = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "runAsNonRoot": True}
    for container in spec["containers"]:
        container["securityContext"] = {**confined, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}}
    metadata = {
        "labels": {"fn.kpt.dev/image": name},
        "annotations": {RECLAIM_AFTER: str(int(time.time()) + 3600)},
    }
    site.functions.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}, name)
    await eventually(lambda: len(site.pods()) == 2, what="there is a pod of another version")


def _expire(site: Site, name: str) -> None:
    annotations = {RECLAIM_AFTER: str(int(time.time()) - 1)}
    site.functions.kube.patch(site.functions.path(f"configmaps/{name}"), {"metadata": {"annotations": annotations}})


async def test_they_are_kept_for_as_long_as_they_are_used(site: Site) -> None:
    start(site, "--scan-interval=1s")
    await eventually(lambda: sorted(config_maps(site)) == names(), what="they are there")
    for name in names():
        _expire(site, name)

    def extended() -> bool:
        until = [each["metadata"]["annotations"][RECLAIM_AFTER] for each in config_maps(site).values()]
        return len(until) == len(names()) and all(int(each) > time.time() + 50 * 60 for each in until)

    await eventually(extended, what="they may stay for an hour again", seconds=20)


async def test_without_the_right_the_error_names_it_and_calls_work_once_it_is_granted(site: Site, image: str) -> None:
    runner = start(site, rights=Rights())
    async with Client(runner.address) as client:
        refused = await client.evaluate(image, wish())
        assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "POD_CANNOT_START"), refused
        assert f'ConfigMap "{names()[0]}"' in refused.message or f'ConfigMap "{names()[1]}"' in refused.message
        assert 'cannot create resource "configmaps"' in refused.message
        assert f"grant the runner create, delete, list, patch and watch on configmaps in {site.functions.name}" in (
            refused.message
        )
        assert site.pods() == []
        site.grant("wrapper", "runner-0", configmaps=WRAPPER_RIGHTS.wrapper_config_maps)
        await until_ok(client, image)


async def test_one_of_the_name_that_holds_something_else_is_not_used(site: Site, image: str) -> None:
    leave_behind(site, names()[0], reclaim_after=time.time() + 3600)
    async with Client(start(site).address) as client:
        refused = await client.evaluate(image, wish())
        assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "POD_CANNOT_START"), refused
        assert f'ConfigMap "{names()[0]}" of the wrapper server' in refused.message
        assert "it holds something else" in refused.message
        assert site.pods() == []
        site.functions.kube.delete(site.functions.path(f"configmaps/{names()[0]}"))
        await until_ok(client, image)


async def test_a_pod_that_waits_for_one_in_vain_says_so(site: Site, image: str) -> None:
    """Without the right to watch the runner does not hear that it was deleted."""
    runner = start(site, "--pod-start-timeout=8s", rights=Rights(wrapper_config_maps=("create",)))
    await eventually(lambda: sorted(config_maps(site)) == names(), what="they are there")
    site.functions.kube.delete(site.functions.path(f"configmaps/{names()[0]}"))
    async with Client(runner.address) as client:
        refused = await client.evaluate(image, wish())
    assert (refused.code, refused.reason) == ("UNAVAILABLE", "POD_NOT_STARTED"), refused
    assert "FailedMount" in refused.message
    assert names()[0] in refused.message
    assert "the runner makes this ConfigMap again when somebody deletes it" in refused.message
