"""Pods that are there before it is known whose they will be: first calls that need no new pod."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from control_plane import local_images
from control_plane.site import PlayedSite
from control_plane.test_faults import until_noted
from control_plane.test_templates import FLAG as FROM_TEMPLATE
from control_plane.test_templates import template
from support.audit import AuditLog
from support.calls import served, wish
from support.client import Client
from support.kube import ApiError, Json, wait_until
from support.namespace import is_ready
from support.processes import eventually
from support.push import Push
from support.site import ASKED_FOR
from support.spares import names, spares, start, until_ready

SOON = 12
"""Long before a pod's time to start is over."""


@pytest.fixture
def images(push: Push) -> list[str]:
    return [push(f"obliging-{number}", local_images.obliging()) for number in range(3)]


@pytest.mark.parametrize(
    "flags",
    [(), ("--front=off",), ("--wrapper-delivery=image-volume",)],
    ids=["front", "no front", "image volume"],
)
async def test_a_first_call_is_served_by_a_spare(
    site: PlayedSite, images: list[str], flags: tuple[str, ...], audit_log: AuditLog
) -> None:
    image, *_ = images
    runner = start(site, *flags)
    (spare,) = await until_ready(site, runner)
    async with Client(runner.address) as client:
        assert served(await client.evaluate(image, wish())).pod == spare
        assert served(await client.evaluate(image, wish())).pod == spare, "from then on it is the function's"
        # What was used up is made up for.
        (other,) = await until_ready(site, runner)
        assert other != spare
        assert served(await client.evaluate(images[1], wish())).pod == other
    runner.wait_for_line(rf'event="pod ready" pod={spare} image=\S*obliging-0:v1 ')
    assert len(audit_log.done("create", "pods", site.functions.name)) <= 3


async def test_it_is_a_pod_like_any_other_afterwards(site: PlayedSite, images: list[str]) -> None:
    image, *_ = images
    # Each extension of a spare's time is a change that a conversion may conflict with: not too many of them.
    runner = start(site, "--scan-interval=1s", "--pod-ttl=6s")
    (spare,) = await until_ready(site, runner)
    async with Client(runner.address) as client:
        assert served(await client.evaluate(image, wish(), timeout=SOON)).pod == spare
        # Nobody uses it: it goes, with its Service. A spare does not.
        await eventually(lambda: spare not in names(site.pods()), what="it is collected", seconds=60)
        await eventually(lambda: spare not in names(site.services()), what="its Service is collected", seconds=60)
        assert await until_ready(site, runner)


async def test_a_spare_that_is_lost_is_made_up_for(site: PlayedSite, images: list[str]) -> None:
    runner = start(site, spares=2)
    first, _ = sorted(await until_ready(site, runner, 2))
    site.delete_pod(first)
    await eventually(lambda: len(spares(site)) == 2 and first not in names(site.living()), what="another", seconds=60)
    await until_ready(site, runner, 2)
    async with Client(runner.address) as client:
        assert served(await client.evaluate(images[0], wish())).pod in names(site.pods())


async def test_runners_share_spares_and_the_pods_that_become_of_them(
    site: PlayedSite, images: list[str], audit_log: AuditLog
) -> None:
    runners = [start(site, spares=2), start(site, spares=2)]
    for runner in runners:
        await until_ready(site, runner, 2)
    assert len(audit_log.done("create", "pods", site.functions.name)) <= 4, "one of each name is left"
    clients = [Client(runner.address) for runner in runners]
    async with clients[0], clients[1]:
        # Both want to have them at the same time.
        answers = await asyncio.gather(
            *(client.evaluate(image, wish(call=image)) for client in clients for image in images[:2])
        )
        called = [image for _ in clients for image in images[:2]]
        used = {(served(answer).pod, image) for answer, image in zip(answers, called, strict=True)}
        for client in clients:
            for image in images[:2]:
                assert served(await client.evaluate(image, wish())).pod in names(site.living())
    serves = {(pod["metadata"]["name"], pod["metadata"]["annotations"][ASKED_FOR]) for pod in site.living()}
    assert used <= serves, "each call was served by a pod of its function"
    assert len({pod for pod, _ in used}) == len(used), "and no pod by two"


async def test_many_first_calls_and_few_spares(site: PlayedSite, images: list[str]) -> None:
    runner = start(site)
    (spare,) = await until_ready(site, runner)
    async with Client(runner.address) as client:
        answers = await asyncio.gather(*(client.evaluate(image, wish()) for image in images))
    pods = [served(answer).pod for answer in answers]
    assert len(set(pods)) == 3
    assert spare in pods


async def test_a_function_with_resources_of_its_own_gets_a_pod_of_its_own(site: PlayedSite, images: list[str]) -> None:
    image, *_ = images
    config = site.cache_config({"name": image, "resources": {"limits": {"memory": "64Mi"}}})
    runner = start(site, f"--pod-cache-config={config}", "--warm-up-pod-cache=false")
    (spare,) = await until_ready(site, runner)
    async with Client(runner.address) as client:
        assert served(await client.evaluate(image, wish())).pod != spare
    assert names(spares(site)) == {spare}


async def test_an_image_that_admission_refuses_is_not_put_into_a_spare(site: PlayedSite, images: list[str]) -> None:
    runner = start(site)
    (spare,) = await until_ready(site, runner)
    with allowed_images(site, site.wrapper_image):
        async with Client(runner.address) as client:
            answer = await client.evaluate(images[0], wish(), timeout=SOON)
    assert (answer.code, answer.reason) == ("FAILED_PRECONDITION", "POD_CANNOT_START")
    assert "not an image that may run here" in answer.message
    runner.wait_for_line(f'event="spare given up" pod={spare} .*not an image that may run here')
    assert names(site.living()) == {spare}


@contextmanager
def allowed_images(site: PlayedSite, image: str) -> Generator[None]:
    """Admission takes no pod with another image, new or changed."""
    name, kube = site.functions.name, site.functions.kube
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["pods"]}
    validation = {
        "expression": f"object.spec.containers.all(each, each.image == '{image}')",
        "message": "not an image that may run here",
    }
    place = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}
    specs: list[tuple[str, Json]] = [
        ("Policy", {"matchConstraints": {"resourceRules": [rule]}, "validations": [validation]}),
        ("PolicyBinding", {"policyName": name, "validationActions": ["Deny"], "matchResources": place}),
    ]
    for kind, spec in specs:
        metadata = {"name": name}
        manifest = {"kind": f"ValidatingAdmission{kind}", "metadata": metadata, "spec": spec}
        kube.create({"apiVersion": "admissionregistration.k8s.io/v1", **manifest})
    (pod,) = site.living()
    change = {"spec": {"containers": [{**pod["spec"]["containers"][0], "image": "example.com/other:v1"}]}}

    def is_refused() -> bool:
        path = site.functions.path(f"pods/{pod['metadata']['name']}?dryRun=All")
        try:
            kube.request("PATCH", path, change, "application/merge-patch+json")
        except ApiError as error:
            return "not an image that may run here" in str(error)
        return False

    wait_until(is_refused, what="the policy is in force")
    try:
        yield
    finally:
        for resource in ("validatingadmissionpolicybindings", "validatingadmissionpolicies"):
            kube.delete(f"/apis/admissionregistration.k8s.io/v1/{resource}/{name}")


async def test_spares_are_of_the_template_that_counts(site: PlayedSite, images: list[str]) -> None:
    def of_version(version: str) -> set[str]:
        labelled = [pod for pod in spares(site) if pod["metadata"]["labels"]["example.com/version"] == version]
        return names([pod for pod in labelled if is_ready(pod)])

    site.write_template(template(site, "one"))
    runner = start(site, FROM_TEMPLATE)
    (old,) = await until_ready(site, runner)
    site.write_template(template(site, "two"))
    await eventually(lambda: bool(of_version("two")), what="a spare of the new template", seconds=60)
    (new,) = of_version("two")
    runner.wait_for_line(rf'event="pod ready" pod={new} ')
    async with Client(runner.address) as client:
        assert served(await client.evaluate(images[0], wish())).pod == new
    assert old in of_version("one")


NO_SPARES = 'event="no spare pods are kept"'
ANSWERS_LIKE_PORCHS = f"""#!{sys.executable}
import sys
from concurrent.futures import ThreadPoolExecutor
import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

class Health(health_pb2_grpc.HealthServicer):
    def Check(self, request, context):
        return health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)

server = grpc.server(ThreadPoolExecutor(2))
health_pb2_grpc.add_HealthServicer_to_server(Health(), server)
server.add_insecure_port(sys.argv[sys.argv.index("--address") + 1] + ":9446")
server.start()
server.wait_for_termination()
"""
ENDS_WITHOUT_A_FUNCTION = "#!/bin/sh\necho 'no function is named after --' >&2\nexit 2\n"


async def test_a_template_with_another_wrapper_server_has_no_spares(site: PlayedSite, images: list[str]) -> None:
    pod = template(site, "one")
    pod["spec"]["initContainers"][0]["image"] = "example.com/other-wrapper:v1"
    site.write_template(pod)
    runner = start(site, FROM_TEMPLATE)
    runner.wait_for_line(NO_SPARES)
    async with Client(runner.address) as client:
        served(await client.evaluate(images[0], wish()))
    assert len(site.pods()) == 1
    site.write_template(template(site, "two"))
    await until_ready(site, runner)
    (line,) = [line for line in runner.lines if NO_SPARES in line]
    assert "example.com/other-wrapper:v1" in line
    assert "or set --spare-pods=0" in line


@pytest.mark.parametrize("program", [ANSWERS_LIKE_PORCHS, ENDS_WITHOUT_A_FUNCTION], ids=["serves", "ends"])
async def test_a_wrapper_server_that_cannot_wait_is_tried_once(
    site: PlayedSite, images: list[str], program: str, tmp_path: Path, audit_log: AuditLog
) -> None:
    ours, site.kubelet.wrapper = site.kubelet.wrapper, tmp_path / "other-wrapper"
    site.kubelet.wrapper.write_text(program)
    site.kubelet.wrapper.chmod(0o755)
    site.write_template(template(site, "one"))
    runner = start(site, FROM_TEMPLATE, "--pod-start-timeout=5s", "--scan-interval=1s", spares=2)
    runner.wait_for_line(NO_SPARES)
    await eventually(lambda: not site.pods(), what="the spares are deleted", seconds=60)
    site.kubelet.wrapper = ours
    # Longer than the first pause after a failed start.
    await asyncio.sleep(2)
    async with Client(runner.address) as client:
        served(await client.evaluate(images[0], wish()))
    assert len(audit_log.done("create", "pods", site.functions.name)) == 3
    assert len([line for line in runner.lines if NO_SPARES in line]) == 1
    site.write_template(template(site, "two"))
    await until_ready(site, runner, 2)


async def test_an_entrypoint_that_is_not_there_is_told_as_ever(site: PlayedSite, push: Push) -> None:
    image = push("absent", local_images.absent())
    runner = start(site)
    (spare,) = await until_ready(site, runner)
    async with Client(runner.address) as client:
        answer = await client.evaluate(image, wish(), timeout=SOON)
    assert (answer.code, answer.reason) == ("FAILED_PRECONDITION", "POD_CANNOT_START")
    assert spare in answer.message
    assert "the entrypoint /nowhere/function cannot be executed: there is no such file" in answer.message
    await eventually(lambda: spare not in names(site.pods()), what="the pod is gone", seconds=60)


async def test_an_eviction_is_told_though_the_status_shows_only_the_spares_container(
    site: PlayedSite, images: list[str]
) -> None:
    runner = start(site, "--retry-lost-calls=false")
    (spare,) = await until_ready(site, runner)
    async with Client(runner.address) as client:
        assert served(await client.evaluate(images[0], wish())).pod == spare
        (pod,) = (pod for pod in site.living() if pod["metadata"]["name"] == spare)
        call = asyncio.ensure_future(client.evaluate(images[0], wish(call="long", seconds=60)))
        await until_noted(site, pod, "long")
        site.kubelet.evict(pod, "usage exceeds the limit", forgets_container=True)
        answer = await call
    assert (answer.code, answer.reason) == ("UNAVAILABLE", "POD_LOST")
    assert "Evicted: usage exceeds the limit" in answer.message


async def test_a_runner_that_starts_anew_finds_spares_and_what_became_of_them(
    site: PlayedSite, images: list[str]
) -> None:
    place = site.account("runner")
    first = site.start(place, "--spare-pods=1")
    (spare,) = await until_ready(site, first)
    async with Client(first.address) as client:
        assert served(await client.evaluate(images[0], wish())).pod == spare
    (other,) = await until_ready(site, first)
    first.stop()
    second = site.start(place, "--spare-pods=1")
    second.wait_for_line(rf'event="pod adopted" pod={spare} ')
    await until_ready(site, second)
    async with Client(second.address) as client:
        assert served(await client.evaluate(images[0], wish())).pod == spare
        assert served(await client.evaluate(images[1], wish())).pod == other
