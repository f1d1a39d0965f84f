"""Porch's FunctionConfig objects: their kind, of which only what this project looks at matters."""

from __future__ import annotations

from support.kube import Json

GROUP = "config.porch.kpt.dev"
_SCHEMA = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_VERSION = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": _SCHEMA}}
_NAMES = {"kind": "FunctionConfig", "listKind": "FunctionConfigList", "plural": "functionconfigs"}
KIND: Json = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"functionconfigs.{GROUP}"},
    "spec": {"group": GROUP, "scope": "Namespaced", "names": _NAMES, "versions": [_VERSION]},
}
