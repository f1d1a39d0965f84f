"""What a Service that exists says of itself: whether it is of a function pod, and which pod it leads to.

The counterpart of `pod_manifest` for Services. A Service is of a function pod if it has our label, or is as Porch's own
runner makes them: its name is the pod id that it selects by our label, and nothing else, and stands in the label
app.kubernetes.io/name. No other Service has facts, and none is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from krm_runner.core.function_container import WRAPPER_PORT
from krm_runner.core.json_object import JsonObject, as_list, as_object, as_text
from krm_runner.core.pod_manifest import POD_ID_LABEL

_NAME_LABEL = "app.kubernetes.io/name"
_NO_ADDRESS = "None"
"""What Kubernetes writes where a Service is headless."""


@dataclass(frozen=True, slots=True)
class ServiceFacts:
    """One Service. Text that is missing is empty."""

    name: str
    uid: str
    cluster_ip: str
    is_going: bool
    """It was deleted, and somebody's finalizer holds it."""
    selector: Mapping[str, str]
    has_port: bool
    """The wrapper's."""

    def leads_to(self, pod: JsonObject) -> bool:
        """Whether calls to this Service reach this pod, or the pod of this manifest."""
        labels = as_object(as_object(pod.get("metadata")).get("labels"))
        is_selected = all(labels.get(name) == value for name, value in self.selector.items())
        return self.has_port and POD_ID_LABEL in self.selector and is_selected


def service_facts_of(service: JsonObject) -> ServiceFacts | None:
    """The facts of a Service as the API server has it; None when it is not of a function pod."""
    metadata, spec = as_object(service.get("metadata")), as_object(service.get("spec"))
    name, labels = as_text(metadata.get("name")), as_object(metadata.get("labels"))
    selector = {key: as_text(value) for key, value in as_object(spec.get("selector")).items()}
    is_of_porch = selector == {POD_ID_LABEL: name} and labels.get(_NAME_LABEL) == name
    if not as_text(labels.get(POD_ID_LABEL)) and not is_of_porch:
        return None
    address = as_text(spec.get("clusterIP"))
    ports = map(as_object, as_list(spec.get("ports")))
    return ServiceFacts(
        name=name,
        uid=as_text(metadata.get("uid")),
        cluster_ip="" if address == _NO_ADDRESS else address,
        is_going=bool(metadata.get("deletionTimestamp")),
        selector=selector,
        has_port=any(port.get("port") == WRAPPER_PORT and port.get("protocol", "TCP") == "TCP" for port in ports),
    )


def service_deletion(uid: str) -> JsonObject:
    """The body of a deletion that hits this Service only, and not another that has its name by now."""
    return {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
