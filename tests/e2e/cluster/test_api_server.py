"""The API server: alone, for tests that play the kubelet, and stopped while others go on."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cluster import control_plane
from cluster.api_only import ApiServer
from cluster.full import ENDPOINTS, FullCluster
from e2e.cluster.test_access import list_pods
from support.in_cluster import InCluster
from support.kube import ApiError, Kube, wait_until
from support.namespace import Namespace, is_ready, phase
from support.relay import Relay


@pytest.fixture
def api_server(sealed: object, tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(tmp_path / "api-only") as started:
        yield started


def test_a_pods_status_is_played(api_server: ApiServer) -> None:
    with Kube(api_server.layout.kubeconfig()) as kube:
        namespace = Namespace(kube, "functions")
        with pytest.raises(ApiError, match=r"serviceaccount .default. not found"):
            namespace.run("too-early", "example.com/function:v1")
        namespace.create({"apiVersion": "v1", "kind": "ServiceAccount"}, "default")
        namespace.run("function", "example.com/function:v1")
        assert phase(namespace.pod("function")) == "Pending"
        ready = {"type": "Ready", "status": "True"}
        kube.patch(
            namespace.path("pods/function/status"),
            {"status": {"phase": "Running", "podIP": "10.244.0.7", "conditions": [ready]}},
        )
        assert is_ready(namespace.pod("function"))
        assert kube.items("/api/v1/nodes") == []


def test_it_is_independent_of_any_other(api_server: ApiServer, tmp_path: Path) -> None:
    with ApiServer(tmp_path / "second") as second, Kube(second.layout.kubeconfig()) as kube:
        Namespace(kube, "only-here")
        with Kube(api_server.layout.kubeconfig()) as first:
            names = [item["metadata"]["name"] for item in first.items("/api/v1/namespaces")]
    assert "only-here" not in names


def test_nothing_of_it_is_left(sealed: object, tmp_path: Path) -> None:
    directory = tmp_path / "short"
    server = ApiServer(directory)
    server.start()
    alive = server.processes()
    assert alive.keys() == {"etcd", "kube-apiserver"}
    server.stop()
    assert not any(identity.is_alive for identity in alive.values())
    assert not directory.exists()


def test_one_test_takes_it_away_from_its_own_process_alone(
    namespace: Namespace, in_cluster: Callable[..., InCluster], api_relay: Relay
) -> None:
    place: InCluster = in_cluster(namespace)
    place.api = api_relay.address
    assert list_pods(place)[0] == 403
    api_relay.close()
    with pytest.raises(AssertionError, match="Connection refused"):
        list_pods(place)
    assert namespace.find("serviceaccounts/default"), "everybody else goes on"
    api_relay.reopen()
    assert list_pods(place)[0] == 403


def test_an_open_connection_is_cut(namespace: Namespace, api_relay: Relay) -> None:
    with socket.create_connection(api_relay.address, timeout=30) as connection:
        wait_until(lambda: api_relay.connections == 1, what="the relay has the connection")
        api_relay.cut()
        assert connection.recv(1) == b""


@pytest.mark.alone
def test_it_is_stopped_and_started_again(namespace: Namespace, breakable: FullCluster) -> None:
    breakable.stop("kube-apiserver")
    try:
        assert not breakable.running()["kube-apiserver"]
        with pytest.raises(ApiError):
            namespace.find("serviceaccounts/default")
    finally:
        breakable.resume("kube-apiserver")
    wait_until(lambda: control_plane.is_ready(breakable.layout, ENDPOINTS.server), what="the API server is ready")
    assert namespace.find("serviceaccounts/default")
