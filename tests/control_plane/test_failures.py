"""Functions that cannot be started: the caller gets Kubernetes' own reason long before anything times out.

Each call here has a deadline far below the time that a pod may take to start: an answer that came only because a
time-out passed would be DEADLINE_EXCEEDED. What the words of a real kubelet are is seen on the cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from control_plane import local_images
from control_plane.faults import Fault, InitFails, Rejected, Silent, Unschedulable, Waiting
from control_plane.site import PlayedSite
from support.audit import AuditLog
from support.calls import served, until_ok, wish
from support.client import Answer, Client
from support.kube import Json, wait_until
from support.push import Push
from support.site import ALL_RIGHTS, Rights

SECONDS = 20
CEILING = "--pod-start-timeout=120s"
FINAL, PASSING = ("FAILED_PRECONDITION", "POD_CANNOT_START"), ("UNAVAILABLE", "POD_NOT_STARTED")
PULL = 'Failed to pull image "example.com/x": '


@pytest.fixture
def image(push: Push) -> str:
    return push("obliging", local_images.obliging())


async def failure(
    site: PlayedSite, image: str, *flags: str, rights: Rights = ALL_RIGHTS, seconds: float = SECONDS
) -> Answer:
    """The answer of the first call."""
    async with Client(site.start(site.account(rights=rights), CEILING, *flags).address) as client:
        answer = await client.evaluate(image, wish(), timeout=seconds)
    assert f'"{image}"' in answer.message, answer
    return answer


def kind(answer: Answer) -> tuple[str, str]:
    return answer.code, answer.reason


def pod_reason(answer: Answer) -> str:
    return (answer.facts or {}).get("pod_reason", "")


def wait_until_no_pod_is_left(site: PlayedSite) -> None:
    """Failed pods go immediately, with their Services, long before their TTL."""
    wait_until(lambda: site.pods() == [] and site.services() == [], what="the failed pod is gone, with its Service")


def changed_template(site: PlayedSite, change: Callable[[Json], None]) -> str:
    """The flag for the built-in template with a change."""
    pod: Json = site.built_in_template()
    change(pod["spec"])
    site.write_template(pod)
    return "--function-pod-template=template"


@dataclass(frozen=True)
class Case:
    """What the kubelet reports, and what the caller gets."""

    fault: Fault
    answer: tuple[str, str]
    reason: str
    words: str


CASES = {
    "an image that is not there": Case(
        Waiting("ErrImagePull", "manifest unknown: not found"), FINAL, "ErrImagePull", "manifest unknown: not found"
    ),
    "a registry that refuses the pull": Case(
        Waiting("ImagePullBackOff", "pull access denied: 401 Unauthorized"), FINAL, "ImagePullBackOff", "pull secret"
    ),
    "a registry that is away": Case(
        Waiting("ErrImagePull", "dial tcp: connection refused"), PASSING, "ErrImagePull", "connection refused"
    ),
    "a pull that only an event tells of": Case(
        Waiting("", "", event=f"{PULL}not found"), FINAL, "ErrImagePull", "not found"
    ),
    "a name that is no image": Case(
        Waiting("InvalidImageName", "couldn't parse image name"), FINAL, "InvalidImageName", "couldn't parse"
    ),
    "something that the template refers to and is missing": Case(
        Waiting("CreateContainerConfigError", 'configmap "absent" not found'),
        FINAL,
        "CreateContainerConfigError",
        'configmap "absent" not found',
    ),
    "a container that cannot be created": Case(
        Waiting("RunContainerError", "no such device"), FINAL, "RunContainerError", "no such device"
    ),
    "an init container that fails": Case(
        InitFails(3, "nothing to be had here"),
        FINAL,
        "Error",
        'init container "copy-wrapper-server" ended with exit code 3: nothing to be had here',
    ),
    "a node that has no room after all": Case(
        Rejected("OutOfcpu", "Node didn't have enough resource: cpu"), PASSING, "OutOfcpu", "enough resource: cpu"
    ),
    "a node that never runs such pods": Case(
        Rejected("SysctlForbidden", "forbidden sysctl"), FINAL, "SysctlForbidden", "forbidden sysctl"
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_what_the_kubelet_reports_reaches_the_caller(site: PlayedSite, image: str, case: Case) -> None:
    site.kubelet.fault = case.fault
    answer = await failure(site, image)
    assert kind(answer) == case.answer
    assert pod_reason(answer) == case.reason
    assert case.words in answer.message
    assert (answer.retry_delay is not None) == (case.answer == PASSING)
    wait_until_no_pod_is_left(site)


async def test_an_image_that_does_not_exist(site: PlayedSite, image: str, audit_log: AuditLog) -> None:
    answer = await failure(site, image.replace(":v1", ":v2"))
    assert kind(answer) == ("FAILED_PRECONDITION", "IMAGE_NOT_FOUND")
    assert "MANIFEST_UNKNOWN" in answer.message
    assert audit_log.done("create", "pods", site.functions.name) == []


async def test_an_image_that_starts_nothing(site: PlayedSite, push: Push, audit_log: AuditLog) -> None:
    answer = await failure(site, push("unfit", local_images.no_entrypoint()))
    assert kind(answer) == ("FAILED_PRECONDITION", "IMAGE_UNUSABLE")
    assert audit_log.done("create", "pods", site.functions.name) == []


@pytest.mark.parametrize("policy", ["Never", "Always"])
@pytest.mark.parametrize("evidence", [True, False], ids=["events and logs", "neither events nor logs"])
async def test_an_entrypoint_that_is_not_there(site: PlayedSite, push: Push, policy: str, evidence: bool) -> None:
    """In a template that restarts containers, as the specification's example does, and where pods are all one sees."""

    def change(spec: Json) -> None:
        spec["restartPolicy"] = policy

    image = push("absent", local_images.absent())
    answer = await failure(site, image, changed_template(site, change), rights=Rights(evidence=evidence))
    assert kind(answer) == FINAL
    assert pod_reason(answer) in {"Error", "CrashLoopBackOff"}
    assert "exit code 1" in answer.message
    assert "the entrypoint /nowhere/function cannot be executed: there is no such file" in answer.message
    wait_until_no_pod_is_left(site)


async def test_a_wrapper_that_does_not_take_the_templates_arguments(site: PlayedSite, image: str) -> None:
    def change(spec: Json) -> None:
        spec["containers"][0]["args"] = ["--no-such-flag"]

    answer = await failure(site, image, changed_template(site, change))
    assert kind(answer) == FINAL
    assert "exit code 2" in answer.message
    assert "--no-such-flag" in answer.message
    wait_until_no_pod_is_left(site)


async def test_an_unschedulable_pod_stays_for_a_while(site: PlayedSite, image: str) -> None:
    site.kubelet.fault = Unschedulable("0/3 nodes are available: 3 Insufficient cpu.")
    answer = await failure(site, image)
    assert kind(answer) == PASSING
    assert pod_reason(answer) == "Unschedulable"
    assert "3 Insufficient cpu" in answer.message
    assert answer.retry_delay
    assert len(site.living()) == 1, "an autoscaler may be adding a node"


async def test_an_unschedulable_pod_goes_at_the_start_timeout_and_serves_if_it_gets_a_node(
    site: PlayedSite, image: str, push: Push
) -> None:
    other = push("other", local_images.obliging())
    site.kubelet.fault = Unschedulable()
    async with Client(site.start(site.account(), "--pod-start-timeout=3s").address) as client:
        assert pod_reason(await client.evaluate(image, wish(), timeout=SECONDS)) == "Unschedulable"
        wait_until_no_pod_is_left(site)
        assert pod_reason(await client.evaluate(other, wish(), timeout=SECONDS)) == "Unschedulable"
        site.kubelet.fault = None
        served(await until_ok(client, other))


async def test_a_quota_that_is_used_up_and_then_raised(site: PlayedSite, image: str) -> None:
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "spec": {"hard": {"pods": "0"}}}
    site.functions.create(quota, "few")
    set_quota(site, "0")
    async with Client(site.start(site.account(), CEILING).address) as client:
        answer = await client.evaluate(image, wish(), timeout=SECONDS)
        assert kind(answer) == PASSING
        assert "exceeded quota: few" in answer.message
        assert answer.retry_delay
        assert site.services() == [] or site.pods() == []
        set_quota(site, "5")
        served(await until_ok(client, image))


def set_quota(site: PlayedSite, pods: str) -> None:
    """As the quota controller does it."""
    path = site.functions.path("resourcequotas/few")
    site.functions.kube.patch(path, {"spec": {"hard": {"pods": pods}}})
    site.functions.kube.patch(f"{path}/status", {"status": {"hard": {"pods": pods}, "used": {"pods": "0"}}})


async def test_a_pod_that_admission_refuses(site: PlayedSite, image: str) -> None:
    def change(spec: Json) -> None:
        spec["containers"][0]["securityContext"] = {"privileged": True}

    answer = await failure(site, image, changed_template(site, change))
    assert kind(answer) == FINAL
    assert 'violates PodSecurity "restricted:latest": privileged' in answer.message
    wait_until(lambda: site.services() == [], what="no Service is left of it")


async def test_a_template_that_kubernetes_does_not_take(site: PlayedSite, image: str) -> None:
    def change(spec: Json) -> None:
        spec["containers"][0]["volumeMounts"].append({"name": "absent", "mountPath": "/absent"})

    answer = await failure(site, image, changed_template(site, change))
    assert kind(answer) == FINAL
    assert 'volumeMounts[2].name: Not found: "absent"' in answer.message
    wait_until(lambda: site.services() == [], what="no Service is left of it")


async def test_a_wrapper_that_never_answers_is_reported_at_the_start_timeout(site: PlayedSite, image: str) -> None:
    site.kubelet.fault = Silent()
    answer = await failure(site, image, "--pod-start-timeout=2s")
    assert kind(answer) == PASSING
    assert "not ready after 2s" in answer.message
    wait_until_no_pod_is_left(site)


async def test_a_function_that_keeps_failing_is_not_started_once_per_call(
    site: PlayedSite, push: Push, audit_log: AuditLog
) -> None:
    image = push("absent", local_images.absent())
    other = push("obliging", local_images.obliging())
    async with Client(site.runner(CEILING).address) as client:
        first = await client.evaluate(image, wish(), timeout=SECONDS)
        answers = [await client.evaluate(image, wish(), timeout=SECONDS) for _ in range(100)]
        served(await client.evaluate(other, wish()))
    assert {(answer.code, answer.reason) for answer in (first, *answers)} == {FINAL}
    assert all("cannot be executed" in answer.message for answer in answers), "each says why"
    assert len(audit_log.done("create", "pods", site.functions.name)) < 10


async def test_a_start_that_failed_once_is_tried_again(site: PlayedSite, image: str) -> None:
    site.kubelet.fault = Waiting("ErrImagePull", "dial tcp: connection refused")
    async with Client(site.runner(CEILING).address) as client:
        assert kind(await client.evaluate(image, wish(), timeout=SECONDS)) == PASSING
        site.kubelet.fault = None
        served(await until_ok(client, image))


async def test_an_image_that_is_fixed_is_taken_when_its_tag_is_looked_up_again(site: PlayedSite, push: Push) -> None:
    image = push("fixed", local_images.absent())
    async with Client(site.runner(CEILING, "--image-tag-ttl=1s").address) as client:
        assert kind(await client.evaluate(image, wish(), timeout=SECONDS)) == FINAL
        push("fixed", local_images.obliging())
        served(await until_ok(client, image))
