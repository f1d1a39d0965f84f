"""A runner in the place of a pod: it serves there, and what it starts has the place's name service and account."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from support.client import Client
from support.in_cluster import InCluster
from support.namespace import Namespace
from support.runner import RunnerProcess, write_config, write_function

LOOK = """#!/bin/sh
cat
echo token: $(cut -c1-3 /var/run/secrets/kubernetes.io/serviceaccount/token) >&2
echo namespace: $(cat /var/run/secrets/kubernetes.io/serviceaccount/namespace) >&2
echo api: $(getent hosts kubernetes.default.svc.cluster.local) $KUBERNETES_SERVICE_HOST >&2
echo kubeconfig: $KUBECONFIG >&2
"""
LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"


async def test_it_serves_and_sees_what_a_pod_sees(
    namespace: Namespace,
    in_cluster: Callable[..., InCluster],
    runner: Callable[..., RunnerProcess],
    tmp_path: Path,
) -> None:
    functions = tmp_path / "functions"
    write_function(functions, "look", LOOK)
    config = write_config(tmp_path / "config.yaml", {"look": ["example.com/look:v1"]})
    started = runner(in_cluster(namespace), f"--functions={functions}", f"--config={config}")
    async with Client(started.address) as client:
        answer = await client.evaluate("example.com/look:v1", LIST)
    assert answer.code == "OK", answer.message
    assert answer.log.decode().splitlines() == [
        "token: eyJ",
        f"namespace: {namespace.name}",
        "api: 10.96.0.1 kubernetes.default.svc.cluster.local 10.96.0.1",
        "kubeconfig:",
    ]


def test_nothing_of_its_place_is_seen_outside(namespace: Namespace, in_cluster: Callable[..., InCluster]) -> None:
    in_cluster(namespace)
    assert not Path("/var/run/secrets/kubernetes.io").exists()
