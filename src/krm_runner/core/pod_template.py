"""What function pods and their Services are made from: the built-in template, or the one that an operator wrote.

A template is a Pod and a Service, read, checked against the contract and freed of what only a server may set; the
function itself is put in by `pod_manifest`. The contract: a container named `function` whose command starts the wrapper
server, so that its image can be replaced by the function's and its arguments be continued with the function's
entrypoint; and a Service that has the wrapper's port. Everything else is the operator's business: what Kubernetes
refuses, it refuses in its own words.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

from krm_runner.core import kubernetes_yaml
from krm_runner.core.built_in_template import built_in_pod, built_in_service
from krm_runner.core.errors import ConfigurationError
from krm_runner.core.function_container import FUNCTION_CONTAINER, WRAPPER_PORT
from krm_runner.core.json_object import JsonObject, as_list, as_object, as_text
from krm_runner.core.kubernetes_yaml import text_of
from krm_runner.core.pod_token import TokenKey, keyed_version
from krm_runner.core.wrapper_delivery import WrapperDelivery

_MAX_NODES = 10_000
"""Few enough to be read on the event loop."""
_POD_KEY, _SERVICE_KEY = "template", "serviceTemplate"
_TOP = ("apiVersion", "kind", "metadata", "spec", "status", "annotations")
_SET_BY_OTHERS = (
    "name", "generateName", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp",
    "deletionTimestamp", "deletionGracePeriodSeconds", "managedFields", "selfLink",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """A Pod and a Service that keep the contract."""

    pod: JsonObject
    service: JsonObject
    version: str
    """Pods of another version get no new calls."""
    warnings: tuple[str, ...] = ()
    token_key: TokenKey | None = None
    """What makes the tokens of its pods, if they want any; see `with_tokens`."""

    def with_tokens(self, key: TokenKey | None) -> PodTemplate:
        """The same for pods that want tokens; to a runner without the key it is another."""
        return self if key is None else replace(self, version=keyed_version(self.version, key), token_key=key)


def built_in_template(*, delivery: WrapperDelivery, max_message_bytes: int) -> PodTemplate:
    """The one that counts when no other is named; its version changes with everything that goes into a pod."""
    pod, service = built_in_pod(delivery), built_in_service()
    content = json.dumps([pod, service, delivery.image, max_message_bytes], sort_keys=True)
    return PodTemplate(pod, service, hashlib.sha256(content.encode()).hexdigest()[:16])


def template_of(config_map: JsonObject) -> PodTemplate:
    """The template in a ConfigMap as the API server has it; ConfigurationError says all that is wrong with it.

    A ConfigMap without a Service template is one from before there were Services: it gets the built-in one.
    """
    metadata, data = as_object(config_map.get("metadata")), as_object(config_map.get("data"))
    source = f'ConfigMap "{as_text(metadata.get("name"))}"'
    version = as_text(metadata.get("resourceVersion"))
    if not version:
        raise ConfigurationError(f"{source}: it has no resourceVersion")
    if not as_text(data.get(_POD_KEY)).strip():
        raise ConfigurationError(f'{source}: it has no key "{_POD_KEY}" with a Pod (--function-pod-template)')
    pod = _Manifest(as_text(data.get(_POD_KEY)), f"{source}, {_POD_KEY}", "Pod")
    faults = [*pod.faults, *_pod_faults(pod.body)]
    warnings = pod.warnings
    service = built_in_service()
    if as_text(data.get(_SERVICE_KEY)).strip():
        given = _Manifest(as_text(data.get(_SERVICE_KEY)), f"{source}, {_SERVICE_KEY}", "Service")
        faults += [*given.faults, *_service_faults(given.body)]
        warnings += given.warnings
        service = given.body
    if faults:
        raise ConfigurationError(f"{source}: {'; '.join(faults)}")
    return PodTemplate(pod.body, service, version, tuple(warnings))


class _Manifest:
    """One of the two, as it can be sent to the API server once it has a name."""

    def __init__(self, text: str, source: str, kind: str) -> None:
        self.faults: list[str] = []
        self.warnings: list[str] = []
        self._kind = kind
        found = as_object(kubernetes_yaml.load(text, source=source, max_nodes=_MAX_NODES))
        if (found.get("apiVersion"), found.get("kind")) != ("v1", kind):
            self.faults.append(f"the {kind} must say apiVersion: v1 and kind: {kind}")
        for name in found:
            if name not in _TOP:
                self.warnings.append(f'{source}: "{name}" is no field of a {kind} and is ignored')
        self.body: JsonObject = {
            "apiVersion": "v1",
            "kind": kind,
            "metadata": self._metadata(found, source),
            "spec": as_object(found.get("spec")),
        }

    def _metadata(self, found: JsonObject, source: str) -> JsonObject:
        given = as_object(found.get("metadata"))
        metadata = {name: value for name, value in given.items() if name not in _SET_BY_OTHERS}
        annotations = self._texts(given.get("annotations"), "metadata.annotations")
        if "annotations" in found:
            # As the specification's own example has them.
            self.warnings.append(f"{source}: annotations belong into metadata; they are taken as if they were there")
            annotations = {**self._texts(found["annotations"], "annotations"), **annotations}
        return {**metadata, "labels": self._texts(given.get("labels"), "metadata.labels"), "annotations": annotations}

    def _texts(self, value: object, place: str) -> JsonObject:
        """Labels and annotations are text; YAML makes other things of `true` and `1`."""
        given = as_object(value)
        if value is not None and given is not value:
            self.faults.append(f"the {self._kind}'s {place} must be a mapping")
        texts: JsonObject = {}
        for name, entry in given.items():
            text = text_of(entry)
            if text is None:
                self.faults.append(f"the {self._kind}'s {place}: {name} must be text")
            else:
                texts[name] = text
        return texts


def _pod_faults(pod: JsonObject) -> Iterator[str]:
    spec = as_object(pod.get("spec"))
    containers = [as_object(container) for container in as_list(spec.get("containers"))]
    functions = [container for container in containers if container.get("name") == FUNCTION_CONTAINER]
    if len(functions) != 1:
        names = ", ".join(as_text(container.get("name")) or "one without a name" for container in containers)
        yield (
            f'the Pod must have one container named "{FUNCTION_CONTAINER}"; it has {names or "no containers"}'
            if not functions
            else f'the Pod has {len(functions)} containers named "{FUNCTION_CONTAINER}"'
        )
        return
    command, arguments = functions[0].get("command"), functions[0].get("args")
    place = f'container "{FUNCTION_CONTAINER}"'
    if not command or not _is_words(command):
        yield (
            f"{place} must have a command that starts the wrapper server, such as "
            "[/wrapper-server-tools/wrapper-server]: its image is replaced by the function's"
        )
    if arguments is not None and not _is_words(arguments):
        yield f"{place}: args must be a list of texts"
    elif "--" in as_list(arguments):
        yield f'{place}: args must not have "--": the function\'s entrypoint comes after it'


def _service_faults(service: JsonObject) -> Iterator[str]:
    spec = as_object(service.get("spec"))
    if spec.get("type") == "ExternalName":
        yield "the Service must be of type ClusterIP; an ExternalName leads to no pod"
    ports = [as_object(port) for port in as_list(spec.get("ports"))]
    if not any(port.get("port") == WRAPPER_PORT and port.get("protocol", "TCP") == "TCP" for port in ports):
        yield f"the Service must have the port {WRAPPER_PORT}"
    if not isinstance(spec.get("selector", {}), dict):
        yield "the Service's selector must be a mapping"


def _is_words(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in cast(list[object], value))
