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
from support.calls import wish
from support.client import Answer, Client
from support.kube import Json, wait_until
from support.push import Push
from support.site import ALL_RIGHTS, Rights, Site

SECONDS = 30
SOON = 12
"""For what the kubelet says in an event at once, and in the pod's status a quarter minute later."""
CEILING = "--pod-start-timeout=120s"
FINAL, PASSING = ("FAILED_PRECONDITION", "POD_CANNOT_START"), ("UNAVAILABLE", "POD_NOT_STARTED")
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


@pytest.mark.parametrize(
    ("policy", "evidence"), [("Never", True), ("Always", False)], ids=["events and logs", "neither events nor logs"]
)
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
