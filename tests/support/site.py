"""The pod runtime as it is installed on a cluster: a namespace for runners, one for their pods, accounts, templates.

Accounts have the rights that the documentation asks for, and no others. Runners are processes in the place of a pod.
"""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import yaml

from support.calls import reported, wish
from support.client import Client
from support.in_cluster import InCluster
from support.kube import ApiError, Json, wait_until
from support.namespace import Namespace
from support.processes import eventually
from support.runner import RunnerProcess
from support.server import listens

LABEL = "fn.kpt.dev/image"
RECLAIM_AFTER = "fn.kpt.dev/reclaim-after"
TEMPLATE_VERSION = "fn.kpt.dev/template-version"
ASKED_FOR = "krm-runner/image"
WRAPPER_PORT = 9446
RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}
_CHANGE = ("create", "get", "list", "watch", "patch", "delete")
_RBAC = "rbac.authorization.k8s.io"


Verbs = Mapping[str, tuple[str, ...]]
"""What may be done to resources, by their names."""


@dataclass(frozen=True)
class Rights:
    """What an account may do: in the namespace of the pods, and with the ConfigMaps of its own."""

    pods: tuple[str, ...] = _CHANGE
    services: tuple[str, ...] = _CHANGE
    secrets: tuple[str, ...] = ()
    config_maps: tuple[str, ...] = ("get", "list", "watch")
    evidence: bool = True
    """Events and logs."""


ALL_RIGHTS = Rights()


class Site:
    """One installation; every test has its own."""

    def __init__(
        self,
        system: Namespace,
        functions: Namespace,
        wrapper_image: str,
        place: Callable[[Namespace, str], InCluster],
        directory: Path,
        *,
        flags: Iterable[str] = (),
    ) -> None:
        """`flags` are those of every runner."""
        self.system = system
        self.functions = functions
        self.wrapper_image = wrapper_image
        self.runners: list[RunnerProcess] = []
        self._new_place = place
        self._directory = directory
        self._flags = tuple(flags)

    def account(self, name: str = "runner", rights: Rights = ALL_RIGHTS) -> InCluster:
        """A place for runners of a new account, once its rights are in force."""
        verbs = {"pods": rights.pods, "services": rights.services, "secrets": rights.secrets}
        if rights.evidence:
            verbs |= {"events": ("list",), "pods/log": ("get",)}
        return self.account_with(name, functions=verbs, own={"configmaps": rights.config_maps})

    def account_with(self, name: str = "runner", *, functions: Verbs, own: Verbs) -> InCluster:
        """The same by resource: where the functions are, and in the runner's own namespace."""
        self.system.create({"apiVersion": "v1", "kind": "ServiceAccount"}, name)
        self._grant(self.system, name, own)
        self._grant(self.functions, name, functions)
        place = self._new_place(self.system, name)
        last = functions["pods"][-1]
        wait_until(lambda: self._may(place.user, last, "pods"), what=f"the rights of {name} are in force")
        return place

    def grant(self, name: str, account: str, **verbs: tuple[str, ...]) -> None:
        """Verbs on resources in the namespace of the pods, to an account that is there already."""
        self.grant_all(name, account, verbs)

    def grant_all(self, name: str, account: str, verbs: Verbs) -> None:
        """The same for resources of any API group, written `functionconfigs.config.porch.kpt.dev`."""
        self._grant(self.functions, name, verbs, account=account)

    def start(
        self,
        place: InCluster,
        *flags: str,
        without: str = "exec",
        environment: Mapping[str, str] | None = None,
        waits: bool = True,
    ) -> RunnerProcess:
        """A runner there; it ends with the test."""
        flags = (f"--pod-namespace={self.functions.name}", "--log-level=3", "--front=auto", *self._flags, *flags)
        variables = {"WRAPPER_SERVER_IMAGE": self.wrapper_image, **place.environment, **(environment or {})}
        runner = RunnerProcess(*flags, without=without, prefix=place.prefix, environment=variables)
        self.runners.append(runner)
        if waits:
            runner.wait_for_line("event=serving")
        return runner

    def runner(self, *flags: str) -> RunnerProcess:
        """One with an account of its own."""
        return self.start(self.account(f"runner-{len(self.runners)}"), *flags)

    def pods(self) -> list[Json]:
        """Ours, those that are being deleted included."""
        return self.functions.kube.items(self.functions.path("pods"), labelSelector=LABEL)

    def services(self) -> list[Json]:
        return self.functions.kube.items(self.functions.path("services"), labelSelector=LABEL)

    def only_pod(self) -> Json:
        (pod,) = self.pods()
        return pod

    def living(self) -> list[Json]:
        """The pods that nobody is deleting."""
        return [pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]]

    def delete_pod(self, name: str, *, seconds: int = 0) -> None:
        """As anybody may do it; `seconds` of grace."""
        self.functions.kube.delete(self.functions.path(f"pods/{name}"), gracePeriodSeconds=seconds)

    def annotate(self, pod: str, **changes: str | None) -> None:
        """Set the time to reclaim after, or remove it with None; further annotations by keyword."""
        annotations = {RECLAIM_AFTER if key == "reclaim_after" else key: value for key, value in changes.items()}
        self.functions.kube.patch(self.functions.path(f"pods/{pod}"), {"metadata": {"annotations": annotations}})

    def reclaim_after(self, pod: str) -> str:
        """What it says now; empty when it says nothing."""
        found = self.functions.find(f"pods/{pod}")
        assert found is not None, f"pod {pod} is gone"
        return str(found["metadata"].get("annotations", {}).get(RECLAIM_AFTER, ""))

    def is_node_lost(self) -> bool:
        """Whether Kubernetes has noticed that the node does not report any more."""
        (node,) = self.functions.kube.items("/api/v1/nodes")
        return any(one["type"] == "Ready" and one["status"] == "Unknown" for one in node["status"]["conditions"])

    async def calls_of(self, *pods: Json) -> list[str]:
        """The calls that pods have noted, asked for at their own addresses, past every runner."""
        found: list[str] = []
        for pod in pods:
            address = f"{pod['status']['podIP']}:{WRAPPER_PORT}"
            await eventually(partial(listens, address), what=f"a wrapper listens at {address}")
            async with Client(address) as client:
                found += reported(await client.evaluate("example.com/any:v1", wish(report="yes")))
        return found

    def write_template(self, pod: object, service: object | None = None, name: str = "template") -> str:
        """A ConfigMap with a template, made or changed; its resourceVersion, which is the template's version."""
        data = {"template": _text(pod)} | ({} if service is None else {"serviceTemplate": _text(service)})
        try:
            made = self.system.create({"apiVersion": "v1", "kind": "ConfigMap", "data": data}, name)
        except ApiError as error:
            if error.status != 409:
                raise
            made = self.system.kube.patch(self.system.path(f"configmaps/{name}"), {"data": data})
        return str(made["metadata"]["resourceVersion"])

    def cache_config(self, *functions: Mapping[str, object], name: str = "pod-cache-config.yaml") -> Path:
        """The file of functions, written anew, in one step as a mounted ConfigMap changes."""
        path = self._directory / name
        temporary = path.with_suffix(f".{uuid.uuid4().hex[:6]}")
        temporary.write_text(yaml.safe_dump([dict(function) for function in functions]))
        os.replace(temporary, path)
        return path

    def close(self, *, failed: bool) -> None:
        """End the runners; of a failed test print what they have said."""
        for number, runner in enumerate(self.runners):
            with runner:
                pass
            if failed:
                print(f"--- runner {number}, exit code {runner.process.returncode}")
                print("\n".join(runner.lines[-200:]))

    def _grant(self, namespace: Namespace, name: str, verbs: Verbs, *, account: str = "") -> None:
        api = {"apiVersion": f"{_RBAC}/v1"}
        written: list[Json] = []
        for name_and_group, each in verbs.items():
            resource, _, group = name_and_group.partition(".")
            if each:
                written.append({"apiGroups": [group], "resources": [resource], "verbs": list(each)})
        namespace.create({**api, "kind": "Role", "rules": written}, name)
        subject = {"kind": "ServiceAccount", "name": account or name, "namespace": self.system.name}
        role: Json = {"apiGroup": _RBAC, "kind": "Role", "name": name}
        namespace.create({**api, "kind": "RoleBinding", "roleRef": role, "subjects": [subject]}, name)

    def _may(self, user: str, verb: str, resource: str) -> bool:
        what = {"namespace": self.functions.name, "verb": verb, "resource": resource}
        review: Json = {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "metadata": {}}
        answer = self.functions.kube.create({**review, "spec": {"user": user, "resourceAttributes": what}})
        return bool(answer["status"]["allowed"])


def _text(manifest: object) -> str:
    return manifest if isinstance(manifest, str) else json.dumps(manifest)
