"""Pods as the API server shows them: starting, ready, failed with Kubernetes' own words, terminating."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krm_runner.core.json_object import JsonObject, as_object
from krm_runner.core.pod_failure import Failed
from krm_runner.core.pod_status import (
    PodStatus,
    Ready,
    SilentEnd,
    Starting,
    Terminating,
    pod_status,
    silent_end,
    with_last_words,
)

IMAGE = "example.com/timeout-not-found:v1"
RUNNING: JsonObject = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
COPIED: JsonObject = {"name": "copy-wrapper-server", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}


def pod(phase: str = "Pending", **status: object) -> JsonObject:
    return {"metadata": {"name": "p", "uid": "u-1"}, "status": {"phase": phase, **status}}


def condition(kind: str, value: str, reason: str = "", message: str = "") -> JsonObject:
    return {"type": kind, "status": value, "reason": reason, "message": message}


def function(state: JsonObject, **fields: object) -> JsonObject:
    return {"name": "function", "image": IMAGE, "state": state, **fields}


def waiting(reason: str, message: str = "") -> JsonObject:
    return {"waiting": {"reason": reason, "message": message}}


def ended(code: int, reason: str = "Error", message: str = "") -> JsonObject:
    return {"terminated": {"exitCode": code, "reason": reason, "message": message}}


def with_function(state: JsonObject, phase: str = "Pending", **fields: object) -> PodStatus:
    return pod_status(pod(phase, initContainerStatuses=[COPIED], containerStatuses=[function(state, **fields)]))


def failed(status: PodStatus) -> Failed:
    assert isinstance(status, Failed), status
    return status


PULL = f'Failed to pull image "{IMAGE}"'


def event(reason: str, message: str, *, at: str = "2026-01-01T00:00:00Z", uid: str = "u-1") -> JsonObject:
    involved = {"kind": "Pod", "name": "p", "uid": uid}
    return {"type": "Warning", "reason": reason, "message": message, "lastTimestamp": at, "involvedObject": involved}


def about(told: JsonObject, place: str) -> JsonObject:
    return {**told, "involvedObject": {**as_object(told["involvedObject"]), "fieldPath": place}}


# Starting and ready


def test_a_new_pod_is_starting() -> None:
    assert pod_status({}) == Starting("Pending")
    assert pod_status(pod()) == Starting("Pending")
    scheduled = [condition("PodScheduled", "True")]
    assert pod_status(pod(conditions=scheduled)) == Starting("Pending")
    assert with_function(waiting("PodInitializing")) == Starting("PodInitializing")
    assert with_function(waiting("ContainerCreating")) == Starting("ContainerCreating")


def test_the_address_comes_with_the_running_wrapper_and_not_before() -> None:
    not_ready = [condition("Ready", "False", "ContainersNotReady", "containers with unready status: [function]")]
    for state, address in ((waiting("PodInitializing"), ""), (RUNNING, "10.0.0.7")):
        status = pod_status(pod("Running", podIP="10.0.0.7", conditions=not_ready, containerStatuses=[function(state)]))
        assert isinstance(status, Starting)
        assert status.address == address
    assert status == Starting("ContainersNotReady", "containers with unready status: [function]", "10.0.0.7")


def test_ready_is_what_kubernetes_calls_ready() -> None:
    ready = [condition("Ready", "True")]
    found = pod("Running", podIP="10.0.0.7", conditions=ready, containerStatuses=[function(RUNNING)])
    assert pod_status(found) == Ready("10.0.0.7")
    assert isinstance(pod_status(pod("Running", conditions=ready, containerStatuses=[function(RUNNING)])), Starting)


def test_an_unschedulable_pod_goes_on_starting_and_says_why() -> None:
    why = "0/1 nodes are available: 1 Insufficient cpu."
    unschedulable = pod(conditions=[condition("PodScheduled", "False", "Unschedulable", why)])
    assert pod_status(unschedulable) == Starting("Unschedulable", why)


def test_what_a_pod_waits_for_is_the_newest_warning_about_it() -> None:
    creating = pod(containerStatuses=[function(waiting("ContainerCreating"))])
    events = [
        event("FailedCreatePodSandBox", "old", at="2026-01-01T00:00:01Z"),
        event("FailedMount", 'configmap "x" not found', at="2026-01-01T00:00:03Z"),
        event("FailedMount", "of an earlier pod of that name", at="2026-01-01T00:00:09Z", uid="u-0"),
        {**event("Pulled", "fine", at="2026-01-01T00:00:08Z"), "type": "Normal"},
    ]
    assert pod_status(creating, events) == Starting("FailedMount", 'configmap "x" not found')
    assert pod_status(creating) == Starting("ContainerCreating")


def test_newer_events_have_their_time_elsewhere() -> None:
    old = event("Old", "old", at="2026-01-01T00:00:05Z")
    new = {**event("New", "new"), "lastTimestamp": None, "eventTime": "2026-01-01T00:00:06.000000Z"}
    series = {**event("Again", "again"), "series": {"lastObservedTime": "2026-01-01T00:00:07.000000Z"}}
    assert pod_status(pod(), [new, old]) == Starting("New", "new")
    assert pod_status(pod(), [new, series, old]) == Starting("Again", "again")


def test_containers_that_a_template_adds_hold_nothing_up_but_are_named() -> None:
    mesh = {"name": "mesh", "state": waiting("ImagePullBackOff", "Back-off pulling image")}
    status = pod_status(pod("Running", podIP="10.0.0.7", containerStatuses=[mesh, function(RUNNING)]))
    assert status == Starting("ImagePullBackOff", 'container "mesh": Back-off pulling image', "10.0.0.7")
    done = {"name": "job", "state": ended(0, "Completed")}
    assert pod_status(pod("Running", containerStatuses=[done, function(RUNNING)])) == Starting("Running")


def test_a_container_that_was_started_again_says_how_it_ended_before() -> None:
    status = with_function(RUNNING, "Running", lastState=ended(137, "OOMKilled"), restartCount=1)
    assert status == Starting("OOMKilled", 'container "function" ended with exit code 137 (OOMKilled)')


# Waiting for ever


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff"])
@pytest.mark.parametrize(
    ("message", "may_pass"),
    [
        (f'rpc error: code = NotFound desc = failed to pull and unpack image "{IMAGE}": {IMAGE}: not found', False),
        (f'Back-off pulling image "{IMAGE}": ErrImagePull: {IMAGE}: not found', False),
        ("rpc error: code = Unknown desc = pull access denied, repository does not exist", False),
        ('failed to authorize: failed to fetch oauth token: unexpected status from GET request to "x": 401', False),
        ("unexpected status from HEAD request to https://example.com/v2/x: 403 Forbidden", False),
        ("no match for platform in manifest: not found", False),
        ("tls: failed to verify certificate: x509: certificate signed by unknown authority", False),
        ("http: server gave HTTP response to HTTPS client", False),
        ('rpc error: code = Unknown desc = Head "https://example.com/v2": dial tcp 10.0.0.1:443: i/o timeout', True),
        ("dial tcp: lookup example.com: no such host", True),
        ("dial tcp 10.0.0.1:5000: connect: connection refused", True),
        ("unexpected status from HEAD request to https://example.com/v2/x: 503 Service Unavailable", True),
        ("toomanyrequests: You have reached your pull rate limit", True),
        ("429 Too Many Requests", True),
        ("pull QPS exceeded", True),
        ("failed to extract layer: write: no space left on device", True),
        ("rpc error: code = Unknown desc = something that nobody foresaw", True),
        (f'Back-off pulling image "{IMAGE}"', True),
    ],
)
def test_a_pull_that_failed_may_pass_or_not_by_what_happened(reason: str, message: str, may_pass: bool) -> None:
    status = failed(with_function(waiting(reason, message)))
    assert (status.reason, status.message) == (reason, f'container "function": {message}')
    assert status.may_pass == may_pass
    assert "pull secret" in status.advice


def test_an_older_kubelets_event_says_why_the_pull_failed() -> None:
    found = pod(containerStatuses=[function(waiting("ImagePullBackOff", f'Back-off pulling image "{IMAGE}"'))])
    why = f'Failed to pull image "{IMAGE}": rpc error: code = NotFound desc = {IMAGE}: not found'
    events = [
        event("Failed", why, at="2026-01-01T00:00:01Z"),
        event("Failed", "Error: ImagePullBackOff", at="2026-01-01T00:00:02Z"),
    ]
    assert failed(pod_status(found)).may_pass
    status = failed(pod_status(found, events))
    assert (status.message, status.may_pass) == (f'container "function": {why}', False)
    of_another = event("Failed", why.replace(IMAGE, "example.com/mesh:v1"))
    assert failed(pod_status(found, [of_another])) == failed(pod_status(found))


@pytest.mark.parametrize(
    ("said", "reason", "message", "may_pass"),
    [
        (["Error: ErrImagePull", f"{PULL}: 401 Unauthorized"], "ErrImagePull", f"{PULL}: 401 Unauthorized", False),
        ([f"{PULL}: i/o timeout"], "ErrImagePull", f"{PULL}: i/o timeout", True),
        (['Error: configmap "x" not found'], "Failed", 'configmap "x" not found', False),
        (["Error: failed to sync: timed out"], "Failed", "failed to sync: timed out", True),
    ],
)
def test_an_event_says_that_a_container_does_not_start_before_its_status_does(
    said: list[str], reason: str, message: str, may_pass: bool
) -> None:
    found = pod(initContainerStatuses=[COPIED], containerStatuses=[function(waiting("PodInitializing"))])
    events = [about(event("Failed", text), "spec.containers{function}") for text in said]
    status = failed(pod_status(found, events))
    assert (status.reason, status.message) == (reason, f'container "function": {message}')
    assert status.may_pass == may_pass
    assert status.advice


def test_an_event_of_another_container_or_of_one_that_runs_decides_nothing() -> None:
    found = pod(initContainerStatuses=[COPIED], containerStatuses=[function(waiting("PodInitializing"))])
    beside = about(event("Failed", "Error: it does not start"), "spec.containers{mesh}")
    only_backing_off = about(event("Failed", "Error: ImagePullBackOff"), "spec.containers{function}")
    assert isinstance(pod_status(found, [beside, only_backing_off]), Starting)
    runs = pod(initContainerStatuses=[COPIED], containerStatuses=[function(RUNNING)])
    earlier = about(event("Failed", "Error: configmap not found"), "spec.containers{function}")
    assert isinstance(pod_status(runs, [earlier]), Starting)


@pytest.mark.parametrize(
    ("reason", "message", "may_pass"),
    [
        ("InvalidImageName", 'Failed to apply default image tag "X": invalid reference format', False),
        ("ErrImageNeverPull", "Container image is not present with pull policy of Never", False),
        ("CreateContainerConfigError", 'secret "timeout" not found', False),
        ("CreateContainerConfigError", "container has runAsNonRoot and image will run as root", False),
        ("CreateContainerConfigError", "failed to sync secret cache: timed out waiting for the condition", True),
        ("CreateContainerError", "no command specified", False),
        ("CreateContainerError", "context deadline exceeded", True),
        ("CreateContainerError", 'failed to reserve container name: name "x" is reserved for "y"', True),
        ("RunContainerError", 'exec: "/wrapper-server-tools/wrapper-server": no such file or directory', False),
        ("ImageInspectError", "", True),
    ],
)
def test_a_container_that_cannot_be_made(reason: str, message: str, may_pass: bool) -> None:
    status = failed(with_function(waiting(reason, message)))
    assert (status.reason, status.may_pass) == (reason, may_pass)
    assert status.message == f'container "function": {message or "no more is said"}'


# Ended


def test_the_wrappers_last_words_are_the_reason() -> None:
    words = "wrapper-server: the entrypoint /usr/bin/no-such-function cannot be executed: there is no such file\n"
    expected = f'container "function" ended with exit code 1: {words.strip()}'
    for status in (
        with_function(ended(1, message=words), "Failed"),
        with_function(ended(1, message=words), "Running"),
        with_function(waiting("CrashLoopBackOff", "back-off 10s"), "Running", lastState=ended(1, message=words)),
    ):
        assert (failed(status).message, failed(status).may_pass) == (expected, False)
    assert failed(status).reason == "CrashLoopBackOff"
    assert failed(with_function(ended(1), "Failed")).reason == "Error"


@pytest.mark.parametrize(
    ("code", "reason", "message", "may_pass", "expected"),
    [
        (0, "Completed", "", True, "ended with exit code 0"),
        (2, "Error", "unknown flag", False, "ended with exit code 2: unknown flag"),
        (137, "OOMKilled", "", True, "ended with exit code 137 (OOMKilled)"),
        (137, "Error", "", True, "ended with exit code 137"),
        (143, "Error", "", True, "ended with exit code 143"),
        (137, "ContainerStatusUnknown", "gone", True, "ended with exit code 137 (ContainerStatusUnknown): gone"),
        (128, "StartError", "exec format error", False, "ended with exit code 128 (StartError): exec format error"),
        (128, "StartError", "context deadline exceeded", True, "(StartError): context deadline exceeded"),
        (127, "ContainerCannotRun", "no such file", False, "(ContainerCannotRun): no such file"),
    ],
)
def test_ends(code: int, reason: str, message: str, may_pass: bool, expected: str) -> None:
    status = failed(with_function(ended(code, reason, message), "Running"))
    assert (status.reason, status.may_pass) == (reason, may_pass)
    assert status.message.startswith('container "function" ')
    assert status.message.endswith(expected)


def test_a_signal_is_named_where_the_runtime_tells_it() -> None:
    status = failed(with_function({"terminated": {"exitCode": 0, "signal": 9}}))
    assert (status.reason, status.message) == ("Error", 'container "function" was ended by signal 9')


def test_too_little_memory_comes_with_what_to_do_and_in_a_loop_it_does_not_pass() -> None:
    once = failed(with_function(ended(137, "OOMKilled"), "Failed"))
    loop = failed(with_function(waiting("CrashLoopBackOff"), "Running", lastState=ended(137, "OOMKilled")))
    assert (once.may_pass, loop.may_pass) == (True, False)
    assert once.advice == loop.advice == "raise resources.limits.memory of the function in --pod-cache-config"


def test_a_crash_loop_of_which_nothing_is_known() -> None:
    status = failed(with_function(waiting("CrashLoopBackOff", "back-off 5m0s restarting failed container")))
    assert status.message == 'container "function": back-off 5m0s restarting failed container'
    assert not status.may_pass


# Init containers


@pytest.mark.parametrize(
    ("state", "fields", "reason", "message"),
    [
        (ended(1, message="cp: no such file"), {}, "Error", "ended with exit code 1: cp: no such file"),
        (waiting("CrashLoopBackOff"), {"lastState": ended(1)}, "CrashLoopBackOff", "ended with exit code 1"),
        (waiting("ErrImagePull", "x: not found"), {}, "ErrImagePull", "x: not found"),
    ],
)
def test_an_init_container_that_fails_fails_the_pod(
    state: JsonObject, fields: JsonObject, reason: str, message: str
) -> None:
    copy: JsonObject = {"name": "copy-wrapper-server", "state": state, **fields}
    statuses = [function(waiting("PodInitializing"))]
    status = failed(pod_status(pod(initContainerStatuses=[copy], containerStatuses=statuses)))
    assert status.reason == reason
    assert status.message.startswith('init container "copy-wrapper-server"')
    assert status.message.endswith(message)


def test_a_sidecar_that_ended_is_started_again_by_kubernetes() -> None:
    mesh: JsonObject = {"name": "mesh", "state": ended(1)}
    found = pod(initContainerStatuses=[mesh], containerStatuses=[function(waiting("PodInitializing"))])
    assert failed(pod_status(found)).reason == "Error"
    sidecar: JsonObject = {**found, "spec": {"initContainers": [{"name": "mesh", "restartPolicy": "Always"}]}}
    assert pod_status(sidecar) == Starting("PodInitializing")


# The pod as a whole


@pytest.mark.parametrize(
    ("reason", "may_pass"),
    [
        ("Evicted", True),
        ("DeadlineExceeded", True),
        ("NodeLost", True),
        ("NodeAffinity", True),
        ("OutOfcpu", True),
        ("UnexpectedAdmissionError", True),
        ("Terminated", True),
        ("SysctlForbidden", False),
        ("PodOSNotSupported", False),
    ],
)
def test_what_happens_to_the_pod_counts_more_than_how_its_containers_ended(reason: str, may_pass: bool) -> None:
    killed = [function(ended(137, "ContainerStatusUnknown"))]
    status = failed(pod_status(pod("Failed", reason=reason, message="so it was", containerStatuses=killed)))
    assert (status.reason, status.message, status.may_pass) == (reason, "so it was", may_pass)


def test_a_lost_node_is_known_before_the_pod_has_failed() -> None:
    ready = [condition("Ready", "True")]
    found = pod("Running", reason="NodeLost", message="Node n is unresponsive", podIP="10.0.0.7", conditions=ready)
    assert failed(pod_status(found)) == Failed("NodeLost", "Node n is unresponsive", True)


def test_a_disruption_is_a_reason_where_the_pod_names_none() -> None:
    target = condition("DisruptionTarget", "True", "PreemptionByScheduler", "preempting to accommodate a higher one")
    status = failed(pod_status(pod("Failed", conditions=[target], containerStatuses=[function(ended(143))])))
    assert (status.reason, status.may_pass) == ("PreemptionByScheduler", True)
    over = pod("Failed", conditions=[{**target, "status": "False"}], containerStatuses=[function(ended(1))])
    assert failed(pod_status(over)).reason == "Error"


@pytest.mark.parametrize("phase", ["Failed", "Succeeded"])
def test_an_end_without_any_reason_is_an_end(phase: str) -> None:
    status = failed(pod_status(pod(phase)))
    assert (status.reason, status.may_pass) == (phase, True)


def test_a_deleted_pod_is_terminating_whatever_else_it_says() -> None:
    ready = [condition("Ready", "True"), condition("DisruptionTarget", "True", "DeletionByTaintManager", "node away")]
    found = pod("Running", podIP="10.0.0.7", conditions=ready, containerStatuses=[function(RUNNING)])
    found["metadata"] = {**as_object(found["metadata"]), "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert pod_status(found) == Terminating("DeletionByTaintManager", "node away")
    assert pod_status({**found, "status": {"phase": "Failed"}}) == Terminating()


def test_long_words_are_cut_and_keep_both_ends() -> None:
    status = failed(with_function(ended(1, message="first" + "x" * 5000 + "last"), "Failed"))
    assert len(status.message) <= 1010
    assert "first" in status.message
    assert status.message.endswith("last")


_names = [
    "metadata", "status", "phase", "reason", "message", "conditions", "type", "containerStatuses", "name", "state",
    "initContainerStatuses", "waiting", "terminated", "running", "exitCode", "lastState", "podIP", "spec", "uid",
    "initContainers", "deletionTimestamp", "involvedObject", "series",
]  # fmt: skip
_words = [
    "function",
    "Ready",
    "True",
    "Failed",
    "Running",
    "CrashLoopBackOff",
    "ErrImagePull",
    "Warning",
    "u-1",
    "10.0.0.7",
]
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(_words),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(_names), inner, max_size=5),
    max_leaves=30,
)


@given(_json, st.lists(_json, max_size=3))
def test_no_object_breaks_the_reading(value: object, events: list[object]) -> None:
    found = as_object(value)
    status = pod_status(found, [as_object(each) for each in events])
    if as_object(found.get("metadata")).get("deletionTimestamp"):
        assert isinstance(status, Terminating)
    if isinstance(status, Ready):
        assert status.address
    if isinstance(status, Starting | Failed):
        assert status.reason


# Last words that only the log has


def seen(state: JsonObject, *, init: JsonObject = COPIED, **fields: object) -> JsonObject:
    return pod("Pending", initContainerStatuses=[init], containerStatuses=[function(state, **fields)])


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (seen(ended(1)), SilentEnd("function", is_previous=False)),
        (seen(ended(1, message=" \n")), SilentEnd("function", is_previous=False)),
        (seen(ended(0, "Completed")), SilentEnd("function", is_previous=False)),
        (seen(waiting("CrashLoopBackOff"), lastState=ended(1)), SilentEnd("function", is_previous=True)),
        (seen(RUNNING, lastState=ended(137, "OOMKilled")), SilentEnd("function", is_previous=True)),
        (seen(waiting("PodInitializing"), init={"name": "i", "state": ended(2)}), SilentEnd("i", is_previous=False)),
        (seen(ended(1, message="said why")), None),
        (seen(waiting("CrashLoopBackOff"), lastState=ended(1, message="said why")), None),
        (seen(RUNNING), None),
        (seen(waiting("CrashLoopBackOff")), None),
        ({}, None),
    ],
)
def test_whose_log_may_say_more(found: JsonObject, expected: SilentEnd | None) -> None:
    assert silent_end(found) == expected


def test_the_last_lines_of_the_log_are_as_good_as_a_message() -> None:
    for found, place in (
        (seen(ended(3)), 'container "function"'),
        (seen(waiting("CrashLoopBackOff"), lastState=ended(3)), 'container "function"'),
        (seen(waiting("PodInitializing"), init={"name": "i", "state": ended(3)}), 'init container "i"'),
    ):
        silent = silent_end(found)
        assert silent is not None
        status = failed(pod_status(with_last_words(found, silent, "no such file")))
        assert status.message == f"{place} ended with exit code 3: no such file"
        assert "no such file" not in failed(pod_status(found)).message
