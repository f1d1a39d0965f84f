"""How a spare becomes a function's pod: what is changed of it, and how its status reads from then on.

The first container of such a pod was the spare's. Until the kubelet has started the next one, what the status says of
the container is about something that nobody waits for; that it has ended, most of all, is no failure.
"""

from __future__ import annotations

from krm_runner.core.function_container import FUNCTION_CONTAINER, function_status
from krm_runner.core.image_metadata import ImageMetadata
from krm_runner.core.json_object import JsonObject, as_list, as_object, as_text
from krm_runner.core.kept_object import KeptObject
from krm_runner.core.pod_manifest import ASKED_FOR, RECLAIM_AFTER
from krm_runner.core.spare import COMMAND, RESTARTS, as_annotation

_NOT_YET: JsonObject = {"waiting": {"reason": "ContainerCreating"}}
NOT_STARTED = "NotStarted"
"""The reason of a pod that ended with the spare's container in its status; an event says more.

The function's container was not started; or the kubelet evicted the pod, and removed the container before it wrote the
last status.
"""
_NOT_STARTED = (
    "its status does not show the function's container: "
    "most likely the image could not be pulled, or the pod was evicted"
)
_MOST_DIGITS = 10


def conversion(pod: JsonObject, seen: KeptObject, image: ImageMetadata, *, reclaim_after: int) -> JsonObject | None:
    """A merge patch for a spare as it was seen, refused when it is another by now; None: this image does not do."""
    command = as_annotation(image.command)
    if not command:
        return None
    annotations = {
        ASKED_FOR: image.asked_for,
        COMMAND: command,
        RESTARTS: str(_restarts(function_status(as_object(pod.get("status"))))),
        RECLAIM_AFTER: str(reclaim_after),
    }
    containers = [
        {**container, "image": image.pinned} if container.get("name") == FUNCTION_CONTAINER else container
        for container in map(as_object, as_list(as_object(pod.get("spec")).get("containers")))
    ]
    metadata = {"uid": seen.uid, "resourceVersion": seen.resource_version, "annotations": annotations}
    return {"metadata": metadata, "spec": {"containers": containers}}


def is_converted(pod: JsonObject) -> bool:
    """Whether it was a spare once."""
    return bool(_annotations(pod).get(COMMAND))


def without_the_spare(pod: JsonObject) -> JsonObject:
    """The pod as its function's status has it; any other pod is returned as it is."""
    if not is_converted(pod):
        return pod
    status = dict(as_object(pod.get("status")))
    container = function_status(status)
    since = _restarts(container) - _number(as_text(_annotations(pod).get(RESTARTS)))
    state = as_object(container.get("state"))
    if since <= 0 and ("running" in state or "terminated" in state):
        _put(status, {**container, "state": _NOT_YET, "lastState": {}, "ready": False})
        conditions = map(as_object, as_list(status.get("conditions")))
        status["conditions"] = [each for each in conditions if each.get("type") not in ("Ready", "ContainersReady")]
        if status.get("phase") in ("Failed", "Succeeded") and not status.get("reason"):
            status |= {"phase": "Failed", "reason": NOT_STARTED, "message": _NOT_STARTED}
    elif container and (since <= 0 or (since == 1 and "waiting" not in state)):
        # The one before was the spare's.
        _put(status, {**container, "lastState": {}})
    return {**pod, "status": status}


def _annotations(pod: JsonObject) -> JsonObject:
    return as_object(as_object(pod.get("metadata")).get("annotations"))


def _put(status: JsonObject, function: JsonObject) -> None:
    containers = map(as_object, as_list(status.get("containerStatuses")))
    status["containerStatuses"] = [function if each.get("name") == FUNCTION_CONTAINER else each for each in containers]


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < _MOST_DIGITS else 0


def _restarts(container: JsonObject) -> int:
    count = container.get("restartCount")
    return count if isinstance(count, int) else 0
