"""The built-in Pod and Service: as little as a function needs, under Pod Security "restricted".

Nothing of the pod is writable but /tmp, which is its own and bounded; it has no token, no capabilities, no variables of
other Services, and runs as nobody in particular. It is never restarted in place: a pod that died is replaced, which is
quicker than Kubernetes' own backoff, and its last state can be read meanwhile. The probe only tells people when a pod
is ready: the runner asks the wrapper itself, and for that the Service also leads to pods that are not ready yet.
"""

from __future__ import annotations

from krm_runner.core.function_container import FUNCTION_CONTAINER, TOOLS, WRAPPER_PORT
from krm_runner.core.json_object import JsonObject

USER = 65532
TMP_LIMIT = "1Gi"
_LABELS = {"app.kubernetes.io/managed-by": "krm-runner"}


def built_in_pod(wrapper_image: str) -> JsonObject:
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
            "initContainers": [
                {
                    "name": "copy-wrapper-server",
                    "image": wrapper_image,
                    "command": ["cp", "-a", "/wrapper-server/.", TOOLS],
                    "securityContext": _confined(),
                    "volumeMounts": [{"name": "wrapper-server-tools", "mountPath": TOOLS}],
                }
            ],
            "containers": [
                {
                    "name": FUNCTION_CONTAINER,
                    "image": "to-be-replaced",
                    "command": [f"{TOOLS}/wrapper-server"],
                    "ports": [{"name": "grpc", "containerPort": WRAPPER_PORT, "protocol": "TCP"}],
                    "readinessProbe": {
                        "exec": {"command": [f"{TOOLS}/grpc-health-probe", "-addr", f"localhost:{WRAPPER_PORT}"]},
                        "periodSeconds": 10,
                        "timeoutSeconds": 5,
                    },
                    "securityContext": _confined(),
                    "volumeMounts": [
                        {"name": "wrapper-server-tools", "mountPath": TOOLS, "readOnly": True},
                        {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - the pod's own
                    ],
                }
            ],
            "volumes": [
                {"name": "wrapper-server-tools", "emptyDir": {}},
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


def _confined() -> JsonObject:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
