"""What function authors work with: resources, the function config, results, and the places of labels."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from krm_function import FunctionError, Package
from krm_function.fields import FieldSpec, set_everywhere
from krm_function.kubernetes import is_local_config, is_namespaced

LIST = """\
apiVersion: config.kubernetes.io/v1
kind: ResourceList
functionConfig:
  apiVersion: v1
  kind: ConfigMap
  metadata:
    name: config
  data:
    app: shop
items:
- apiVersion: apps/v1
  kind: Deployment
  metadata:
    name: web # kept
    annotations:
      internal.config.kubernetes.io/path: web.yaml
  spec:
    template:
      spec:
        containers: [{name: a}, {name: b}]
- apiVersion: v1
  kind: Service
  metadata: {name: web, namespace: x, labels: {app: old}}
"""
CONFIG = LIST[LIST.index("functionConfig") : LIST.index("items:")]


def test_resources_have_names_for_what_every_function_needs() -> None:
    web, service = Package(LIST).items
    assert (web.api_version, web.group, web.kind, web.name, web.namespace) == (
        "apps/v1",
        "apps",
        "Deployment",
        "web",
        "",
    )
    assert (service.group, service.namespace, service.path, web.path) == ("", "x", "", "web.yaml")
    assert service.labels["app"] == "old"
    assert web.at("spec", "template", "spec", "containers")[1]["name"] == "b"
    assert web.at("spec", "nothing", "here") is None
    with pytest.raises(ValueError, match="not a mapping"):
        web.mapping("kind", "x")


def test_changes_leave_the_rest_of_the_text_alone() -> None:
    package = Package(LIST)
    package.items[0].labels["app"] = "shop"
    assert package.render() == LIST.replace(
        "      internal.config.kubernetes.io/path: web.yaml\n",
        "      internal.config.kubernetes.io/path: web.yaml\n    labels:\n      app: shop\n",
    )


def test_resources_come_and_go() -> None:
    package = Package(LIST)
    package.remove(package.items[1])
    package.add({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "n"}})
    items = yaml.safe_load(package.render())["items"]
    assert [item["kind"] for item in items] == ["Deployment", "Namespace"]
    empty = Package("kind: ResourceList\n")
    empty.add({"kind": "A"})
    empty.add({"kind": "B"})
    assert [item["kind"] for item in yaml.safe_load(empty.render())["items"]] == ["A", "B"]


def test_results_say_what_and_where() -> None:
    package = Package(LIST)
    package.report("fine")
    before = package.has_errors
    package.report("bad", severity="error", resource=package.items[0], field="spec.x", current=1, proposed=2)
    assert (before, package.has_errors) == (False, True)
    assert yaml.safe_load(package.render())["results"] == [
        {"message": "fine", "severity": "info"},
        {
            "message": "bad",
            "severity": "error",
            "resourceRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
            "file": {"path": "web.yaml"},
            "field": {"path": "spec.x", "currentValue": 1, "proposedValue": 2},
        },
    ]


@pytest.mark.parametrize(
    ("config", "data"),
    [
        (CONFIG, {"app": "shop"}),
        ("", {}),
        ("functionConfig:\n  apiVersion: x/v1\n  kind: Own\n  metadata: {name: c}\n  size: 3\n", {"size": 3}),
        ("functionConfig:\n  apiVersion: v1\n  kind: ConfigMap\n", {}),
    ],
)
def test_function_config(config: str, data: dict[str, Any]) -> None:
    assert Package(LIST.replace(CONFIG, config)).config_data() == data


@pytest.mark.parametrize(
    ("api_version", "kind", "namespace", "expected"),
    [
        ("v1", "ConfigMap", "", True),
        ("v1", "Namespace", "", False),
        ("rbac.authorization.k8s.io/v1", "ClusterRole", "", False),
        ("rbac.authorization.k8s.io/v1", "Role", "", True),
        ("autoscaling/v2beta2", "HorizontalPodAutoscaler", "", True),
        ("autoscaling/v2", "HorizontalPodAutoscaler", "", False),
        ("example.com/v1", "Shop", "", False),
        ("example.com/v1", "Shop", "x", True),
    ],
)
def test_which_kinds_live_in_a_namespace(api_version: str, kind: str, namespace: str, expected: bool) -> None:
    metadata = "{name: a, namespace: x}" if namespace else "{name: a}"
    text = f"kind: ResourceList\nitems:\n- apiVersion: {api_version}\n  kind: {kind}\n  metadata: {metadata}\n"
    assert is_namespaced(Package(text).items[0]) is expected


@pytest.mark.parametrize(
    ("value", "expected"), [('"true"', True), ('"false"', False), ("true", False), ("false", False)]
)
def test_local_config(value: str, expected: bool) -> None:
    annotations = f"{{config.kubernetes.io/local-config: {value}}}"
    text = f"kind: ResourceList\nitems:\n- kind: A\n  metadata: {{annotations: {annotations}}}\n"
    assert is_local_config(Package(text).items[0]) is expected


def labels_after(config: str, *specs: FieldSpec) -> list[dict[str, Any]]:
    package = Package(LIST.replace(CONFIG, config))
    set_everywhere(package, specs, what="labels", kind="SetLabels", more="additionalLabelFields")
    items: list[dict[str, Any]] = yaml.safe_load(package.render())["items"]
    return items


def test_places_are_made_only_where_they_should_be_and_sequences_are_walked_through() -> None:
    deployment, service = labels_after(
        CONFIG,
        FieldSpec("metadata/labels", kind="Service"),
        FieldSpec("spec/selector", kind="Deployment"),
        FieldSpec("spec/template/metadata/labels", group="apps", create=True),
        FieldSpec("spec/template/spec/containers/labels", kind="Deployment", create=True),
    )
    assert service["metadata"]["labels"] == {"app": "shop"}
    assert "selector" not in deployment["spec"]
    assert "labels" not in deployment["metadata"]
    assert deployment["spec"]["template"]["metadata"]["labels"] == {"app": "shop"}
    assert [c["labels"] for c in deployment["spec"]["template"]["spec"]["containers"]] == [{"app": "shop"}] * 2


def test_typed_config_and_additional_fields() -> None:
    config = (
        "functionConfig:\n  apiVersion: fn.kpt.dev/v1alpha1\n  kind: SetLabels\n  labels: {a: b}\n"
        "  additionalLabelFields: [{path: spec/more, kind: Service, create: true}]\n"
    )
    _, service = labels_after(config)
    assert service["spec"]["more"] == {"a": "b"}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("", "FunctionConfig is missing"),
        ("functionConfig: {apiVersion: v1, kind: Secret}\n", "unknown functionConfig Kind=Secret"),
        ("functionConfig: {apiVersion: v1, kind: ConfigMap}\n", "names no labels"),
        ("functionConfig: {apiVersion: v1, kind: ConfigMap, data: {a: 1}}\n", "the value of a is not text"),
        (
            "functionConfig: {apiVersion: fn.kpt.dev/v1alpha1, kind: SetLabels, labels: {a: b}, "
            "additionalLabelFields: [1]}\n",
            "an entry of additionalLabelFields has no path",
        ),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(config: str, message: str) -> None:
    with pytest.raises(FunctionError, match=message):
        labels_after(config, FieldSpec("metadata/labels", create=True))


def test_words_for_booleans_are_text() -> None:
    package = Package("kind: ResourceList\nitems:\n- kind: A\n  data: {a: no, b: true, c: on}\n")
    assert package.items[0]["data"].plain() == {"a": "no", "b": True, "c": "on"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("kind: List\n", "another kind"),
        ("items: []\n", "no kind"),
        ("kind: ResourceList\nitems:\n", "items is null"),
        ("kind: ResourceList\nitems: [a]\n", "an item is text"),
        ("kind: ResourceList\nfunctionConfig: a\n", "the config is text"),
    ],
)
def test_what_is_no_resource_list_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r"(kind|items|functionConfig) is "):
        pytest.fail(f"{reason}: {Package(text).items}")


def test_a_result_that_is_added_does_not_make_the_function_fail() -> None:
    package = Package("kind: ResourceList\n")
    package.add_result({"message": "odd", "severity": "error"})
    assert not package.has_errors
    assert "odd" in package.render()
