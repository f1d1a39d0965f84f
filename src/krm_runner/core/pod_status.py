"""How a pod is, from the object that the API server has of it.

Starting until Kubernetes says Ready, Failed as soon as it says that the pod will not get there, Terminating from the
moment somebody deletes it. Only the init containers and the function's own container decide: a container that a
template or a service mesh adds may come up later. What a Starting pod waits for comes along, for when its time is over;
once the wrapper runs, so does its address, for it can be asked itself before the kubelet's probe has looked.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from krm_runner.core.function_container import FUNCTION_CONTAINER, function_image, function_status
from krm_runner.core.json_object import JsonObject, as_list, as_object, as_text
from krm_runner.core.pod_conversion import NOT_STARTED, is_converted, without_the_spare
from krm_runner.core.pod_failure import Failed, excerpt, failure, may_pass


@dataclass(frozen=True, slots=True)
class Starting:
    """Not ready: not yet, or not any more because its probe fails; then the wrapper's own health counts."""

    reason: str
    message: str = ""
    address: str = ""
    """Of the pod, once the wrapper's container runs."""


@dataclass(frozen=True, slots=True)
class Ready:
    """Serves."""

    address: str


@dataclass(frozen=True, slots=True)
class Terminating:
    """Deleted: it gets no new calls, those that it has may still end."""

    reason: str = ""
    message: str = ""


PodStatus = Starting | Ready | Failed | Terminating


class _Warning(NamedTuple):
    """Of an event."""

    reason: str
    message: str
    place: str = ""
    """Which part of the pod it is about: `spec.containers{function}`."""


_PULL_REASONS = frozenset({"ErrImagePull", "ImagePullBackOff"})
_FAILED_PULL = "Failed to pull image "
_WAITING_FAILURES = {
    # Whether a retry may help when the text does not say.
    "ErrImagePull": True,
    "ImagePullBackOff": True,
    "RegistryUnavailable": True,
    "ImageInspectError": True,
    "ErrImageNeverPull": False,
    "InvalidImageName": False,
    "SignatureValidationFailed": False,
    "CreateContainerConfigError": False,
    "CreateContainerError": False,
    "PreCreateHookError": False,
    "PreStartHookError": False,
    "PostStartHookError": False,
    "RunContainerError": False,
}
_LASTING_POD_REASONS = frozenset(
    {"PodOSNotSupported", "PodOSSelectorNodeLabelDoesNotMatch", "SysctlForbidden", "AppArmor"}
)
_PASSING_ENDS = frozenset({"Completed", "OOMKilled", "ContainerStatusUnknown", "DeadlineExceeded", "Evicted"})
_EVICTED = "Evicted"
_SIGKILL, _SIGTERM = 128 + 9, 128 + 15


def pod_status(pod: JsonObject, events: Sequence[JsonObject] = ()) -> PodStatus:
    """The status of a pod; its events, where they may be read, say what the object itself leaves out."""
    pod = without_the_spare(pod)
    status = as_object(pod.get("status"))
    if as_object(pod.get("metadata")).get("deletionTimestamp"):
        return Terminating(*_why_it_goes(status))
    warnings = _warnings(pod, events)
    failed = _pod_failure(status) or _container_failure(pod, warnings) or _ended_without_a_reason(status)
    if failed is not None:
        return (_told_by_events(status, warnings) if failed.reason == NOT_STARTED else None) or failed
    address = as_text(status.get("podIP"))
    if _condition(status, "Ready").get("status") == "True" and address:
        return Ready(address)
    runs = "running" in as_object(function_status(status).get("state"))
    return Starting(*_waits_for(status, warnings), address=address if runs else "")


@dataclass(frozen=True, slots=True)
class SilentEnd:
    """A container that decides about its pod has ended, and its status does not have its last words: its log may."""

    container: str
    is_previous: bool
    """It was started again since, or will be: the log is that of the container before."""


def silent_end(pod: JsonObject) -> SilentEnd | None:
    """The first one that counts; None when there is none, or it has said why."""
    pod = without_the_spare(pod)
    for _, container in _deciding(pod):
        name, state = as_text(container.get("name")), as_object(container.get("state"))
        ended = as_object(state.get("terminated"))
        last = as_object(as_object(container.get("lastState")).get("terminated"))
        for end, is_previous in ((ended, False), (last, True)):
            if end:
                return None if as_text(end.get("message")).strip() else SilentEnd(name, is_previous)
    return None


def with_last_words(pod: JsonObject, silent: SilentEnd, words: str) -> JsonObject:
    """The pod as it would be had Kubernetes put the last lines of the log into its status."""
    pod = copy.deepcopy(pod)
    for _, container in _deciding(pod):
        if container.get("name") == silent.container:
            state = as_object(container.get("lastState" if silent.is_previous else "state"))
            as_object(state.get("terminated"))["message"] = words
    return pod


def _why_it_goes(status: JsonObject) -> tuple[str, str]:
    disruption = _condition(status, "DisruptionTarget")
    disruption = disruption if disruption.get("status") == "True" else {}
    reason = as_text(status.get("reason")) or as_text(disruption.get("reason"))
    return reason, excerpt(as_text(status.get("message")) or as_text(disruption.get("message")))


def _pod_failure(status: JsonObject) -> Failed | None:
    """What happened to the pod as a whole: evicted, its node lost or without room for it after all."""
    reason, message = _why_it_goes(status)
    if reason and (status.get("phase") == "Failed" or reason == "NodeLost"):
        return failure(reason, message or "no more is said", may_pass=reason not in _LASTING_POD_REASONS)
    return None


def _told_by_events(status: JsonObject, warnings: Sequence[_Warning]) -> Failed | None:
    said = next((each.message for each in warnings if each.reason == _EVICTED), None)
    if said is not None:
        return failure(_EVICTED, said, may_pass=True)
    return _failure_by_events(function_status(status), f'container "{FUNCTION_CONTAINER}"', warnings)


def _ended_without_a_reason(status: JsonObject) -> Failed | None:
    phase = as_text(status.get("phase"))
    if phase not in ("Failed", "Succeeded"):
        return None
    return failure(phase, as_text(status.get("message")) or "the pod has ended, and no reason is given", may_pass=True)


def _container_failure(pod: JsonObject, warnings: Sequence[_Warning]) -> Failed | None:
    for place, container in _deciding(pod):
        if failed := _failure_of(container, place, warnings):
            return failed
    return None


def _deciding(pod: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    """The statuses of the containers that decide about the pod, but for init containers that have done their part."""
    status = as_object(pod.get("status"))
    sidecars = _sidecars(pod)
    for container in map(as_object, as_list(status.get("initContainerStatuses"))):
        name = as_text(container.get("name"))
        ended = as_object(as_object(container.get("state")).get("terminated"))
        if not (ended and (ended.get("exitCode") == 0 or name in sidecars)):
            yield f'init container "{name}"', container
    yield f'container "{FUNCTION_CONTAINER}"', function_status(status)


def _failure_of(container: JsonObject, place: str, warnings: Sequence[_Warning]) -> Failed | None:
    state = as_object(container.get("state"))
    ended = as_object(state.get("terminated"))
    if ended:
        reason = as_text(ended.get("reason")) or "Error"
        return failure(reason, f"{place} {_end(ended)}", may_pass=_end_may_pass(ended))
    waiting = as_object(state.get("waiting"))
    reason, message = as_text(waiting.get("reason")), as_text(waiting.get("message"))
    if reason == "CrashLoopBackOff":
        last = as_object(as_object(container.get("lastState")).get("terminated"))
        message = f"{place} {_end(last)}" if last else f"{place}: {message}"
        return failure(reason, message, may_pass=False, cause=as_text(last.get("reason")))
    if reason not in _WAITING_FAILURES:
        return _failure_by_events(container, place, warnings) if waiting else None
    if reason in _PULL_REASONS:
        # Older kubelets only say that they back off; the event of the pull says why.
        pull = f'{_FAILED_PULL}"{as_text(container.get("image"))}"'
        pulls = (warning.message for warning in warnings if warning.message.startswith(pull))
        message = max(message, next(pulls, ""), key=len)
    passes = may_pass(message, unless_said=_WAITING_FAILURES[reason])
    return failure(reason, f"{place}: {message or 'no more is said'}", may_pass=passes)


def _failure_by_events(container: JsonObject, place: str, warnings: Sequence[_Warning]) -> Failed | None:
    """What the kubelet tells at once, and puts into the status when it looks at the pod again, some 15 s later."""
    about = f"{{{as_text(container.get('name'))}}}"
    said = [each.message for each in warnings if each.reason == "Failed" and each.place.endswith(about)]
    for message in said:
        if message.startswith(_FAILED_PULL):
            passes = may_pass(message, unless_said=_WAITING_FAILURES["ErrImagePull"])
            return failure("ErrImagePull", f"{place}: {message}", may_pass=passes)
    for message in said:
        cause = message.removeprefix("Error: ")
        if cause not in _PULL_REASONS:
            return failure("Failed", f"{place}: {cause}", may_pass=may_pass(cause, unless_said=False))
    return None


def _end(ended: JsonObject) -> str:
    code, signal = ended.get("exitCode"), ended.get("signal")
    text = f"was ended by signal {signal}" if signal else f"ended with exit code {code}"
    reason, message = as_text(ended.get("reason")), as_text(ended.get("message")).strip()
    if reason and reason not in ("Error", "Completed"):
        text += f" ({reason})"
    return f"{text}: {message}" if message else text


def _end_may_pass(ended: JsonObject) -> bool:
    """Ended from outside, or for want of memory that another call may not need; not by its own fault."""
    if as_text(ended.get("reason")) in _PASSING_ENDS or ended.get("exitCode") in (0, _SIGKILL, _SIGTERM):
        return True
    return as_text(ended.get("reason")) in ("StartError", "ContainerCannotRun") and may_pass(
        as_text(ended.get("message")), unless_said=False
    )


def _waits_for(status: JsonObject, warnings: Sequence[_Warning]) -> tuple[str, str]:
    """The most telling of what a pod that is not ready says: reason and message."""
    scheduled = _condition(status, "PodScheduled")
    if scheduled.get("status") == "False":
        return as_text(scheduled.get("reason")) or "Unschedulable", excerpt(as_text(scheduled.get("message")))
    for container in _other_containers(status):
        name = as_text(container.get("name"))
        failed = _failure_of(container, f'container "{name}"', warnings)
        if failed is not None and failed.reason != "Completed":
            return failed.reason, failed.message
    last = as_object(as_object(function_status(status).get("lastState")).get("terminated"))
    if last:
        return as_text(last.get("reason")) or "Error", excerpt(f'container "{FUNCTION_CONTAINER}" {_end(last)}')
    if warnings:
        return warnings[0].reason, excerpt(warnings[0].message)
    waiting = as_object(as_object(function_status(status).get("state")).get("waiting"))
    ready = _condition(status, "Ready")
    reason = as_text(waiting.get("reason")) or as_text(ready.get("reason")) or as_text(status.get("phase")) or "Pending"
    return reason, excerpt(as_text(waiting.get("message")) or as_text(ready.get("message")))


def _warnings(pod: JsonObject, events: Sequence[JsonObject]) -> list[_Warning]:
    """What went wrong with this pod, and not with another of its name; the newest first."""
    uid = as_text(as_object(pod.get("metadata")).get("uid"))
    found = [
        event
        for event in events
        if event.get("type") == "Warning" and as_object(event.get("involvedObject")).get("uid") in (uid, None)
    ]
    if is_converted(pod):
        # What is said of another image is of the time when it was a spare.
        image = f'{_FAILED_PULL}"{function_image(pod)}"'
        found = [each for each in found if not _about_another_image(as_text(each.get("message")), image)]
    found.sort(key=_time_of, reverse=True)
    return [
        _Warning(
            as_text(event.get("reason")) or "Warning",
            as_text(event.get("message")),
            as_text(as_object(event.get("involvedObject")).get("fieldPath")),
        )
        for event in found
    ]


def _about_another_image(message: str, pull: str) -> bool:
    return message.startswith(_FAILED_PULL) and not message.startswith(pull)


def _time_of(event: JsonObject) -> str:
    series = as_object(event.get("series"))
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return next((as_text(time) for time in times if as_text(time)), "")


def _condition(status: JsonObject, kind: str) -> JsonObject:
    conditions = map(as_object, as_list(status.get("conditions")))
    return as_object(next((condition for condition in conditions if condition.get("type") == kind), None))


def _other_containers(status: JsonObject) -> Iterator[JsonObject]:
    for container in map(as_object, as_list(status.get("containerStatuses"))):
        if container.get("name") != FUNCTION_CONTAINER:
            yield container


def _sidecars(pod: JsonObject) -> frozenset[str]:
    """Init containers that go on running, and are started again when they end."""
    containers = map(as_object, as_list(as_object(pod.get("spec")).get("initContainers")))
    return frozenset(as_text(each.get("name")) for each in containers if each.get("restartPolicy") == "Always")
