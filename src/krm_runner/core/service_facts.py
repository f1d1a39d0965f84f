"""What a Service that exists says of itself: whose it is, and which pod it leads to.

The counterpart of `pod_manifest` for Services. One without our label has no facts: it is nobody's business.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from krm_runner.core.function_container import WRAPPER_PORT
from krm_runner.core.json_object import JsonObject, as_list, as_object, as_text
from krm_runner.core.pod_manifest import POD_ID_LABEL

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
    """The facts of a Service as the API server has it; None when it does not have our label."""
    metadata, spec = as_object(service.get("metadata")), as_object(service.get("spec"))
    if not as_text(as_object(metadata.get("labels")).get(POD_ID_LABEL)):
        return None
    address = as_text(spec.get("clusterIP"))
    ports = map(as_object, as_list(spec.get("ports")))
    return ServiceFacts(
        name=as_text(metadata.get("name")),
        uid=as_text(metadata.get("uid")),
        cluster_ip="" if address == _NO_ADDRESS else address,
        is_going=bool(metadata.get("deletionTimestamp")),
        selector={name: as_text(value) for name, value in as_object(spec.get("selector")).items()},
        has_port=any(port.get("port") == WRAPPER_PORT and port.get("protocol", "TCP") == "TCP" for port in ports),
    )


def service_deletion(uid: str) -> JsonObject:
    """The body of a deletion that hits this Service only, and not another that has its name by now."""
    return {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": uid}}
