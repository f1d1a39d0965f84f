"""Pod templates in a ConfigMap: the specification's example, changes under load, and ones that are refused."""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable

import pytest

from cluster import registries
from cluster.full import FullCluster
from cluster.layout import OPEN
from e2e.cluster.test_function_images import HEAD, INPUTS
from images.__main__ import wrapper_server_image
from krm_runner.core.built_in_template import built_in_pod
from krm_runner.core.wrapper_delivery import InitContainer
from support import function_images
from support.audit import AuditLog
from support.calls import served, wish
from support.client import Client
from support.kube import Json
from support.load import Load
from support.processes import eventually
from support.push import Push
from support.push import push as push_to
from support.site import TEMPLATE_VERSION, Site
from support.wrapper import built_wrapper
from unit.test_pod_template import SEED_POD, SEED_SERVICE

FLAG = "--function-pod-template=template"


@pytest.fixture
def image(push: Push) -> str:
    return push("obliging", function_images.obliging())


def template(site: Site, version: str, **changes: object) -> Json:
    """The built-in one with a label of its own."""
    pod: Json = copy.deepcopy(built_in_pod(InitContainer(site.wrapper_image)))
    pod["metadata"]["labels"]["example.com/version"] = version
    pod["spec"] |= changes
    return pod


def versions(site: Site) -> list[str]:
    """Of the pods, as their labels say it."""
    return sorted(pod["metadata"]["labels"]["example.com/version"] for pod in site.pods())


async def test_the_specifications_example_letter_by_letter(
    new_site: Callable[..., Site], push: Push, sealed: FullCluster
) -> None:
    site = new_site()
    wrapper = wrapper_server_image(built_wrapper())
    # The name is the example's own. Others push the same content.
    push_to(wrapper, f"{OPEN.address}/nephio/porch-wrapper-server:latest", registries.push_options(sealed.layout, OPEN))
    version = site.write_template(SEED_POD, SEED_SERVICE, name="kpt-function-eval-pod-template")
    resource_list, expected = INPUTS["set-namespace"]
    image = push("set-namespace", function_images.catalog("set-namespace", "alpine"))
    runner = site.runner("--function-pod-template=kpt-function-eval-pod-template")
    async with Client(runner.address) as client:
        for _ in range(2):
            answer = await client.evaluate(image, (HEAD + resource_list).encode())
            assert answer.code == "OK", answer.message
            assert expected in answer.resource_list.decode()
    pod, (service,) = site.only_pod(), site.services()
    assert pod["spec"]["initContainers"][0]["image"] == "docker.io/nephio/porch-wrapper-server:latest"
    assert pod["metadata"]["annotations"][TEMPLATE_VERSION] == version
    assert pod["metadata"]["annotations"]["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "true"
    assert service["spec"]["selector"] == {"fn.kpt.dev/image": pod["metadata"]["name"]}


async def test_a_change_under_load_fails_no_call(site: Site, image: str, audit_log: AuditLog) -> None:
    site.write_template(template(site, "one"))
    place = site.account()
    async with Client(site.start(place, FLAG, "--pod-ttl=10s", "--scan-interval=1s").address) as client:
        async with Load(client, image) as load:
            await load.more(20)
            first = site.only_pod()["metadata"]
            under_way = asyncio.ensure_future(client.evaluate(image, wish(call="long", seconds=6)))
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
