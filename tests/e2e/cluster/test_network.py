"""Services and names, from pods and from processes that take their place; and that nothing leads out."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable

import pytest

from cluster.full import FullCluster
from cluster.layout import MIRRORED_REGISTRIES, NODE_ADDRESS
from support import function_images
from support.in_cluster import InCluster
from support.namespace import Namespace
from support.push import Push

SERVE = "mkdir /tmp/www && echo hello >/tmp/www/index.html && exec httpd -f -p 8080 -h /tmp/www"


@pytest.fixture
def image(push: Push) -> str:
    return push("shell", function_images.shell("exec sleep 3600"))


@pytest.fixture
def service(namespace: Namespace, image: str) -> str:
    """The address of a service with one pod, once that is ready."""
    probe = {"httpGet": {"port": 8080}, "periodSeconds": 1}
    namespace.run("server", image, ["sh", "-c", SERVE], readinessProbe=probe)
    spec = {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]}
    created = namespace.create({"apiVersion": "v1", "kind": "Service", "spec": spec}, "web")
    namespace.wait_until_running("server")
    return str(created["spec"]["clusterIP"])


def test_a_pod_reaches_a_service_by_its_address_and_by_its_name(namespace: Namespace, image: str, service: str) -> None:
    fetch = 'until wget -q -O- "$0"; do sleep 0.2; done; until wget -q -O- "$1"; do sleep 0.2; done'
    urls = [f"http://{service}/", f"http://web.{namespace.name}.svc.cluster.local/"]
    namespace.run("client", image, ["timeout", "60", "sh", "-c", fetch, *urls])
    assert namespace.wait_for_success("client") == "hello\nhello\n"


def test_a_process_in_the_place_of_a_pod_resolves_services(
    namespace: Namespace, service: str, in_cluster: Callable[..., InCluster]
) -> None:
    name = f"web.{namespace.name}.svc.cluster.local"
    place: InCluster = in_cluster(namespace)
    ask = 'until getent hosts "$0"; do sleep 0.2; done'
    done = subprocess.run(
        [*place.prefix, "timeout", "60", "sh", "-c", ask, name], capture_output=True, text=True, timeout=90, check=True
    )
    assert done.stdout.split() == [service, name]
    short = subprocess.run(
        [*place.prefix, "getent", "hosts", "web"], capture_output=True, text=True, timeout=60, check=True
    )
    assert short.stdout.split()[0] == service


def test_public_registries_are_the_clusters_own(namespace: Namespace, in_cluster: Callable[..., InCluster]) -> None:
    """So that the runner finds the images that the kubelet pulls by those names."""
    place: InCluster = in_cluster(namespace)
    for host in (*MIRRORED_REGISTRIES, "registry-1.docker.io"):
        done = subprocess.run(
            [*place.prefix, "getent", "ahostsv4", host], capture_output=True, text=True, timeout=60, check=True
        )
        assert set(done.stdout.split()) >= {NODE_ADDRESS}


def test_no_other_name_exists(namespace: Namespace, in_cluster: Callable[..., InCluster]) -> None:
    place: InCluster = in_cluster(namespace)
    done = subprocess.run([*place.prefix, "getent", "hosts", "example.com"], timeout=60, check=False)
    assert done.returncode == 2


@pytest.mark.usefixtures("sealed")
def test_there_is_no_way_out() -> None:
    """A documentation address: nobody would answer there, but a machine with an uplink would try."""
    with pytest.raises(OSError, match="Network is unreachable"):
        socket.create_connection(("192.0.2.1", 80), timeout=10)


def test_the_node_and_its_interfaces_are_not_those_of_the_machine(sealed: FullCluster) -> None:
    interfaces = {name for _, name in socket.if_nameindex()}
    assert {"lo", "node0"} <= interfaces
    assert all(name in ("lo", "node0", "pods0") or name.startswith("veth") for name in interfaces)
    assert sealed.enclosure.is_home
