"""A real runner with the rights of the base manifests, on a real API server: they are enough, and none is too many.

There is no node here: pods are created and stay as they are, unless the test plays the kubelet.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster.layout import Layout
from krm_runner.core.rights import RIGHTS, Need, Place
from support.client import Answer, Client
from support.installation import BaseInstallation
from support.manifests import SYSTEM
from support.runner import RunnerProcess

ACCOUNT = "porch-fn-runner"
IMAGE = "example.com/functions/some:v1"
DIGEST = "5" * 64
POD = f"some-v1-1-{DIGEST[:8]}"
LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
LABEL = "fn.kpt.dev/image"
RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "runAsNonRoot": True,
    "runAsUser": 65532,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


class Scene:
    """The base manifests, and runners with their account."""

    def __init__(self, layout: Layout, directory: Path, stack: ExitStack) -> None:
        # Outside of a cluster the runner looks for its template in this namespace.
        self.base = BaseInstallation(layout, directory, system=SYSTEM)
        self._directory = directory
        self._stack = stack
        self._audit_log = layout.audit_log
        self._began = layout.audit_log.stat().st_size

    def runner(self, *flags: str) -> RunnerProcess:
        """With the flags of the base, but for what takes minutes."""
        mapped = {"images": [{"image": IMAGE, "digest": f"sha256:{DIGEST}", "entrypoint": ["/function"]}]}
        (self._directory / "images.yaml").write_text(json.dumps(mapped))
        runner = RunnerProcess(
            f"--pod-namespace={self.base.functions}",
            "--function-pod-template=kpt-function-eval-pod-template",
            f"--image-map={self._directory / 'images.yaml'}",
            f"--pod-cache-config={self._directory / 'none.yaml'}",
            "--scan-interval=1s",
            "--pod-start-timeout=3s",
            "--log-level=3",
            *flags,
            without="exec",
            environment={
                "KUBECONFIG": str(self.base.kubeconfig(ACCOUNT)),
                "KUBERNETES_SERVICE_HOST": "",
                "WRAPPER_SERVER_IMAGE": "example.com/wrapper:v1",
            },
        )
        self._stack.enter_context(runner)
        runner.wait_for_line("event=serving")
        return runner

    def requests(self) -> set[tuple[str, str, int]]:
        """Verb, resource and status of everything that the account has asked for, but for what is no resource."""
        user = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"
        found: set[tuple[str, str, int]] = set()
        with self._audit_log.open() as log:
            log.seek(self._began)
            for line in log:
                event = json.loads(line)
                reference = event.get("objectRef")
                if reference is None:
                    continue
                if event["user"]["username"] == user and reference.get("namespace") in (
                    self.base.functions,
                    SYSTEM,
                    None,
                ):
                    parts = (reference.get("resource", ""), reference.get("subresource", ""))
                    found.add((event["verb"], "/".join(filter(None, parts)), event["responseStatus"]["code"]))
        return found

    def pod(self, name: str, labels: dict[str, str], annotations: dict[str, str] | None = None) -> None:
        """Somebody's."""
        container = {"name": "main", "image": "example.com/any:v1", "securityContext": RESTRICTED}
        metadata = {"name": name, "namespace": self.base.functions, "labels": labels, "annotations": annotations or {}}
        self.base.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}})

    def service(self, name: str, labels: dict[str, str]) -> None:
        """Somebody's."""
        metadata = {"name": name, "namespace": self.base.functions, "labels": labels}
        spec = {"ports": [{"port": 9446}], "selector": {LABEL: name}}
        self.base.apply({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec})


@pytest.fixture
def scene(api_server: Layout, tmp_path: Path) -> Iterator[Scene]:
    with ExitStack() as stack:
        yield Scene(api_server, tmp_path, stack)


async def call(runner: RunnerProcess, seconds: float = 20) -> Answer:
    async with Client(runner.address) as client:
        return await client.evaluate(IMAGE, LIST, timeout=seconds)


async def test_the_base_is_enough_and_what_is_refused_can_be_done_without(scene: Scene) -> None:
    scene.pod("expired", {LABEL: "expired"}, {"fn.kpt.dev/reclaim-after": str(int(time.time()) - 60)})
    scene.service("orphan", {LABEL: "orphan"})
    runner = scene.runner()
    answer = await call(runner)
    # Nobody starts pods here.
    assert (answer.code, answer.reason) == ("UNAVAILABLE", "POD_NOT_STARTED"), answer.message
    runner.wait_for_line('event="pod deleted".*pod=expired')
    runner.wait_for_line('event="service deleted".*service=orphan')
    refused = {(verb, resource) for verb, resource, status in scene.requests() if status in (401, 403)}
    # And whether an earlier version has left ConfigMaps behind, for one release.
    assert refused <= {("list", "nodes"), ("list", "configmaps")}
    used = {(verb, resource) for verb, resource, _ in scene.requests()} - {("list", "nodes")}
    granted = {(right.verb, right.resource) for right in RIGHTS if right.need in (Need.ALWAYS, Need.TEMPLATE)}
    assert used <= granted
    assert {("create", "pods"), ("create", "services"), ("delete", "pods"), ("delete", "services")} <= used
    assert {(verb, kind) for verb in ("list", "watch") for kind in ("pods", "services", "configmaps")} <= used


def test_rights_of_the_runners_own_namespace_are_for_its_template_alone() -> None:
    assert {right.resource for right in RIGHTS if right.place is Place.OWN} == {"configmaps"}
