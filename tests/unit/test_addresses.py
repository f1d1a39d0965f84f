"""The ways to a pod's wrapper server, best first."""

from __future__ import annotations

import pytest

from krm_runner.pods.addresses import Addresses, AddressKind
from krm_runner.rpc.wrapper_channel import Target

AUTHORITY = "pod-1.functions.svc.cluster.local:9446"
# A dot says that the name is whole: no domain of a search list is tried.
BY_NAME = Target("pod-1.functions.svc.cluster.local.:9446", AUTHORITY)
BY_CLUSTER_IP = Target("10.96.0.7:9446", AUTHORITY)
BY_POD_IP = Target("10.1.0.3:9446", AUTHORITY)


class Services:
    """One Service."""

    def __init__(self, cluster_ip: str) -> None:
        self._cluster_ip = cluster_ip

    def cluster_ip(self, name: str) -> str:
        return self._cluster_ip


@pytest.mark.parametrize(
    ("kind", "cluster_ip", "pod_ip", "ways"),
    [
        (AddressKind.SERVICE_NAME, "10.96.0.7", "10.1.0.3", [BY_NAME, BY_CLUSTER_IP]),
        (AddressKind.SERVICE_NAME, "None", "10.1.0.3", [BY_NAME, BY_POD_IP]),
        (AddressKind.SERVICE_NAME, "", "10.1.0.3", []),
        (AddressKind.SERVICE_NAME, "10.96.0.7", "", []),
        (AddressKind.CLUSTER_IP, "10.96.0.7", "10.1.0.3", [BY_CLUSTER_IP]),
        (AddressKind.POD_IP, "", "10.1.0.3", [BY_POD_IP]),
        (AddressKind.POD_IP, "", "fd00::3", [Target("[fd00::3]:9446", AUTHORITY)]),
    ],
)
def test_the_ways_to_a_pod(kind: AddressKind, cluster_ip: str, pod_ip: str, ways: list[Target]) -> None:
    addresses = Addresses(kind, namespace="functions", services=Services(cluster_ip))
    assert addresses.of("pod-1", pod_ip=pod_ip) == ways
