"""First calls: what is made for them, in which form, and that later calls find it."""

from __future__ import annotations

import time

import pytest

from cluster import layout
from e2e.cluster.test_function_images import HEAD, INPUTS
from support import function_images
from support.audit import AuditLog
from support.calls import served, wish
from support.client import Client
from support.kube import Json
from support.push import Push
from support.site import ASKED_FOR, LABEL, RECLAIM_AFTER, TEMPLATE_VERSION, Site


@pytest.fixture
def image(push: Push) -> str:
    return push("obliging", function_images.obliging(), tag="v0.4.1")


def function_container(pod: Json) -> Json:
    containers: list[Json] = pod["spec"]["containers"]
    (container,) = containers
    return container


async def test_a_first_call_makes_a_pod_and_its_service_and_later_calls_use_them(
    site: Site, image: str, audit_log: AuditLog
) -> None:
    runner = site.runner()
    async with Client(runner.address) as client:
        first = served(await client.evaluate(image, wish(call="first")))
        second = served(await client.evaluate(image, wish(call="second")))
    pod, (service,) = site.only_pod(), site.services()
    digest = function_images.obliging().digest
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
    assert container["args"] == ["--port", "9446", "--max-request-body-size", "6291456", "--", "/function"]
    created = audit_log.done("create", "pods", site.functions.name)
    assert len(created) == 1
    assert await site.calls_of(pod) == ["first", "second"]


async def test_its_pod_is_restricted_and_has_no_token(site: Site, image: str) -> None:
    async with Client(site.runner().address) as client:
        served(await client.evaluate(image, wish()))
    pod = site.only_pod()
    container = function_container(pod)
    assert not any("serviceaccount" in mount["mountPath"] for mount in container["volumeMounts"])
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert pod["spec"]["securityContext"]["runAsNonRoot"] is True


@pytest.mark.parametrize("root", ["distroless", "scratch"])
async def test_a_function_of_the_catalog(site: Site, push: Push, root: str) -> None:
    resource_list, expected = INPUTS["set-namespace"]
    image = push("set-namespace", function_images.catalog("set-namespace", root))
    async with Client(site.runner().address) as client:
        answer = await client.evaluate(image, (HEAD + resource_list).encode())
    assert answer.code == "OK", answer
    assert expected in answer.resource_list.decode()


async def test_a_function_of_ours(site: Site, push: Push) -> None:
    resource_list, expected = INPUTS["set-labels"]
    image = push("set-labels", function_images.python("set-labels"))
    async with Client(site.runner().address) as client:
        answer = await client.evaluate(image, (HEAD + resource_list).encode())
    assert answer.code == "OK", answer
    assert expected in answer.resource_list.decode()


async def test_a_name_without_a_registry_is_one_of_the_default_prefix(site: Site, push: Push) -> None:
    """The image comes from a public registry: the runner asks it over TLS, the kubelet a mirror."""
    push.mirrored("obliging", function_images.obliging(), "ghcr.io")
    authority = {"SSL_CERT_FILE": str(layout.full().certificate("registry-ca"))}
    place = site.account()
    runner = site.start(place, f"--default-image-prefix=ghcr.io/{push.prefix}", environment=authority)
    async with Client(runner.address) as client:
        served(await client.evaluate("obliging:v1", wish()))
    assert site.only_pod()["metadata"]["annotations"][ASKED_FOR] == f"ghcr.io/{push.prefix}/obliging:v1"


@pytest.mark.parametrize("way", ["service-name", "cluster-ip", "pod-ip"])
async def test_every_way_to_a_pod(site: Site, image: str, way: str) -> None:
    async with Client(site.runner(f"--pod-address={way}").address) as client:
        served(await client.evaluate(image, wish()))
        served(await client.evaluate(image, wish()))
    assert len(site.pods()) == 1


async def test_a_large_package_comes_back_byte_for_byte(site: Site, push: Push) -> None:
    image = push("copies", function_images.command_only())
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
