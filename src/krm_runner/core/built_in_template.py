"""The built-in Pod and Service: as little as a function needs, under Pod Security "restricted".

Nothing of the pod is writable but /tmp, which is its own and bounded; it has no token, no capabilities, no variables of
other Services, and runs as nobody in particular. It is never restarted in place: a pod that died is replaced, which is
quicker than Kubernetes' own backoff, and its last state can be read meanwhile. The probe only tells people when a pod
is ready: the runner asks the wrapper itself, and for that the Service also leads to pods that are not ready yet.

The wrapper server is of another image than the function; how it comes into the pod is `WrapperDelivery`.
"""

from __future__ import annotations

from krm_runner.core.function_container import FUNCTION_CONTAINER, TOOLS, WRAPPER_PORT
from krm_runner.core.json_object import JsonObject
from krm_runner.core.wrapper_delivery import ImageVolume, InitContainer, WrapperDelivery

USER = 65532
TMP_LIMIT = "1Gi"
_LABELS = {"app.kubernetes.io/managed-by": "krm-runner"}
_VOLUME = "wrapper-server-tools"


def built_in_pod(delivery: WrapperDelivery) -> JsonObject:
    """Without a name and without a function."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": dict(_LABELS), "annotations": {}},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": USER,
                "runAsGroup": USER,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "initContainers": _init_containers(delivery),
            "containers": [
                {
                    "name": FUNCTION_CONTAINER,
                    "image": "to-be-replaced",
                    "command": [f"{TOOLS}/wrapper-server"],
                    "ports": [{"name": "grpc", "containerPort": WRAPPER_PORT, "protocol": "TCP"}],
                    "readinessProbe": _probe(delivery),
                    "securityContext": _confined(),
                    "volumeMounts": [
                        _mount(delivery),
                        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
                    ],
                }
            ],
            "volumes": [
                _volume(delivery),
                {"name": "tmp", "emptyDir": {"sizeLimit": TMP_LIMIT}},
            ],
        },
    }


def built_in_service() -> JsonObject:
    """Without a name; what it selects is put in with the pod's id."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"labels": dict(_LABELS), "annotations": {}},
        "spec": {
            "type": "ClusterIP",
            "publishNotReadyAddresses": True,
            "ports": [{"name": "grpc", "port": WRAPPER_PORT, "targetPort": WRAPPER_PORT, "protocol": "TCP"}],
            "selector": {},
        },
    }


def _init_containers(delivery: WrapperDelivery) -> list[JsonObject]:
    if not isinstance(delivery, InitContainer):
        return []
    return [
        {
            "name": "copy-wrapper-server",
            "image": delivery.image,
            "command": ["cp", "-a", "/wrapper-server/.", TOOLS],
            "securityContext": _confined(),
            "volumeMounts": [{"name": _VOLUME, "mountPath": TOOLS}],
        }
    ]


def _volume(delivery: WrapperDelivery) -> JsonObject:
    match delivery:
        case InitContainer():
            return {"name": _VOLUME, "emptyDir": {}}
        case ImageVolume(image):
            return {"name": _VOLUME, "image": {"reference": image, "pullPolicy": "IfNotPresent"}}


def _mount(delivery: WrapperDelivery) -> JsonObject:
    mount: JsonObject = {"name": _VOLUME, "mountPath": TOOLS, "readOnly": True}
    # The whole image would bring its other folders along.
    return {**mount, "subPath": "wrapper-server"} if isinstance(delivery, ImageVolume) else mount


def _probe(delivery: WrapperDelivery) -> JsonObject:
    """By a program, as in Porch's template; else the kubelet asks itself, and nothing has to be started for it."""
    question: JsonObject = {"grpc": {"port": WRAPPER_PORT}}
    if isinstance(delivery, InitContainer):
        question = {"exec": {"command": [f"{TOOLS}/grpc-health-probe", "-addr", f"localhost:{WRAPPER_PORT}"]}}
    return {**question, "periodSeconds": 10, "timeoutSeconds": 5}


def _confined() -> JsonObject:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
