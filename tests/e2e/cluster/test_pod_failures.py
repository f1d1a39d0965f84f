"""Functions that cannot be started: the caller hears Kubernetes' own reason, long before anything times out.

Each call here has a deadline far below the time that a pod may take to start: an answer that comes at a time-out's
bidding would be DEADLINE_EXCEEDED.
"""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable

import pytest

from cluster import registries
from cluster.layout import OPEN, PRIVATE
from images.oci import Image, single_layer
from krm_runner.core.built_in_template import built_in_pod
from krm_runner.core.wrapper_delivery import InitContainer
from support import function_images
from support.audit import AuditLog
from support.calls import served, until_ok, wish
from support.client import Answer, Client
from support.kube import Json, wait_until
from support.push import Push
from support.site import ALL_RIGHTS, Rights, Site

SECONDS = 30
SOON = 12
"""For what the kubelet says in an event at once, and in the pod's status a quarter minute later."""
CEILING = "--pod-start-timeout=120s"
FINAL, PASSING = ("FAILED_PRECONDITION", "POD_CANNOT_START"), ("UNAVAILABLE", "POD_NOT_STARTED")
ROOM = "example.com/room"
PULL_FAILURES = {"ErrImagePull", "ImagePullBackOff"}


@pytest.fixture
def image(push: Push) -> str:
    return push("obliging", function_images.obliging())


async def failure(site: Site, image: str, *flags: str, rights: Rights = ALL_RIGHTS, seconds: float = SECONDS) -> Answer:
    """The answer of the first call."""
    async with Client(site.start(site.account(rights=rights), CEILING, *flags).address) as client:
        answer = await client.evaluate(image, wish(), timeout=seconds)
    assert f'"{image}"' in answer.message, answer
    return answer


def kind(answer: Answer) -> tuple[str, str]:
    return answer.code, answer.reason


def pod_reason(answer: Answer) -> str:
    return (answer.facts or {}).get("pod_reason", "")


def wait_until_no_pod_is_left(site: Site) -> None:
    """Failed pods go at once, with their Services, long before their TTL."""
    wait_until(lambda: site.pods() == [] and site.services() == [], what="the failed pod is gone, with its Service")


def changed_template(site: Site, change: Callable[[Json], None]) -> str:
    """The flag for the built-in template with a change."""
    pod: Json = built_in_pod(InitContainer(site.wrapper_image))
    change(pod["spec"])
    site.write_template(pod)
    return "--function-pod-template=template"


async def test_an_image_that_does_not_exist(site: Site, image: str, audit_log: AuditLog) -> None:
    answer = await failure(site, image.replace(":v1", ":v2"))
    assert kind(answer) == ("FAILED_PRECONDITION", "IMAGE_NOT_FOUND")
    assert "MANIFEST_UNKNOWN" in answer.message
    assert audit_log.done("create", "pods", site.functions.name) == []


async def test_an_image_that_starts_nothing(site: Site, push: Push, audit_log: AuditLog) -> None:
    answer = await failure(site, push("unfit", function_images.no_entrypoint()))
    assert kind(answer) == ("FAILED_PRECONDITION", "IMAGE_UNUSABLE")
    assert audit_log.done("create", "pods", site.functions.name) == []


async def test_an_image_for_another_platform(site: Site, push: Push) -> None:
    """What an image says of itself is often wrong: it is tried."""
    answer = await failure(site, push("unfit", function_images.wrong_architecture()))
    assert kind(answer) == FINAL
    assert "the entrypoint function cannot be executed" in answer.message
    wait_until_no_pod_is_left(site)


@pytest.mark.parametrize(
    ("evidence", "seconds"), [(True, SOON), (False, SECONDS)], ids=["events", "no right to read events"]
)
async def test_an_image_whose_layer_the_kubelet_does_not_get(
    site: Site, push: Push, evidence: bool, seconds: float
) -> None:
    """The runner could read all that it needs to know of it."""
    lost = Image((function_images.alpine(), single_layer({"/mark": push.prefix})), entrypoint=("/bin/cat",))
    image = push("incomplete", lost)
    layer = json.loads(lost.manifest)["layers"][-1]["digest"]
    address = f"http://{OPEN.address}/v2/{push.prefix}/incomplete/blobs/{layer}"
    with urllib.request.urlopen(urllib.request.Request(address, method="DELETE"), timeout=30) as answered:
        assert answered.status == 202
    answer = await failure(site, image, rights=Rights(evidence=evidence), seconds=seconds)
    assert kind(answer) == FINAL
    assert pod_reason(answer) in PULL_FAILURES
    assert "not found" in answer.message
    wait_until_no_pod_is_left(site)


async def test_a_private_image_that_the_kubelet_may_not_pull(
    site: Site, push: Push, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The runner itself has credentials, in its own keychain."""
    image = push("private", function_images.obliging(mark=push.prefix), PRIVATE)
    keychain = tmp_path_factory.mktemp("keychain")
    (keychain / "config.json").write_text(registries.pull_secret(PRIVATE))
    runner = site.start(site.account(), CEILING, environment={"DOCKER_CONFIG": str(keychain)})
    async with Client(runner.address) as client:
        answer = await client.evaluate(image, wish(), timeout=SOON)
    assert kind(answer) == FINAL
    assert pod_reason(answer) in PULL_FAILURES
    assert "401 Unauthorized" in answer.message
    assert "pull secret" in answer.message, "it says what to look at"
    wait_until_no_pod_is_left(site)


async def test_an_image_name_of_the_template_that_is_none(site: Site, image: str) -> None:
    def change(spec: Json) -> None:
        spec["initContainers"][0]["image"] = "NOT AN IMAGE"

    answer = await failure(site, image, changed_template(site, change))
    assert kind(answer) == FINAL
    assert pod_reason(answer) == "InvalidImageName"
    wait_until_no_pod_is_left(site)


@pytest.mark.parametrize("policy", ["Never", "Always"])
@pytest.mark.parametrize("evidence", [True, False], ids=["events and logs", "neither events nor logs"])
async def test_an_entrypoint_that_is_not_there(site: Site, push: Push, policy: str, evidence: bool) -> None:
    """In a template that restarts containers, as the specification's example does, and where pods are all one sees."""

    def change(spec: Json) -> None:
        spec["restartPolicy"] = policy

    image = push("absent", Image((function_images.alpine(),), entrypoint=("/nowhere/function",)))
    answer = await failure(site, image, changed_template(site, change), rights=Rights(evidence=evidence))
    assert kind(answer) == FINAL
    assert pod_reason(answer) in {"Error", "CrashLoopBackOff"}
    assert "exit code 1" in answer.message
    assert "the entrypoint /nowhere/function cannot be executed: there is no such file" in answer.message
    wait_until_no_pod_is_left(site)


async def test_a_wrapper_that_does_not_take_the_templates_arguments(site: Site, image: str) -> None:
    def change(spec: Json) -> None:
        spec["containers"][0]["args"] = ["--no-such-flag"]

    answer = await failure(site, image, changed_template(site, change))
    assert kind(answer) == FINAL
    assert "exit code 2" in answer.message
    assert "--no-such-flag" in answer.message
    wait_until_no_pod_is_left(site)


async def test_a_command_of_the_template_that_is_not_there(site: Site, image: str) -> None:
    def change(spec: Json) -> None:
        spec["containers"][0]["command"] = ["/wrapper-server-tools/absent"]

    answer = await failure(site, image, changed_template(site, change))
    assert kind(answer) == FINAL
    assert pod_reason(answer) in {"StartError", "RunContainerError", "ContainerCannotRun", "Failed"}
    assert "no such file" in answer.message
    wait_until_no_pod_is_left(site)


async def test_something_that_the_template_refers_to_and_that_is_not_there(site: Site, image: str) -> None:
    def change(spec: Json) -> None:
        reference = {"configMapKeyRef": {"name": "absent", "key": "k"}}
        spec["containers"][0]["env"] = [{"name": "X", "valueFrom": reference}]

    answer = await failure(site, image, changed_template(site, change), seconds=SOON)
    assert kind(answer) == FINAL
    assert pod_reason(answer) in {"Failed", "CreateContainerConfigError"}
    assert 'configmap "absent" not found' in answer.message
    wait_until_no_pod_is_left(site)


async def test_an_init_container_that_fails(site: Site, image: str, push: Push) -> None:
    prepares = push("prepares", function_images.shell("echo nothing to be had here; exit 3"))

    def change(spec: Json) -> None:
        spec["initContainers"].append(
            {**spec["initContainers"][0], "name": "prepare", "image": prepares, "command": None}
        )

    answer = await failure(site, image, changed_template(site, change))
    assert kind(answer) == FINAL
    assert 'init container "prepare" ended with exit code 3: nothing to be had here' in answer.message
    wait_until_no_pod_is_left(site)


async def test_a_pod_that_no_node_has_room_for(site: Site, image: str) -> None:
    config = site.cache_config({"name": image, "resources": {"requests": {"cpu": "1000"}}})
    answer = await failure(site, image, f"--pod-cache-config={config}", "--warm-up-pod-cache=false")
    assert kind(answer) == PASSING
    assert pod_reason(answer) == "Unschedulable"
    assert "Insufficient cpu" in answer.message
    assert answer.retry_delay
    assert len(site.living()) == 1, "it stays for a while: an autoscaler may be on its way"


async def test_a_pod_that_waited_for_room_too_long_goes_and_one_that_gets_it_serves(
    site: Site, image: str, push: Push
) -> None:
    other = push("other", function_images.obliging())
    config = site.cache_config(
        {"name": image, "resources": {"requests": {"cpu": "1000"}}},
        {"name": other, "resources": {"requests": {ROOM: "1"}, "limits": {ROOM: "1"}}},
    )
    flags = (f"--pod-cache-config={config}", "--warm-up-pod-cache=false", "--pod-start-timeout=6s")
    async with Client(site.start(site.account(), *flags).address) as client:
        assert pod_reason(await client.evaluate(image, wish(), timeout=SECONDS)) == "Unschedulable"
        wait_until_no_pod_is_left(site)
        assert pod_reason(await client.evaluate(other, wish(), timeout=SECONDS)) == "Unschedulable"
        node = "/api/v1/nodes/node/status"
        site.functions.kube.patch(node, {"status": {"capacity": {ROOM: "1"}}})
        try:
            served(await until_ok(client, other))
        finally:
            site.functions.kube.patch(node, {"status": {"capacity": {ROOM: None}}})


async def test_a_quota_that_is_used_up_and_then_raised(site: Site, image: str) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"pods": "0"}}}
    site.functions.create(quota, "few")
    wait_until(lambda: _has_status(site, "few"), what="the quota is in force")
    async with Client(site.start(site.account(), CEILING).address) as client:
        answer = await client.evaluate(image, wish(), timeout=SECONDS)
        assert kind(answer) == PASSING
        assert "exceeded quota: few" in answer.message
        assert answer.retry_delay
        assert site.services() == [] or site.pods() == []
        site.functions.kube.patch(site.functions.path("resourcequotas/few"), {"spec": {"hard": {"pods": "5"}}})
        served(await until_ok(client, image))


async def test_a_pod_that_admission_refuses(site: Site, image: str) -> None:
    def change(spec: Json) -> None:
        spec["containers"][0]["securityContext"] = {"privileged": True}

    answer = await failure(site, image, changed_template(site, change))
    assert kind(answer) == FINAL
    assert 'violates PodSecurity "restricted:latest": privileged' in answer.message
    wait_until(lambda: site.services() == [], what="no Service is left of it")


async def test_a_template_that_kubernetes_does_not_take(site: Site, image: str) -> None:
    def change(spec: Json) -> None:
        spec["containers"][0]["volumeMounts"].append({"name": "absent", "mountPath": "/absent"})

    answer = await failure(site, image, changed_template(site, change))
    assert kind(answer) == FINAL
    assert 'volumeMounts[2].name: Not found: "absent"' in answer.message
    wait_until(lambda: site.services() == [], what="no Service is left of it")


async def test_an_account_that_may_not_create_pods(site: Site, image: str) -> None:
    answer = await failure(site, image, rights=Rights(pods=("get", "list", "watch", "patch", "delete")))
    assert kind(answer) == FINAL
    assert 'cannot create resource "pods"' in answer.message


async def test_an_account_that_may_not_look_at_pods(site: Site, image: str) -> None:
    """It is told at once, and the service gets well when the right is granted."""
    place = site.account(rights=Rights(pods=("create",)))
    async with Client(site.start(place, CEILING).address) as client:
        answer = await client.evaluate(image, wish(), timeout=SECONDS)
        assert answer.code in ("FAILED_PRECONDITION", "UNAVAILABLE"), answer
        assert 'cannot list resource "pods"' in answer.message


async def test_a_wrapper_that_never_answers_is_reported_at_the_ceiling(site: Site, image: str) -> None:
    def change(spec: Json) -> None:
        spec["containers"][0]["command"] = ["/bin/sh", "-c", "sleep 3600"]
        spec["terminationGracePeriodSeconds"] = 1

    answer = await failure(site, image, changed_template(site, change), "--pod-start-timeout=4s")
    assert kind(answer) == PASSING
    assert "not ready after 4s" in answer.message
    wait_until_no_pod_is_left(site)


async def test_a_function_that_keeps_failing_is_not_started_once_per_call(
    site: Site, push: Push, audit_log: AuditLog
) -> None:
    image = push("absent", Image((function_images.alpine(),), entrypoint=("/nowhere/function",)))
    other = push("obliging", function_images.obliging())
    async with Client(site.runner(CEILING).address) as client:
        first = await client.evaluate(image, wish(), timeout=SECONDS)
        answers = [await client.evaluate(image, wish(), timeout=SECONDS) for _ in range(100)]
        served(await client.evaluate(other, wish()))
    assert {(answer.code, answer.reason) for answer in (first, *answers)} == {FINAL}
    assert all("cannot be executed" in answer.message for answer in answers), "each says why"
    assert len(audit_log.done("create", "pods", site.functions.name)) < 10


async def test_an_image_that_is_mended_is_taken_when_its_tag_is_looked_up_again(site: Site, push: Push) -> None:
    image = push("mended", Image((function_images.alpine(),), entrypoint=("/nowhere/function",)))
    async with Client(site.runner(CEILING, "--image-tag-ttl=1s").address) as client:
        assert kind(await client.evaluate(image, wish(), timeout=SECONDS)) == FINAL
        push("mended", function_images.obliging())
        served(await until_ok(client, image))


def _has_status(site: Site, quota: str) -> bool:
    found = site.functions.find(f"resourcequotas/{quota}")
    return bool(found and found.get("status", {}).get("hard"))
