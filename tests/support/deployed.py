"""The runner as a Deployment on the cluster: from its image, by the manifests of deploy/, as its own ServiceAccount.

Its image has one layer more than what is delivered: the CA of the test cluster's registries, as a site with a CA of its
own would add it. So the manifests are applied as they are, but for the names of images and namespaces.
"""

from __future__ import annotations

import dataclasses
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import yaml

from cluster.layout import Layout
from images.oci import Image, single_layer
from support.kube import Json, wait_until
from support.manifests import Manifest, kubectl, moved
from support.namespace import Namespace
from support.runner_image import built_runner_image
from support.server import listens

RUNNER, WRAPPER = "krm-runner/function-runner:0.1.0", "krm-runner/wrapper-server:0.1.0"
_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"


def runner_image(layout: Layout) -> Image:
    """What is delivered, and the CA of the cluster's registries."""
    image = built_runner_image().image
    authority = single_layer({_BUNDLE: layout.certificate("registry-ca").read_bytes()}, has_tmp=False)
    return dataclasses.replace(image, layers=(*image.layers, authority))


class Deployed:
    """One installation, in namespaces of the test's own."""

    def __init__(
        self, layout: Layout, system: Namespace, functions: Namespace, *, runner_image: str, wrapper_image: str
    ) -> None:
        self.system = system
        self.functions = functions
        self._layout = layout
        self._program = kubectl(layout)
        self._images = {RUNNER: runner_image, WRAPPER: wrapper_image}

    @property
    def images(self) -> tuple[str, str]:
        """The runner's and the wrapper's."""
        return self._images[RUNNER], self._images[WRAPPER]

    def adapted(self, manifests: Sequence[Manifest]) -> list[Manifest]:
        """With the test's images, in the test's namespaces."""
        text = yaml.safe_dump_all(moved(manifests, system=self.system.name, functions=self.functions.name))
        for name, image in self._images.items():
            text = text.replace(name, image)
        return [cast(Manifest, document) for document in yaml.safe_load_all(text) if document]

    def install(self, manifests: Sequence[Manifest]) -> None:
        """Apply, and wait until the runner is ready, and its Service leads there."""
        self.apply(*self.adapted(manifests))
        self.wait_for_rollout()
        wait_until(lambda: listens(self.address), what="the Service leads to the runner")

    def apply(self, *manifests: Manifest) -> None:
        self.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", text=yaml.safe_dump_all(manifests))

    def wait_for_rollout(self) -> None:
        self.kubectl("rollout", "status", "deployment/function-runner", "--timeout=120s", *self._in_system)

    def restart(self) -> None:
        """A rolling update that changes nothing."""
        self.kubectl("rollout", "restart", "deployment/function-runner", *self._in_system)

    def execute(self, *command: str) -> str:
        """In the runner's container."""
        return self.kubectl("exec", "deploy/function-runner", *self._in_system, "--", *command)

    @property
    def log(self) -> str:
        """Of all its pods, those that are ending included."""
        return self.kubectl("logs", "--selector=app=function-runner", "--tail=-1", *self._in_system)

    @property
    def address(self) -> str:
        """Of its Service, for who is in the cluster's network."""
        service = self.system.kube.read(self.system.path("services/function-runner"))
        return f"{service['spec']['clusterIP']}:9445"

    @property
    def name(self) -> str:
        """Of its Service, for who has the cluster's DNS."""
        return f"function-runner.{self.system.name}.svc.cluster.local:9445"

    def pods(self) -> list[Json]:
        """The function pods, without spares."""
        found = self.functions.kube.items(self.functions.path("pods"), labelSelector="fn.kpt.dev/image")
        return [pod for pod in found if pod["metadata"]["annotations"]["krm-runner/image"] != "spare"]

    def wait_for_log(self, words: str, *, seconds: float = 60) -> None:
        wait_until(lambda: words in self.log, what=f"the runner's log says: {words}", seconds=seconds)

    def kubectl(self, *arguments: str, text: str = "") -> str:
        command = [str(self._program), f"--kubeconfig={self._kubeconfig}", *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=180, check=False)
        assert done.returncode == 0, f"{' '.join(arguments[:3])}: {done.stderr}{done.stdout}"
        return done.stdout

    @property
    def _kubeconfig(self) -> Path:
        return self._layout.kubeconfig()

    @property
    def _in_system(self) -> tuple[str, ...]:
        return (f"--namespace={self.system.name}",)
