"""The pull secret: what to do about the one that is found, and how a pod gets it. Pure: nobody is asked here.

The kubelet pulls private images with a Secret of type kubernetes.io/dockerconfigjson that holds the same docker config
as the runner's own. A Secret of another type under that name belongs to somebody else and is not touched.
"""

from __future__ import annotations

import base64
import binascii
import copy
from dataclasses import dataclass

from krm_runner.core.json_object import JsonObject, as_list, as_object, as_text

SECRET_TYPE = "kubernetes.io/dockerconfigjson"  # noqa: S105 - a type's name
_KEY = ".dockerconfigjson"
_LABELS = {"app.kubernetes.io/managed-by": "krm-runner"}


@dataclass(frozen=True, slots=True)
class Create:
    """There is none: make it."""

    body: JsonObject


@dataclass(frozen=True, slots=True)
class Update:
    """It holds something else: write ours, unless somebody wrote it meanwhile (the body has its resourceVersion)."""

    body: JsonObject


@dataclass(frozen=True, slots=True)
class LeaveAlone:
    """It holds what it should."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """It cannot be made to hold ours."""

    why: str


Decision = Create | Update | LeaveAlone | Refuse


def decide(found: JsonObject | None, content: bytes, *, name: str, namespace: str, overwrite: bool = True) -> Decision:
    """What makes the Secret hold `content`. Without `overwrite` only a missing one is made."""
    data: JsonObject = {_KEY: base64.b64encode(content).decode()}
    if found is None:
        metadata: JsonObject = {"name": name, "namespace": namespace, "labels": dict(_LABELS)}
        return Create({"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": SECRET_TYPE, "data": data})
    if found.get("type") != SECRET_TYPE:
        return Refuse(
            f'Secret "{name}" in namespace "{namespace}" is of type {as_text(found.get("type"))[:60] or "unknown"}, '
            f"not {SECRET_TYPE}: delete it, or name another with --registry-auth-secret-name"
        )
    if not overwrite or _content_of(found) == content:
        return LeaveAlone()
    if found.get("immutable") is True:
        return Refuse(f'Secret "{name}" in namespace "{namespace}" is immutable and holds other credentials: delete it')
    return Update({**found, "data": data})


def attach(pod: JsonObject, name: str) -> JsonObject:
    """The pod's manifest with the pull secret, which it may have already; the one that is given stays as it is."""
    pod = copy.deepcopy(pod)
    spec = as_object(pod.get("spec"))
    secrets = as_list(spec.get("imagePullSecrets"))
    if not any(as_object(secret).get("name") == name for secret in secrets):
        spec["imagePullSecrets"] = [*secrets, {"name": name}]
    return {**pod, "spec": spec}


def _content_of(secret: JsonObject) -> bytes | None:
    try:
        return base64.b64decode(as_text(as_object(secret.get("data")).get(_KEY)), validate=True)
    except (binascii.Error, ValueError):
        return None
