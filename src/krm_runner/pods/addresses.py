"""Where a pod's wrapper is dialled.

Inside the cluster that is the name of the pod's Service, so that a service mesh sees it; its cluster IP is the second
choice, for the half minute in which a DNS server may still say that there was no such name. Outside of the cluster
there is no such DNS: a flag chooses the cluster IP or the pod's own.

A name is asked for as it is, which a dot at its end says: in a pod (ndots:5) it would be looked for in every domain of
the search list first, eight questions instead of two.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from krm_runner.core.function_container import WRAPPER_PORT
from krm_runner.rpc.wrapper_channel import Target

CLUSTER_DOMAIN = "cluster.local"


class AddressKind(Enum):
    """What is dialled; the values are the flag's."""

    SERVICE_NAME = "service-name"
    CLUSTER_IP = "cluster-ip"
    POD_IP = "pod-ip"


class ClusterIps(Protocol):
    """Who knows the Services."""

    def cluster_ip(self, name: str) -> str:
        """Of a Service; empty while it is not known."""
        ...


class Addresses:
    """Knows the ways to a pod, best first."""

    def __init__(self, kind: AddressKind, *, namespace: str, services: ClusterIps) -> None:
        self._kind = kind
        self._namespace = namespace
        self._services = services

    def of(self, name: str, *, pod_ip: str) -> list[Target]:
        """The ways to the pod of this name; none before it has an address, and before its Service is known.

        A name that is asked for too early is remembered by DNS as one that does not exist.
        """
        if not pod_ip:
            return []
        if self._kind is AddressKind.POD_IP:
            return [self._by_ip(name, pod_ip)]
        cluster_ip = self._services.cluster_ip(name)
        if not cluster_ip:
            return []
        if cluster_ip == "None":
            # A headless Service, which a template may ask for: its name leads to the pod itself.
            return [self._by_name(name), self._by_ip(name, pod_ip)]
        by_ip = self._by_ip(name, cluster_ip)
        return [by_ip] if self._kind is AddressKind.CLUSTER_IP else [self._by_name(name), by_ip]

    def _by_ip(self, name: str, ip: str) -> Target:
        return Target(_joined(ip), self._authority(name))

    def _by_name(self, name: str) -> Target:
        return Target(f"{self._host(name)}.:{WRAPPER_PORT}", self._authority(name))

    def _authority(self, name: str) -> str:
        return f"{self._host(name)}:{WRAPPER_PORT}"

    def _host(self, name: str) -> str:
        return f"{name}.{self._namespace}.svc.{CLUSTER_DOMAIN}"


def _joined(ip: str) -> str:
    return f"[{ip}]:{WRAPPER_PORT}" if ":" in ip else f"{ip}:{WRAPPER_PORT}"
