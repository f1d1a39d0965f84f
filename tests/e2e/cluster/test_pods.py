"""The cluster itself: pods live and die here as they do elsewhere, and Kubernetes says why."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from images.oci import Image
from support import function_images
from support.kube import ApiError, Json
from support.namespace import Namespace, phase, termination, waiting_reasons
from support.push import Push

_VOLUME: Json = {"name": "shared", "mountPath": "/shared"}
_VOLUMES: list[Json] = [{"name": "shared", "emptyDir": {}}]


@pytest.fixture(scope="module")
def shell() -> Image:
    return function_images.shell("exec sleep 3600")


def test_an_init_container_prepares_a_volume(namespace: Namespace, push: Push, shell: Image) -> None:
    image = push("shell", shell)
    prepare = {"name": "prepare", "image": image, "command": ["sh", "-c", "echo prepared >/shared/word"]}
    pod = {"initContainers": [{**prepare, "volumeMounts": [_VOLUME]}], "volumes": _VOLUMES}
    namespace.run("reader", image, ["cat", "/shared/word"], volumeMounts=[_VOLUME], pod=pod)
    assert namespace.wait_for_success("reader") == "prepared\n"


def test_an_init_container_that_fails_is_named(namespace: Namespace, push: Push, shell: Image) -> None:
    image = push("shell", shell)
    failing = {"name": "prepare", "image": image, "command": ["sh", "-c", "echo no >&2; exit 7"]}
    namespace.run("never", image, pod={"initContainers": [failing]})
    failed = namespace.wait_for_pod("never", lambda pod: phase(pod) == "Failed", what="fails")
    (state,) = failed["status"]["initContainerStatuses"]
    assert state["state"]["terminated"]["exitCode"] == 7
    assert namespace.logs("never", "prepare") == "no\n"


def test_a_crashing_container_backs_off(namespace: Namespace, push: Push) -> None:
    image = push("crashes", function_images.crashes())
    namespace.run("crashes", image, pod={"restartPolicy": "Always"})
    crashed = namespace.wait_for_pod(
        "crashes", lambda pod: "CrashLoopBackOff" in waiting_reasons(pod), what="is in CrashLoopBackOff"
    )
    assert termination(crashed)["exitCode"] == 3
    assert namespace.logs("crashes") == "cannot start\n"


def test_a_container_over_its_memory_is_killed(namespace: Namespace, push: Push) -> None:
    image = push("eats-memory", function_images.eats_memory())
    namespace.run("eater", image, resources={"limits": {"memory": "32Mi"}})
    ended = namespace.wait_for_pod("eater", lambda pod: phase(pod) == "Failed", what="fails")
    assert (termination(ended)["reason"], termination(ended)["exitCode"]) == ("OOMKilled", 137)


def test_a_pod_has_no_more_processes_than_its_limit(namespace: Namespace, push: Push, shell: Image) -> None:
    """As many as it likes, it would start; the machine does not notice."""
    fork = "i=0; while [ $i -lt 400 ]; do sleep 60 & i=$((i+1)); done; echo all of them"
    namespace.run("forks", push("shell", shell), ["sh", "-c", fork])
    ended = namespace.wait_for_pod("forks", lambda pod: phase(pod) in ("Succeeded", "Failed"), what="ends")
    assert phase(ended) == "Failed"
    assert "can't fork" in namespace.logs("forks")


def test_a_pod_that_fills_its_disk_is_evicted(namespace: Namespace, push: Push, shell: Image) -> None:
    """A pod says its own limit here, to be quick; without one it has that of the namespace."""
    fill = "dd if=/dev/zero of=/shared/zeros bs=1M count=64; sleep 3600"
    pod = {"volumes": _VOLUMES}
    limits = {"limits": {"ephemeral-storage": "16Mi"}}
    namespace.run("fills", push("shell", shell), ["sh", "-c", fill], resources=limits, volumeMounts=[_VOLUME], pod=pod)
    evicted = namespace.wait_for_pod("fills", lambda pod: phase(pod) == "Failed", what="is evicted", seconds=120)
    assert evicted["status"]["reason"] == "Evicted"
    assert "ephemeral" in evicted["status"]["message"]


def test_every_pod_has_a_limit_of_what_it_writes(namespace: Namespace, push: Push, shell: Image) -> None:
    created = namespace.run("any", push("shell", shell), ["true"])
    assert created["spec"]["containers"][0]["resources"]["limits"] == {"ephemeral-storage": "256Mi"}


def test_pod_security_is_enforced_where_a_namespace_asks_for_it(
    new_namespace: Callable[..., Namespace], push: Push, shell: Image
) -> None:
    image = push("shell", shell)
    restricted = new_namespace({"pod-security.kubernetes.io/enforce": "restricted"})
    with pytest.raises(ApiError, match="violates PodSecurity") as refused:
        restricted.run("careless", image, ["id", "-u"])
    assert refused.value.status == 403
    careful = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
        "runAsNonRoot": True,
        "runAsUser": 65532,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    restricted.run("careful", image, ["id", "-u"], securityContext=careful)
    assert restricted.wait_for_success("careful") == "65532\n"
