"""First calls: what is made for them, in which form, and that later calls find it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from control_plane import local_images
from control_plane.site import PlayedSite
from e2e.cluster.test_function_images import HEAD
from support.audit import AuditLog
from support.calls import served, wish
from support.client import Client, answer_of
from support.kube import Json, wait_until
from support.namespace import is_ready
from support.processes import eventually
from support.push import Push
from support.runner import write_config, write_function
from support.site import ASKED_FOR, LABEL, RECLAIM_AFTER, TEMPLATE_VERSION


@pytest.fixture
def image(push: Push) -> str:
    return push("obliging", local_images.obliging(), tag="v0.4.1")


def function_container(pod: Json) -> Json:
    containers: list[Json] = pod["spec"]["containers"]
    (container,) = containers
    return container


async def test_a_first_call_makes_a_pod_and_its_service_and_later_calls_use_them(
    site: PlayedSite, image: str, audit_log: AuditLog
) -> None:
    runner = site.runner()
    async with Client(runner.address) as client:
        first = served(await client.evaluate(image, wish(call="first")))
        second = served(await client.evaluate(image, wish(call="second")))
    pod, (service,) = site.only_pod(), site.services()
    digest = local_images.obliging().digest
    name = f"obliging-v041-1-{digest.removeprefix('sha256:')[:8]}"
    assert first.pod == second.pod == pod["metadata"]["name"] == service["metadata"]["name"] == name
    assert pod["metadata"]["labels"][LABEL] == service["metadata"]["labels"][LABEL] == name
    annotations = pod["metadata"]["annotations"]
    assert annotations[ASKED_FOR] == image
    assert annotations["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "true"
    assert annotations[TEMPLATE_VERSION]
    assert int(annotations[RECLAIM_AFTER]) > time.time() + 25 * 60, "the TTL is half an hour"
    assert service["spec"]["selector"] == {LABEL: name}
    assert [(port["port"], port["targetPort"]) for port in service["spec"]["ports"]] == [(9446, 9446)]
    assert service["spec"]["type"] == "ClusterIP"
    container = function_container(pod)
    assert container["image"] == f"{image.removesuffix(':v0.4.1')}@{digest}"
    assert container["args"] == [
        "--port",
        "9446",
        "--max-request-body-size",
        "6291456",
        "--",
        *(local_images.obliging().entrypoint or ()),
    ]
    created = audit_log.done("create", "pods", site.functions.name)
    assert len(created) == 1
    assert await site.calls_of(pod) == ["first", "second"]


async def test_its_pod_is_restricted_and_has_no_token(site: PlayedSite, image: str) -> None:
    async with Client(site.runner().address) as client:
        served(await client.evaluate(image, wish()))
    pod = site.only_pod()
    container = function_container(pod)
    assert not any("serviceaccount" in mount["mountPath"] for mount in container["volumeMounts"])
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True


async def test_an_image_by_its_digest(site: PlayedSite, push: Push) -> None:
    image = push("obliging", local_images.obliging()).removesuffix(":v1")
    async with Client(site.runner().address) as client:
        served(await client.evaluate(f"{image}@{local_images.obliging().digest}", wish()))


async def test_what_the_exec_runtime_does_not_know_goes_to_a_pod(site: PlayedSite, image: str, tmp_path: Path) -> None:
    write_function(tmp_path / "functions", "here", "#!/bin/sh\ncat\necho here >&2\n")
    config = write_config(tmp_path / "config.yaml", {"here": ["example.com/here:v1"]})
    runner = site.start(site.account(), f"--functions={tmp_path / 'functions'}", f"--config={config}", without="")
    async with Client(runner.address) as client:
        here = await client.evaluate("example.com/here:v1", wish())
        assert (here.code, here.log) == ("OK", b"here\n")
        assert site.pods() == []
        assert served(await client.evaluate(image, wish())).pod == site.only_pod()["metadata"]["name"]


async def test_what_a_function_says_reaches_the_caller(site: PlayedSite, image: str) -> None:
    async with Client(site.runner().address) as client:
        failed = await client.evaluate(image, wish(exit=3))
        assert (failed.code, failed.reason) == ("INTERNAL", "FUNCTION_FAILED")
        assert failed.message.startswith(f'function "{image}" failed with exit code 3\nstderr:\npod=')
        assert failed.facts is not None
        assert failed.facts["exit_code"] == "3"
        late = await client.evaluate(image, wish(seconds=30), timeout=2)
        assert late.code == "DEADLINE_EXCEEDED"
        served(await client.evaluate(image, wish()))
    assert len(site.pods()) == 1, "a function that fails is no reason for another pod"


async def test_a_large_package_comes_back_byte_for_byte(site: PlayedSite, push: Push) -> None:
    image = push("copies", local_images.copies())
    items = "".join(
        f"- {{apiVersion: v1, kind: ConfigMap, metadata: {{name: m{n}}}, data: {{k: {'v' * 1000}}}}}\n"
        for n in range(3500)
    )
    package = (HEAD + items).encode()
    limits = (("grpc.max_receive_message_length", 8_000_000),)
    async with Client(site.runner().address, limits) as client:
        answer = await client.evaluate(image, package)
        assert answer.code == "OK", answer.message
        assert answer.resource_list == package
        refused = await client.evaluate(image, package * 2)
    assert refused.code == "RESOURCE_EXHAUSTED"
    assert "--max-request-body-size" in refused.message


async def test_a_call_that_is_cancelled_leaves_its_pod_to_the_next(
    site: PlayedSite, image: str, audit_log: AuditLog
) -> None:
    runner = site.runner()
    async with Client(runner.address) as client:
        with site.kubelet.hold():
            call = client.start(image, wish(call="given-up"))
            waiting = asyncio.ensure_future(call.code())
            await eventually(lambda: bool(site.pods()), what="its pod is being started")
            uid = site.only_pod()["metadata"]["uid"]
            call.cancel()
            await waiting
        await eventually(lambda: is_ready(site.only_pod()), what="the pod gets ready all the same", seconds=60)
        served(await client.evaluate(image, wish(call="again")))
    pod = site.only_pod()
    assert pod["metadata"]["uid"] == uid
    assert await site.calls_of(pod) == ["again"]
    assert len(audit_log.done("create", "pods", site.functions.name)) == 1


async def test_a_call_that_has_no_time_for_a_start_leaves_its_pod_to_the_next(site: PlayedSite, image: str) -> None:
    async with Client(site.runner().address) as client:
        with site.kubelet.hold():
            late = await client.evaluate(image, wish(), timeout=1)
        assert late.code == "DEADLINE_EXCEEDED"
        served(await client.evaluate(image, wish()))
    assert len(site.pods()) == 1


async def test_its_resources_are_those_of_the_file(site: PlayedSite, image: str) -> None:
    resources = {"requests": {"cpu": "20m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}}
    config = site.cache_config({"name": image, "resources": resources, "timeToLive": "1h"})
    async with Client(site.runner(f"--pod-cache-config={config}", "--warm-up-pod-cache=false").address) as client:
        assert site.pods() == []
        served(await client.evaluate(image, wish()))
    pod = site.only_pod()
    asked = function_container(pod)["resources"]
    assert (asked["requests"]["cpu"], asked["requests"]["memory"], asked["limits"]["memory"]) == ("20m", "16Mi", "64Mi")
    assert int(pod["metadata"]["annotations"][RECLAIM_AFTER]) > time.time() + 50 * 60


async def test_a_name_that_somebody_else_has_is_left_alone(new_site: Callable[..., PlayedSite], image: str) -> None:
    """A pod of the name, but without the label: nobody's business."""
    name = f"obliging-v041-1-{local_images.obliging().digest.removeprefix('sha256:')[:8]}"
    site = new_site()
    site.functions.run(name, image, ["/bin/sleep", "3600"])
    uid = site.functions.pod(name)["metadata"]["uid"]
    async with Client(site.runner().address) as client:
        assert served(await client.evaluate(image, wish())).pod != name
    assert site.functions.pod(name)["metadata"]["uid"] == uid


async def test_a_call_that_comes_as_soon_as_the_port_is_open(site: PlayedSite, image: str) -> None:
    """It waits until the runner knows what there is."""
    place = site.account()
    runner = site.start(place, waits=False)
    async with Client(runner.address) as client:
        served(await answer_of(client.start(image, wish())))
    wait_until(lambda: len(site.pods()) == 1, what="there is one pod")
