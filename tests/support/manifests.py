"""The manifests of deploy/ as they reach a cluster: rendered by kubectl's kustomize and by helm."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from cluster.layout import KUBERNETES_VERSION, Layout
from support.machine import ROOT, missing

Manifest = dict[str, Any]
DEPLOY = ROOT / "deploy"
CHART = DEPLOY / "helm" / "krm-runner"
HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
SYSTEM, FUNCTIONS = "porch-system", "porch-fn-system"
# An overlay, and the values that ask the chart for the same.
VARIANTS = {
    "base": (),
    "overlays/private-registries": ("privateRegistries.enabled=true",),
    "overlays/private-registries-tls": ("privateRegistries.enabled=true", "privateRegistries.tls.enabled=true"),
    "overlays/mesh": ("mesh.enabled=true",),
    "overlays/high-availability": ("highAvailability.enabled=true",),
    "overlays/no-network-policy": ("networkPolicy.enabled=false",),
    "overlays/default-service-account": ("serviceAccount.bindDefault=true",),
    "overlays/own-registry": (
        "images.runner=registry.example.com/krm-runner/function-runner:0.1.0",
        "images.wrapper=registry.example.com/krm-runner/wrapper-server:0.1.0",
    ),
}


def helm() -> Path:
    """The program, built from its module once."""
    version = HELM.rpartition("@")[2]
    directory = Path.home() / ".cache" / "krm-runner" / "tools" / f"helm-{version}"
    if not (directory / "helm").exists():
        if shutil.which("go") is None:
            missing("no Go toolchain: cannot build helm")
        staged = directory.with_suffix(f".{os.getpid()}")
        variables = os.environ | {"GOBIN": str(staged), "CGO_ENABLED": "0"}
        command = ["nice", "go", "install", "-trimpath", "-ldflags=-s -w", HELM]
        subprocess.run(command, check=True, timeout=1800, env=variables)
        directory.mkdir(parents=True, exist_ok=True)
        (staged / "helm").rename(directory / "helm")
        staged.rmdir()
    return directory / "helm"


def kubectl(layout: Layout) -> Path:
    """The cluster's own."""
    program = layout.binaries / "kubectl"
    if not program.exists():
        missing("Kubernetes is not built: `make cluster-up` does it, once")
    return program


def kustomized(program: Path, directory: Path) -> list[Manifest]:
    done = subprocess.run(
        [program, "kustomize", directory], capture_output=True, text=True, timeout=60, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


def charted(values: Sequence[str] = (), *, namespace: str = SYSTEM) -> list[Manifest]:
    settings = [word for value in values for word in ("--set", value)]
    command = [str(helm()), "template", "krm-runner", str(CHART), "--namespace", namespace]
    # As it is built here it believes in a Kubernetes of long ago.
    command += ["--kube-version", KUBERNETES_VERSION, *settings]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return documents(done.stdout)


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
