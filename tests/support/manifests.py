"""The manifests of deploy/ as they reach a cluster: rendered by kubectl's kustomize and by helm."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from cluster.layout import KUBERNETES_VERSION, Layout
from support.go_tools import HELM, go_tool
from support.machine import ROOT, missing

Manifest = dict[str, Any]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "krm-runner"
SYSTEM, FUNCTIONS = "porch-system", "porch-fn-system"
# An overlay, and the values that ask the chart for the same.
VARIANTS = {
    "base": (),
    "overlays/private-registries": ("privateRegistries.enabled=true",),
    "overlays/private-registries-tls": ("privateRegistries.enabled=true", "privateRegistries.tls.enabled=true"),
    "overlays/tls": ("tls.enabled=true",),
    "overlays/mutual-tls": ("tls.enabled=true", "tls.clientCa=true"),
    "overlays/caller-tokens": ("callerTokens.enabled=true",),
    "overlays/pod-tokens": ("podTokens.enabled=true",),
    "overlays/mesh": ("mesh.enabled=true",),
    "overlays/high-availability": ("highAvailability.enabled=true",),
    "overlays/no-network-policy": ("networkPolicy.enabled=false",),
    "overlays/restricted-functions": ("functionPods.enforceRestricted=true",),
    "overlays/default-service-account": ("serviceAccount.bindDefault=true",),
    "overlays/wrapper-image-volume": ("wrapperDelivery=image-volume",),
    "overlays/own-registry": (
        "images.runner=registry.example.com/krm-runner/function-runner:0.1.0",
        "images.wrapper=registry.example.com/krm-runner/wrapper-server:0.1.0",
    ),
}


def helm() -> Path:
    return go_tool(HELM)


def kubectl(layout: Layout) -> Path:
    """The cluster's own."""
    program = layout.binaries / "kubectl"
    if not program.exists():
        missing("Kubernetes is not built: `make cluster-up` does it, once")
    return program


def kustomized(program: Path, directory: Path) -> list[Manifest]:
    return documents(_kustomize(program, directory))


@functools.cache
def _kustomize(program: Path, directory: Path) -> str:
    done = subprocess.run(
        [program, "kustomize", directory], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def charted(values: Sequence[str] = (), *, namespace: str = SYSTEM) -> list[Manifest]:
    return documents(_chart(tuple(values), namespace))


@functools.cache
def _chart(values: tuple[str, ...], namespace: str) -> str:
    settings = [word for value in values for word in ("--set", value)]
    command = [str(helm()), "template", "krm-runner", str(CHART), "--namespace", namespace]
    # As it is built here it believes in a Kubernetes of long ago.
    command += ["--kube-version", KUBERNETES_VERSION, *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def moved(manifests: Sequence[Manifest], *, system: str, functions: str) -> list[Manifest]:
    """The same, in other namespaces."""
    text = yaml.safe_dump_all(manifests)
    return documents(text.replace(FUNCTIONS, functions).replace(SYSTEM, system))


def documents(text: str) -> list[Manifest]:
    return [cast(Manifest, document) for document in yaml.safe_load_all(text) if document]


def by_name(manifests: Sequence[Manifest]) -> dict[str, Manifest]:
    """Kind, namespace and name → the object."""
    named = {key(manifest): manifest for manifest in manifests}
    assert len(named) == len(manifests), "an object stands there twice"
    return named


def key(manifest: Manifest) -> str:
    metadata = manifest["metadata"]
    return f"{manifest['kind']} {metadata.get('namespace', '')}/{metadata['name']}"


def pod_of(manifests: dict[str, Manifest]) -> Manifest:
    """The runner's pod template."""
    return cast(Manifest, manifests[f"Deployment {SYSTEM}/function-runner"]["spec"]["template"])
