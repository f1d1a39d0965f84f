"""The manifests of deploy/: kustomize and helm say the same, an API server accepts it, no more is granted than used."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import cast

import kubernetes_validate  # type: ignore[import-untyped] # pyright: ignore[reportMissingTypeStubs] - it has none
import pytest
import yaml

from cluster.layout import KUBERNETES_VERSION, Layout, full
from images.__main__ import version as wrapper_version
from images.function_runner import version
from krm_runner.core import function_table
from krm_runner.core.built_in_template import built_in_pod, built_in_service
from krm_runner.core.function_table import FunctionTable
from krm_runner.core.pod_cache_config import parse_pod_cache_config
from krm_runner.core.pod_template import template_of
from krm_runner.core.rights import Place, rights_needed
from krm_runner.core.spare import why_no_spares
from krm_runner.core.wrapper_delivery import InitContainer
from krm_runner.settings import parse_settings
from support.machine import ROOT
from support.manifests import (
    CHART,
    DEPLOY,
    FUNCTIONS,
    SYSTEM,
    VARIANTS,
    Manifest,
    by_name,
    charted,
    helm,
    key,
    kubectl,
    kustomized,
    pod_of,
)
from support.manifests import documents as read_documents

WRAPPER = "krm-runner/wrapper-server:0.1.0"
SEED = (ROOT / "deploy" / "examples" / "complete-example.yaml").read_text()
POD_IP = "10.0.0.7"
Render = Callable[[str], dict[str, Manifest]]


@pytest.fixture(scope="session")
def render() -> Render:
    program = kubectl(full())
    return lambda name: by_name(kustomized(program, DEPLOY / name))


@pytest.mark.parametrize("variant", VARIANTS)
def test_kustomize_and_helm_say_the_same(render: Render, variant: str) -> None:
    ours, theirs = render(variant), by_name(charted(VARIANTS[variant]))
    # Helm itself makes the namespace that it installs into.
    del ours[f"Namespace /{SYSTEM}"]
    assert sorted(theirs) == sorted(ours)
    for name, manifest in ours.items():
        assert _normal(theirs[name]) == _normal(manifest), name


def _normal(manifest: Manifest) -> Manifest:
    """Texts of YAML as what they say."""
    normal = copy.deepcopy(manifest)
    if normal["kind"] == "ConfigMap":
        normal["data"] = {name: yaml.safe_load(text) for name, text in normal["data"].items()}
    return normal


@pytest.mark.parametrize("variant", VARIANTS)
def test_every_object_keeps_the_schema_of_its_kind(render: Render, variant: str) -> None:
    release = ".".join(KUBERNETES_VERSION.removeprefix("v").split(".")[:2])
    for manifest in render(variant).values():
        kubernetes_validate.validate(manifest, release, strict=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_api_server_accepts_every_object(api_server: Layout, variant: str, tmp_path: Path) -> None:
    program = kubectl(api_server)
    for namespace in (SYSTEM, FUNCTIONS):
        # Namespaces must exist for a dry run of what is in them.
        made = _kubectl(program, api_server, "create", "namespace", namespace)
        assert made.returncode == 0 or "AlreadyExists" in made.stderr, made.stderr
    for name, manifests in (("kustomize", kustomized(program, DEPLOY / variant)), ("helm", charted(VARIANTS[variant]))):
        file = tmp_path / f"{name}.yaml"
        file.write_text(yaml.safe_dump_all(manifests))
        flags = ("--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts", "-f", str(file))
        done = _kubectl(program, api_server, "apply", *flags)
        assert done.returncode == 0, done.stderr
        assert "Warning" not in done.stderr, done.stderr
        assert len(done.stdout.splitlines()) == len(manifests)


def _kubectl(program: Path, layout: Layout, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(program), f"--kubeconfig={layout.kubeconfig()}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_the_pod_template_is_the_built_in_one(render: Render) -> None:
    config_map = render("base")[f"ConfigMap {SYSTEM}/kpt-function-eval-pod-template"]
    template = template_of({**config_map, "metadata": {**config_map["metadata"], "resourceVersion": "1"}})
    assert (template.pod, template.service) == (built_in_pod(InitContainer(WRAPPER)), built_in_service())
    assert template.warnings == ()


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if "wrapper-" not in variant])
def test_every_template_keeps_the_contract_and_has_the_runners_wrapper(render: Render, variant: str) -> None:
    manifests = render(variant)
    config_map = manifests[f"ConfigMap {SYSTEM}/kpt-function-eval-pod-template"]
    template = template_of({**config_map, "metadata": {**config_map["metadata"], "resourceVersion": "1"}})
    assert template.warnings == ()
    assert why_no_spares(template.pod, _environment(manifests)["WRAPPER_SERVER_IMAGE"]) == ""


def test_components_over_an_own_registry_keep_its_images(tmp_path: Path) -> None:
    relative = os.path.relpath(DEPLOY, tmp_path)
    overlay = {
        "resources": [f"{relative}/overlays/own-registry"],
        "components": [f"{relative}/components/{name}" for name in ("mesh", "high-availability", "tls")],
    }
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    text = yaml.safe_dump_all(kustomized(kubectl(full()), tmp_path))
    assert "image: krm-runner/" not in text
    assert text.count("registry.example.com/krm-runner/wrapper-server:0.1.0") == 2, "the variable and the template"


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_runner_takes_its_arguments(render: Render, variant: str) -> None:
    manifests = render(variant)
    (container,) = pod_of(manifests)["spec"]["containers"]
    environment = _environment(manifests)
    arguments = [word.replace("$(POD_IP)", environment.get("POD_IP", "")) for word in container["args"]]
    settings = parse_settings(arguments, environment)
    assert settings.pod is not None
    assert settings.pod.namespace == FUNCTIONS
    assert settings.pod.spare_pods == 1
    template = f"ConfigMap {SYSTEM}/kpt-function-eval-pod-template"
    assert settings.pod.wrapper_delivery == (variant.partition("/wrapper-")[2] or "init-container")
    if settings.pod.wrapper_delivery == "init-container":
        assert settings.pod.template_config_map in key(manifests[template])
    else:
        assert (settings.pod.template_config_map, template in manifests) == ("", False)
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert str(settings.pod.cache_config.parent) in mounts
    assert not settings.registries.enabled or str(settings.registries.auth_secret_path.parent) in mounts
    assert not settings.registries.tls_enabled or str(settings.registries.tls_secret_path) in mounts
    assert pod_of(manifests)["spec"]["terminationGracePeriodSeconds"] > settings.server.shutdown_timeout
    text = manifests[f"ConfigMap {SYSTEM}/pod-cache-config"]["data"][settings.pod.cache_config.name]
    assert parse_pod_cache_config(text.encode(), source="", default_prefix="").warnings == ()
    assert settings.exec is not None
    assert str(settings.exec.config.parent) in mounts
    text = manifests[f"ConfigMap {SYSTEM}/functions-config"]["data"][settings.exec.config.name]
    assert function_table.parse(text.encode(), source="", default_prefix="") == FunctionTable({})


def _environment(manifests: dict[str, Manifest]) -> dict[str, str]:
    (container,) = pod_of(manifests)["spec"]["containers"]
    # The only field that is referred to is the pod's address.
    return {variable["name"]: variable.get("value", POD_IP) for variable in container["env"]}


def test_the_deployment_has_everything_of_the_specifications(render: Render) -> None:
    (seed,) = read_documents(SEED)
    ours = copy.deepcopy(render("base")[key(seed)])
    (theirs,) = seed["spec"]["template"]["spec"]["containers"]
    (container,) = ours["spec"]["template"]["spec"]["containers"]
    assert (ours["metadata"], ours["spec"]["selector"]) == (seed["metadata"], seed["spec"]["selector"])
    for name in ("name", "livenessProbe", "readinessProbe", "resources"):
        assert container[name] == theirs[name]
    assert set(theirs["args"]) <= set(container["args"])
    assert theirs["ports"][0].items() <= container["ports"][0].items()


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_runners_pod_is_restricted(render: Render, variant: str) -> None:
    spec = pod_of(render(variant))["spec"]
    assert spec["securityContext"].items() >= {"runAsNonRoot": True, "runAsUser": 65532}.items()
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not spec["enableServiceLinks"]
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
    assert {next(iter(set(volume) - {"name"})) for volume in spec["volumes"]} <= {"configMap", "emptyDir", "secret"}
    (container,) = spec["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_namespace_is_enforced_only_where_that_is_asked_for(render: Render, variant: str) -> None:
    """Porch's own pods may be in either of them."""
    labels = {name: render(variant)[f"Namespace /{name}"]["metadata"]["labels"] for name in (SYSTEM, FUNCTIONS)}
    levels = {name: found.get("pod-security.kubernetes.io/enforce") for name, found in labels.items()}
    is_asked_for = variant == "overlays/restricted-functions"
    assert levels == {SYSTEM: None, FUNCTIONS: "restricted" if is_asked_for else None}
    assert {found["pod-security.kubernetes.io/warn"] for found in labels.values()} == {"restricted"}


def test_the_network_lets_only_the_runner_in_and_nothing_out(render: Render) -> None:
    policy = render("base")[f"NetworkPolicy {FUNCTIONS}/function-pods"]["spec"]
    assert policy["podSelector"] == {}
    assert (policy["policyTypes"], policy["egress"]) == (["Ingress", "Egress"], [])
    (rule,) = policy["ingress"]
    assert rule["ports"] == [{"protocol": "TCP", "port": 9446}]
    (source,) = rule["from"]
    assert source["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": SYSTEM}
    assert source["podSelector"]["matchLabels"] == {"app": "function-runner"}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_roles_grant_what_is_used_and_no_more(render: Render, variant: str) -> None:
    manifests = render(variant)
    assert not [name for name in manifests if name.startswith("ClusterRole")]
    granted: dict[tuple[str, str], set[str]] = {}
    for manifest in manifests.values():
        for rule in manifest["rules"] if manifest["kind"] == "Role" else ():
            (group,) = rule["apiGroups"]
            for resource in rule["resources"]:
                place = (manifest["metadata"]["namespace"], f"{resource}.{group}".removesuffix("."))
                granted[place] = granted.get(place, set()) | set(rule["verbs"])
                if resource in ("configmaps", "secrets") and rule["verbs"] != ["create"]:
                    assert rule.get("resourceNames"), f"{resource} of any name"
    expected: dict[tuple[str, str], set[str]] = {}
    for right in rights_needed(
        template="wrapper-" not in variant,
        private_registries="private-registries" in variant,
        function_configs=True,
    ):
        place = (SYSTEM if right.place is Place.OWN else FUNCTIONS, right.resource)
        expected.setdefault(place, set()).add(right.verb)
    assert granted == expected


def test_versions_are_those_of_the_project(render: Render) -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version()
    (container,) = pod_of(render("base"))["spec"]["containers"]
    assert container["image"] == f"krm-runner/function-runner:{version()}"
    assert WRAPPER.endswith(f":{wrapper_version()}")


def test_the_charts_values_are_all_in_its_schema_and_used() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    # Refused with what to use instead.
    retired = {"announcements"}
    assert set(schema["properties"]) - {"global"} - retired == set(values)
    templates = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    used = set(re.findall(r"\.Values\.(\w+)", templates))
    assert used - retired == set(values)


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ("images.runner=no-tag", "runner"),
        ("functionNamespace=Upper", "functionNamespace"),
        ("podTtl=forever", "podTtl"),
        ("unknown=1", "unknown"),
        ("extraArgs[0]=nonsense", "extraArgs"),
        ("highAvailability.replicas=1", "replicas"),
        ("wrapperDelivery=by-hand", "wrapperDelivery"),
        ("wrapperDelivery=config-map", "use init-container, and spare pods: set sparePods"),
        ("announcements.enabled=true", "set sparePods"),
        ("sparePods=-1", "sparePods"),
        ("wrapperDelivery=image-volume,mesh.enabled=true", "wrapperDelivery"),
        ("tls.clientCa=true", "tls.clientCa"),
        ("wrapperDelivery=image-volume,functionPods.runtimeClassName=gvisor", "wrapperDelivery"),
    ],
)
def test_the_chart_refuses_what_makes_no_sense(wrong: str, word: str) -> None:
    done = subprocess.run(
        [helm(), "template", "x", CHART, "--kube-version", KUBERNETES_VERSION, "--set", wrong],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode != 0
    assert word in done.stderr


def test_values_that_change_things(render: Render) -> None:
    values = (
        "functionPods.runtimeClassName=gvisor", "extraArgs[0]=--retry-lost-calls=false", "images.pullSecrets[0]=mine",
        "podCacheConfig[0].name=set-labels:v0.2", "podCacheConfig[0].timeToLive=5m", "functionNamespace=other",
        "functions[0].function=set-namespace-v0.4.1", "functions[0].images[0]=set-namespace:v0.4.1", "sparePods=0",
    )  # fmt: skip
    manifests = by_name(charted(values))
    config_map = manifests[f"ConfigMap {SYSTEM}/kpt-function-eval-pod-template"]
    template = template_of({**config_map, "metadata": {**config_map["metadata"], "resourceVersion": "1"}})
    assert cast(Manifest, template.pod["spec"])["runtimeClassName"] == "gvisor"
    spec = pod_of(manifests)["spec"]
    assert spec["imagePullSecrets"] == [{"name": "mine"}]
    assert {"--retry-lost-calls=false", "--pod-namespace=other", "--spare-pods=0"} <= set(spec["containers"][0]["args"])
    text = manifests[f"ConfigMap {SYSTEM}/pod-cache-config"]["data"]["pod-cache-config.yaml"]
    (function,) = parse_pod_cache_config(text.encode(), source="", default_prefix="example.com").functions.values()
    assert (function.name, function.ttl) == ("set-labels:v0.2", 300.0)
    text = manifests[f"ConfigMap {SYSTEM}/functions-config"]["data"]["functions-config.yaml"]
    table = function_table.parse(text.encode(), source="", default_prefix="example.com")
    assert table.executables == {"example.com/set-namespace:v0.4.1": "set-namespace-v0.4.1"}
    assert not [name for name in manifests if FUNCTIONS in name]
