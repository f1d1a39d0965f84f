"""A function's pod and Service, ready to be created: a template, and the function put into it.

What the template says stays; what makes the pod this function's (name, label, annotations, image, arguments, resources)
is put over it. `pod_facts` reads the same things back.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

from krm_runner.core import pull_secret
from krm_runner.core.function_container import FUNCTION_CONTAINER, wrapper_arguments
from krm_runner.core.json_object import JsonObject, as_list, as_object
from krm_runner.core.pod_template import PodTemplate
from krm_runner.core.pod_token import TOKEN_VARIABLE
from krm_runner.core.resources import NO_RESOURCES, Resources
from krm_runner.core.spare import COMMAND, COMMAND_VARIABLE, PodImage, Spare

POD_ID_LABEL = "fn.kpt.dev/image"
RECLAIM_AFTER = "fn.kpt.dev/reclaim-after"
TEMPLATE_VERSION = "fn.kpt.dev/template-version"
SAFE_TO_EVICT = "cluster-autoscaler.kubernetes.io/safe-to-evict"
ASKED_FOR = "krm-runner/image"
"""The image as it was asked for, in its canonical form: which calls a pod serves, even when the registry is away."""
TOKEN_NONCE = "krm-runner/token-nonce"  # noqa: S105 - the name of an annotation
"""What a pod's token is made of, beside its id and a key that is not here."""


@dataclass(frozen=True, slots=True)
class FunctionPod:
    """What is put into a template."""

    pod_id: str
    namespace: str
    image: PodImage
    max_message_bytes: int
    reclaim_after: int
    """In unix seconds; see `reclaim_time`."""
    resources: Resources = NO_RESOURCES
    pull_secret: str = ""
    """The name of a Secret, where there is one."""
    token_nonce: str = ""
    """A random text for its token; of no use when the template has no key."""


@dataclass(frozen=True, slots=True)
class Manifests:
    """What is to be created, both under the pod's id."""

    pod: JsonObject
    service: JsonObject


def reclaim_time(*, unix_now: float, ttl: float) -> int:
    """When a pod that was used just now may be collected; never before its TTL is over."""
    return math.ceil(unix_now + ttl)


def render(template: PodTemplate, function: FunctionPod) -> Manifests:
    """The pod and the Service; the template is left as it is."""
    return Manifests(_pod(template, function), _service(template, function))


def _pod(template: PodTemplate, function: FunctionPod) -> JsonObject:
    pod = copy.deepcopy(template.pod)
    metadata = _metadata(pod, function)
    annotations = as_object(metadata.get("annotations"))
    metadata["annotations"] = {
        SAFE_TO_EVICT: "true",
        **annotations,
        RECLAIM_AFTER: str(function.reclaim_after),
        TEMPLATE_VERSION: template.version,
        ASKED_FOR: function.image.asked_for,
        **({COMMAND: ""} if isinstance(function.image, Spare) else {}),
        **({TOKEN_NONCE: function.token_nonce} if template.token_key else {}),
    }
    spec = as_object(pod.get("spec"))
    for kind in ("initContainers", "containers"):
        for container in as_list(spec.get(kind)):
            # So that the last lines of a failed container's log are in its status: the runner may not read logs.
            as_object(container).setdefault("terminationMessagePolicy", "FallbackToLogsOnError")
    for container in as_list(spec.get("containers")):
        if as_object(container).get("name") == FUNCTION_CONTAINER:
            _put_function(as_object(container), function)
            if template.token_key is not None:
                token = template.token_key.token(pod_id=function.pod_id, nonce=function.token_nonce)
                _put_variable(as_object(container), TOKEN_VARIABLE, value=token.reveal())
    pod = {**pod, "metadata": metadata, "spec": spec}
    return pull_secret.attach(pod, function.pull_secret) if function.pull_secret else pod


def _put_function(container: JsonObject, function: FunctionPod) -> None:
    image = function.image
    if isinstance(image, Spare):
        _leave_function_out(container)
    command = None if isinstance(image, Spare) else image.command
    arguments = wrapper_arguments(max_message_bytes=function.max_message_bytes, command=command)
    container["image"] = image.pinned
    container["args"] = [*as_list(container.get("args")), *arguments]
    resources = function.resources.over(container.get("resources"))
    if resources:
        container["resources"] = resources


def _leave_function_out(container: JsonObject) -> None:
    """It is said later what to execute; until then there is nothing that a probe could find."""
    field = {"fieldRef": {"fieldPath": f"metadata.annotations['{COMMAND}']"}}
    _put_variable(container, COMMAND_VARIABLE, valueFrom=field)
    for probe in ("readinessProbe", "livenessProbe", "startupProbe"):
        container.pop(probe, None)
    # That of the tag `latest`, if the spare's image has it, would be the function's as well.
    container.setdefault("imagePullPolicy", "IfNotPresent")


def _put_variable(container: JsonObject, name: str, **source: object) -> None:
    others = [entry for entry in as_list(container.get("env")) if as_object(entry).get("name") != name]
    container["env"] = [*others, {"name": name, **source}]


def _service(template: PodTemplate, function: FunctionPod) -> JsonObject:
    service = copy.deepcopy(template.service)
    spec = as_object(service.get("spec"))
    spec["selector"] = {**as_object(spec.get("selector")), POD_ID_LABEL: function.pod_id}
    return {**service, "metadata": _metadata(service, function), "spec": spec}


def _metadata(manifest: JsonObject, function: FunctionPod) -> JsonObject:
    metadata = as_object(manifest.get("metadata"))
    labels = {**as_object(metadata.get("labels")), POD_ID_LABEL: function.pod_id}
    return {**metadata, "name": function.pod_id, "namespace": function.namespace, "labels": labels}
