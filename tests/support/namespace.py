"""One test's namespace: its pods, their ends and logs, its ServiceAccounts' tokens, and what to print when it fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from support.kube import ApiError, Json, Kube, wait_until

# What a pod may write, unless it says otherwise: a function that fills its disk is evicted.
STORAGE_LIMIT = "256Mi"


class Namespace:
    """Fresh, with its default ServiceAccount ready; its objects go with it."""

    def __init__(self, kube: Kube, name: str, labels: dict[str, str] | None = None) -> None:
        self.kube = kube
        self.name = name
        kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels or {}}})
        limits = {"type": "Container", "default": {"ephemeral-storage": STORAGE_LIMIT}}
        limits["defaultRequest"] = {"ephemeral-storage": "0"}
        self.create({"apiVersion": "v1", "kind": "LimitRange", "spec": {"limits": [limits]}}, "storage")

    def wait_for_service_account(self, name: str = "default") -> None:
        """Until then no pod can be created."""
        wait_until(lambda: self.find(f"serviceaccounts/{name}") is not None, what=f"ServiceAccount {name} is there")

    def create(self, manifest: Json, name: str | None = None) -> Json:
        """Any object, put into this namespace."""
        metadata = {"name": name} if name else {}
        return self.kube.create(
            {**manifest, "metadata": {**metadata, **manifest.get("metadata", {}), "namespace": self.name}}
        )

    def path(self, resource: str) -> str:
        """Of a core resource: `pods`, `pods/x`, `pods/x/status`."""
        return f"/api/v1/namespaces/{self.name}/{resource}"

    def find(self, resource: str) -> Json | None:
        try:
            return self.kube.read(self.path(resource))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def run(self, name: str, image: str, command: Sequence[str] = (), **fields: Any) -> Json:
        """Create a pod of one container, which is not restarted; `fields` are the container's, `pod` the pod's."""
        pod_fields: Json = fields.pop("pod", {})
        container = {"name": "main", "image": image, **({"command": list(command)} if command else {}), **fields}
        spec = {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 0,
            "automountServiceAccountToken": False,
            "containers": [container],
            **pod_fields,
        }
        labels = {"app": name}
        return self.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": labels}, "spec": spec}, name)

    def pod(self, name: str) -> Json:
        return self.kube.read(self.path(f"pods/{name}"))

    def wait_for_pod(self, name: str, condition: Callable[[Json], bool], *, what: str, seconds: float = 60) -> Json:
        """The pod, once the condition holds for it."""
        last: Json = {}

        def holds() -> bool:
            nonlocal last
            last = self.pod(name)
            return condition(last)

        wait_until(holds, what=f"pod {name} {what}", seconds=seconds)
        return last

    def wait_until_running(self, name: str) -> Json:
        """Ready, and with an address."""
        return self.wait_for_pod(name, is_ready, what="is ready")

    def wait_for_success(self, name: str) -> str:
        """The log of a pod that ended well."""
        ended = self.wait_for_pod(name, lambda pod: phase(pod) in ("Succeeded", "Failed"), what="ends")
        assert phase(ended) == "Succeeded", f"pod {name} failed: {self.logs(name)}"
        return self.logs(name)

    def logs(self, name: str, container: str = "main") -> str:
        return self.kube.text(self.path(f"pods/{name}/log?container={container}"))

    def events(self, **fields: str) -> list[Json]:
        selector = ",".join(f"{key}={value}" for key, value in fields.items())
        return self.kube.items(self.path("events"), **({"fieldSelector": selector} if selector else {}))

    def token(self, service_account: str = "default", seconds: int = 3600) -> str:
        """A real one, as the kubelet gets it for a pod."""
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
        answer = self.kube.request(
            "POST",
            self.path(f"serviceaccounts/{service_account}/token"),
            {**request, "spec": {"expirationSeconds": seconds}},
        )
        return str(answer["status"]["token"])

    def delete(self) -> None:
        """Begins and does not wait: a namespace with pods takes many seconds."""
        self.kube.delete(f"/api/v1/namespaces/{self.name}", propagationPolicy="Background", gracePeriodSeconds=0)

    def describe(self) -> str:
        """Events, statuses and logs: for a person who wonders why a test failed."""
        lines = [f"--- namespace {self.name}: events"]
        for event in self.events():
            about = event["involvedObject"]
            lines.append(f"{about['kind']}/{about['name']} {event['reason']}: {event.get('message', '')}")
        for pod in self.kube.items(self.path("pods")):
            lines += self._describe_pod(pod)
        return "\n".join(lines)

    def _describe_pod(self, pod: Json) -> list[str]:
        name, status = pod["metadata"]["name"], pod["status"]
        lines = [f"--- pod {name}: {phase(pod)} {status.get('reason', '')} {status.get('message', '')}".rstrip()]
        for state in container_states(pod):
            lines.append(f"container {state['name']}: {state['state']}, restarts: {state['restartCount']}")
            try:
                log = self.logs(name, state["name"])
            except ApiError as error:
                log = f"no log: {error}"
            lines += [f"  | {line}" for line in log.splitlines()[-30:]]
        return lines


def phase(pod: Json) -> str:
    return str(pod["status"].get("phase", ""))


def is_ready(pod: Json) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def container_states(pod: Json) -> list[Json]:
    """Init containers first."""
    found: list[Json] = pod["status"].get("initContainerStatuses", []) + pod["status"].get("containerStatuses", [])
    return found


def waiting_reasons(pod: Json) -> set[str]:
    """Why containers are not running, in the kubelet's words."""
    return {state["state"].get("waiting", {}).get("reason", "") for state in container_states(pod)} - {""}


def termination(pod: Json) -> Json:
    """How the first container ended, now or the last time."""
    (state, *_) = pod["status"]["containerStatuses"]
    ended: Json = state["state"].get("terminated") or state["lastState"].get("terminated") or {}
    return ended
