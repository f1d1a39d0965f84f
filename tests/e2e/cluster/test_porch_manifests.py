"""Deployments as Porch has them, with nothing but the two images changed: each becomes ready and serves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest

from e2e.cluster.test_deployment import EMBEDDED, LIST, deployed, image, images
from support.calls import served, wish
from support.client import Answer, Client
from support.deployed import RUNNER, WRAPPER, Deployed
from support.manifests import FUNCTIONS, SYSTEM, Manifest

__all__ = ["deployed", "image", "images"]
# With the tests of the Deployment, whose images these are.
pytestmark = pytest.mark.xdist_group("deployment")

NAME = "function-runner"
_RBAC = "rbac.authorization.k8s.io"
_METRICS = {
    "OTEL_METRICS_EXPORTER": "prometheus",
    "OTEL_EXPORTER_PROMETHEUS_HOST": "0.0.0.0",
    "OTEL_EXPORTER_PROMETHEUS_PORT": "9464",
    "OTEL_TRACES_EXPORTER": "none",
    "OTEL_SERVICE_NAME": "porch-function-runner",
}
_LIMITS = ("--max-parallel-pods-per-function=2", "--max-waitlist-length=1")
_TEMPLATE_FLAGS = (
    "--max-grpc-retries=2",
    "--base-pod-template-name=base-pod-template",
    "--base-service-template-name=base-service-template",
    "--skip-template-creation",
    "--template-wait-timeout=30s",
)
_CONFIG_GROUP = "config.porch.kpt.dev"
_OBJECT_RULES: tuple[Manifest, ...] = (
    {"apiGroups": [_CONFIG_GROUP], "resources": ["functionconfigs"], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [_CONFIG_GROUP], "resources": ["functionconfigs/status"], "verbs": ["get", "update", "patch"]},
    *(
        {"apiGroups": [group], "resources": [kind], "verbs": ["get", "list", "watch", "create", "update", "patch"]}
        for group, kind in (("", "podtemplates"), (_CONFIG_GROUP, "servicetemplates"))
    ),
)


@dataclass(frozen=True)
class Version:
    """What differs between the versions."""

    home: str
    flags: tuple[str, ...] = ()
    has_config: bool = True
    cache_config: str = ""
    """The file of functions to warm up; {image} stands for one."""
    user: int | None = 10001
    has_metrics: bool = True
    rules: tuple[Manifest, ...] = ()
    """Of the role, beside those of all versions."""


VERSIONS = {
    "1.5.6": Version("", user=None, cache_config="{image}: 30m\n", has_metrics=False),
    "1.5.7": Version("/home/nonroot", cache_config="{image}: 30m\n"),
    "1.5.8": Version(
        "/home/nonroot", _LIMITS, cache_config="- name: {image}\n  timeToLive: 30m\n  maxWaitlistLength: 2\n"
    ),
    "April 2026": Version("/home/nonroot", (*_LIMITS, *_TEMPLATE_FLAGS), has_config=False, rules=_OBJECT_RULES),
}


def manifests(version: Version, image: str) -> list[Manifest]:
    """The fields of Porch's own manifests, written anew."""
    account = {"kind": "ServiceAccount", "name": "porch-fn-runner", "namespace": SYSTEM}
    role: Manifest = {"apiGroup": _RBAC, "kind": "Role", "name": "porch-function-executor"}
    verbs = ["create", "delete", "patch", "get", "watch", "list"]
    services = [verb for verb in verbs if verb != "patch"]
    rules = [
        {"apiGroups": [""], "resources": ["pods"], "verbs": verbs},
        {"apiGroups": [""], "resources": ["services", "endpoints"], "verbs": services},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create", "delete", "update", "get"]},
        *version.rules,
    ]
    found: list[Manifest] = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "porch-fn-runner", "namespace": SYSTEM}},
        {"apiVersion": f"{_RBAC}/v1", "kind": "Role", "metadata": _named(role["name"], FUNCTIONS), "rules": rules},
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": _named(role["name"], FUNCTIONS),
            "subjects": [account],
            "roleRef": role,
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": _named(NAME, SYSTEM),
            "spec": {"selector": {"app": NAME}, "ports": [{"port": 9445, "targetPort": 9445}]},
        },
        _deployment(version),
    ]
    if version.cache_config:
        data = {"pod-cache-config.yaml": version.cache_config.format(image=image)}
        metadata = _named("pod-cache-config", SYSTEM)
        found.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data})
    return found


def _deployment(version: Version) -> Manifest:
    files = [f"--config={version.home}/config.yaml"] if version.has_config else []
    files.append(f"--functions={version.home}/functions")
    command = [f"{version.home}/server", *files, f"--pod-namespace={FUNCTIONS}", "--max-request-body-size=6291456"]
    variables = {"WRAPPER_SERVER_IMAGE": WRAPPER, **(_METRICS if version.has_metrics else {})}
    container: Manifest = {
        "name": NAME,
        "image": RUNNER,
        "imagePullPolicy": "IfNotPresent",
        "command": [*command, *version.flags, "--warm-up-pod-cache=true"],
        "env": [{"name": name, "value": value} for name, value in variables.items()],
        "ports": [{"containerPort": 9445}, {"containerPort": 9464, "name": "metrics"}],
        "readinessProbe": {"exec": {"command": [f"{version.home}/grpc-health-probe", "-addr", "localhost:9445"]}},
        "resources": {"requests": {"memory": "64Mi", "cpu": "125m"}},
    }
    if version.user is not None:
        user = version.user
        container["securityContext"] = {"runAsNonRoot": True, "runAsUser": user, "runAsGroup": user}
    spec: Manifest = {"serviceAccountName": "porch-fn-runner", "containers": [container]}
    if version.cache_config:
        container["volumeMounts"] = [{"mountPath": "/pod-cache-config", "name": "pod-cache-config-volume"}]
        spec["volumes"] = [{"name": "pod-cache-config-volume", "configMap": {"name": "pod-cache-config"}}]
    template = {"metadata": {"labels": {"app": NAME}}, "spec": spec}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": _named(NAME, SYSTEM),
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": NAME}}, "template": template},
    }


def _named(name: str, namespace: str) -> Manifest:
    return {"name": name, "namespace": namespace}


@pytest.mark.parametrize("version", VERSIONS.values(), ids=VERSIONS)
async def test_a_deployment_of_porch_serves_with_our_images(deployed: Deployed, image: str, version: Version) -> None:
    await asyncio.to_thread(deployed.install, manifests(version, image))
    async with Client(deployed.address) as client:
        local: Answer = await client.evaluate(EMBEDDED, LIST)
        assert local.code == "OK", local.message
        served(await client.evaluate(image, wish()))
    log = deployed.log
    assert log.count('event="flag ignored"') == (
        len(_TEMPLATE_FLAGS) if "--skip-template-creation" in version.flags else 0
    )
    assert "Traceback" not in log
