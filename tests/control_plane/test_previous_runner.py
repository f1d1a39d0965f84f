"""What Porch's own function runner leaves behind: its pods and Services expire, and its finalizers hold up nothing."""

from __future__ import annotations

import signal
import time

import pytest

from control_plane import local_images
from control_plane.site import PlayedSite
from krm_runner.core.rights import FUNCTION_CONFIGS
from krm_runner.pods.function_configs import FINALIZER
from krm_runner.pods.retired_config_maps import LABEL as RETIRED_LABEL
from support.audit import AuditLog
from support.calls import served, wish
from support.client import Client
from support.function_configs import GROUP, KIND
from support.kube import ApiError, Json, Kube, wait_until
from support.processes import eventually
from support.push import Push
from support.site import LABEL, RECLAIM_AFTER, TEMPLATE_VERSION

SCAN = "--scan-interval=1s"
OTHER = "example.com/finalizer"


@pytest.fixture
def image(push: Push) -> str:
    return push("obliging", local_images.obliging())


@pytest.fixture
def pod_id() -> str:
    """The id of the function's first pod: Porch's runner and this one agree on it."""
    return f"obliging-v1-1-{local_images.obliging().digest.removeprefix('sha256:')[:8]}"


def leave_service(site: PlayedSite, pod_id: str) -> Json:
    """A Service as Porch's runner makes it, which selects by the pod's label and does not have it."""
    spec = {"ports": [{"port": 9446, "targetPort": 9446}], "selector": {LABEL: pod_id}}
    metadata = {"labels": {"app.kubernetes.io/name": pod_id}}
    return site.functions.create({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec}, pod_id)


def leave_pod(site: PlayedSite, name: str, pod_id: str, *, seconds: float) -> None:
    """A pod as Porch's runner makes it, whose time is over after so many seconds."""
    site.run_bystander(name)
    annotations = {RECLAIM_AFTER: str(int(time.time() + seconds)), TEMPLATE_VERSION: "inline-v1"}
    change = {"metadata": {"labels": {LABEL: pod_id}, "annotations": annotations}}
    site.functions.kube.patch(site.functions.path(f"pods/{name}"), change)


def service_of(site: PlayedSite, name: str) -> str:
    """The uid of the Service of this name; empty when there is none."""
    found = site.functions.find(f"services/{name}")
    return str(found["metadata"]["uid"]) if found else ""


@pytest.mark.parametrize("name", ["generated", "fixed"])
async def test_a_name_that_one_of_its_pods_has_costs_no_launch(
    site: PlayedSite, image: str, pod_id: str, audit_log: AuditLog, name: str
) -> None:
    """Its pods are named by their pod id, or by the API server."""
    leave_pod(site, pod_id if name == "fixed" else f"{pod_id}-x7k2p", pod_id, seconds=3600)
    service = leave_service(site, pod_id)["metadata"]["uid"]
    runner = site.runner(SCAN)
    async with Client(runner.address) as client:
        pod = served(await client.evaluate(image, wish())).pod
    assert pod == pod_id.replace("-1-", "-2-")
    assert len(audit_log.done("create", "pods", site.functions.name)) == 2, "the one of before, and ours"
    assert audit_log.done("delete", "pods", site.functions.name) == []
    assert service_of(site, pod_id) == service, "it still leads to its pod"
    assert "name taken" not in "\n".join(runner.lines)


async def test_a_service_without_a_pod_is_used_again(
    site: PlayedSite, image: str, pod_id: str, audit_log: AuditLog
) -> None:
    service = leave_service(site, pod_id)["metadata"]["uid"]
    async with Client(site.runner().address) as client:
        assert served(await client.evaluate(image, wish())).pod == pod_id
    assert service_of(site, pod_id) == service
    assert len(audit_log.done("create", "pods", site.functions.name)) == 1


async def test_its_services_go_with_its_pods(site: PlayedSite, image: str) -> None:
    leave_pod(site, "other-v1-1-00000000-x7k2p", "other-v1-1-00000000", seconds=-1)
    for pod_id in ("other-v1-1-00000000", "alone-v1-1-00000000"):
        leave_service(site, pod_id)
    site.functions.create({"apiVersion": "v1", "kind": "Service", "spec": {"ports": [{"port": 9446}]}}, "bystander")
    async with Client(site.runner(SCAN, "--pod-start-timeout=2s").address) as client:
        served(await client.evaluate(image, wish()))
        await eventually(
            lambda: not any(service_of(site, f"{name}-v1-1-00000000") for name in ("other", "alone")),
            what="its Services are gone",
            seconds=60,
        )
        assert len(site.living()) == 1, "and its pod"
        served(await client.evaluate(image, wish()))
    assert service_of(site, "bystander")


# --- FunctionConfig objects ---------------------------------------------------------------------------------------


@pytest.fixture
def function_configs(kube: Kube) -> None:
    """The kind of FunctionConfig objects. It stays: other tests of the session may use it at the same time."""
    try:
        kube.create(KIND)
    except ApiError as error:
        if error.reason != "AlreadyExists":
            raise

    def is_served() -> bool:
        try:
            return any(each["name"] == "functionconfigs" for each in kube.read(f"/apis/{GROUP}/v1alpha1")["resources"])
        except ApiError:
            return False

    wait_until(is_served, what="the kind is served")


class Configs:
    """The FunctionConfig objects of one site."""

    def __init__(self, site: PlayedSite) -> None:
        self._kube = site.functions.kube
        self._namespace = site.functions.name
        self._path = f"/apis/{GROUP}/v1alpha1/namespaces/{site.functions.name}/functionconfigs"

    def create(self, name: str, *finalizers: str) -> None:
        metadata = {"name": name, "namespace": self._namespace, "finalizers": list(finalizers)}
        self._kube.create({"apiVersion": f"{GROUP}/v1alpha1", "kind": "FunctionConfig", "metadata": metadata})

    def delete(self, name: str) -> None:
        self._kube.delete(f"{self._path}/{name}")

    def finalizers(self) -> dict[str, list[str]]:
        """By name, of all that are there."""
        return {
            found["metadata"]["name"]: found["metadata"].get("finalizers", []) for found in self._kube.items(self._path)
        }


ALLOWED = {FUNCTION_CONFIGS: ("list", "watch", "patch")}


async def test_an_object_that_is_deleted_loses_its_finalizer(site: PlayedSite, function_configs: None) -> None:
    configs = Configs(site)
    for name in ("before", "after", "living"):
        configs.create(name, FINALIZER)
    configs.create("shared", OTHER, FINALIZER)
    configs.delete("before")
    place = site.account()
    site.grant_all("configs", "runner", ALLOWED)
    runner = site.start(place)
    wait_until(lambda: "before" not in configs.finalizers(), what="an object that was being deleted is gone")
    configs.delete("after")
    configs.delete("shared")
    wait_until(lambda: configs.finalizers().get("shared") == [OTHER], what="one that another holds lost only ours")
    wait_until(lambda: "after" not in configs.finalizers(), what="an object that is deleted is gone")
    assert configs.finalizers() == {"living": [FINALIZER], "shared": [OTHER]}
    assert runner.process.poll() is None
    runner.stop(signal.SIGTERM)
    assert sum("finalizer of the previous function runner removed" in line for line in runner.lines) == 3


async def test_without_the_permission_it_is_logged_once(site: PlayedSite, function_configs: None, image: str) -> None:
    configs = Configs(site)
    for name in ("one", "two"):
        configs.create(name, FINALIZER)
        configs.delete(name)
    place = site.account()
    site.grant_all("configs", "runner", {FUNCTION_CONFIGS: ("list", "watch")})
    runner = site.start(place)
    runner.wait_for_line(
        'cannot be deleted.*cannot patch resource .*functionconfigs.*hint="grant list, watch and patch'
    )
    async with Client(runner.address) as client:
        served(await client.evaluate(image, wish()))
    site.grant_all("later", "runner", ALLOWED)
    wait_until(lambda: configs.finalizers() == {}, what="the permission is used once it is there")
    assert sum("cannot be deleted" in line for line in runner.lines) == 1


# --- an earlier version of this runner ----------------------------------------------------------------------------


async def test_config_maps_that_delivered_the_wrapper_are_deleted_once_nobody_extends_them(site: PlayedSite) -> None:
    for name, seconds in (("expired", -60), ("in-use", 3600)):
        annotations = {RECLAIM_AFTER: str(int(time.time() + seconds))}
        metadata = {"labels": {RETIRED_LABEL: "packed"}, "annotations": annotations}
        body: Json = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True}
        site.functions.create({**body, "binaryData": {"wrapper-server": "AAAA"}}, name)
    site.functions.create({"apiVersion": "v1", "kind": "ConfigMap"}, "bystander")
    place = site.account()
    site.grant("config-maps", "runner", configmaps=("list", "delete"))
    runner = site.start(place, "--wrapper-delivery=config-map", f"--wrapper-file={RETIRED_LABEL}")
    runner.wait_for_line('event="config map of an earlier version deleted" config_map=expired')
    runner.wait_for_line('event="flag retired: the next release refuses it" flag="--wrapper-delivery=config-map"')
    runner.wait_for_line('event="flag retired: the next release refuses it" flag=--wrapper-file ')
    assert [bool(site.functions.find(f"configmaps/{name}")) for name in ("expired", "in-use", "bystander")] == [
        False,
        True,
        True,
    ]
