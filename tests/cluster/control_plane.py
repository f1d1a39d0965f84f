"""etcd and the API server, as command lines: the same ones for a full cluster and for an API server alone."""

from __future__ import annotations

import json
import ssl
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from cluster.components import ClusterError, Components
from cluster.layout import DOMAIN, SERVICE_RANGE, Layout

# Every request once, when it is answered, without its content.
AUDIT_POLICY = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [{"level": "Metadata"}],
}
START_SECONDS = 90


@dataclass(frozen=True)
class Endpoints:
    """Where the two listen."""

    api_address: str
    api_port: int
    etcd_port: int
    etcd_peer_port: int

    @property
    def server(self) -> str:
        return f"https://{self.api_address}:{self.api_port}"


def etcd(layout: Layout, endpoints: Endpoints, directory: Path) -> list[str | Path]:
    """State is wiped with the cluster, so nothing is ever synced to the disk."""
    clients, peers = (f"http://127.0.0.1:{port}" for port in (endpoints.etcd_port, endpoints.etcd_peer_port))
    return [
        layout.kube,
        "etcd",
        "--name=node",
        f"--data-dir={directory}",
        f"--listen-client-urls={clients}",
        f"--advertise-client-urls={clients}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=node={peers}",
        "--unsafe-no-fsync",
        "--heartbeat-interval=50",
        "--election-timeout=500",
        "--log-level=warn",
    ]


def api_server(layout: Layout, endpoints: Endpoints, *extra: str) -> list[str | Path]:
    def pair(flag: str, name: str, certificate: str = "cert", key: str = "key") -> list[str]:
        return [f"--{flag}{certificate}={layout.certificate(name)}", f"--{flag}{key}={layout.key(name)}"]

    return [
        layout.kube,
        "kube-apiserver",
        f"--etcd-servers=http://127.0.0.1:{endpoints.etcd_port}",
        f"--bind-address={endpoints.api_address}",
        f"--advertise-address={endpoints.api_address}",
        f"--secure-port={endpoints.api_port}",
        f"--cert-dir={layout.run / 'apiserver'}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--token-auth-file={layout.credentials / 'tokens.csv'}",
        f"--client-ca-file={layout.certificate('ca')}",
        *pair("tls-", "apiserver", "cert-file", "private-key-file"),
        f"--service-account-issuer=https://kubernetes.default.svc.{DOMAIN}",
        f"--service-account-key-file={layout.key('service-account')}",
        f"--service-account-signing-key-file={layout.key('service-account')}",
        *pair("kubelet-client-", "apiserver-kubelet-client", "certificate"),
        f"--kubelet-certificate-authority={layout.certificate('ca')}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--requestheader-client-ca-file={layout.certificate('front-proxy-ca')}",
        "--requestheader-allowed-names=front-proxy",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        *pair("proxy-client-", "front-proxy", "cert-file", "key-file"),
        f"--audit-policy-file={layout.run / 'audit-policy.json'}",
        f"--audit-log-path={layout.audit_log}",
        "--audit-log-maxsize=4096",
        # A test that stops the API server waits for no grace.
        "--shutdown-delay-duration=0s",
        *extra,
    ]


def start(layout: Layout, components: Components, endpoints: Endpoints, etcd_directory: Path, *extra: str) -> None:
    """Starts both and does not wait."""
    (layout.run / "audit-policy.json").write_text(json.dumps(AUDIT_POLICY))
    components.start("etcd", etcd(layout, endpoints, etcd_directory))
    components.start("kube-apiserver", api_server(layout, endpoints, *extra))


def is_ready(layout: Layout, server: str) -> bool:
    """Whether the API server of this layout answers that it is ready."""
    try:
        context = ssl.create_default_context(cafile=str(layout.certificate("ca")))
        with urllib.request.urlopen(f"{server}/readyz", context=context, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def wait_until_ready(layout: Layout, components: Components, server: str) -> None:
    limit = time.monotonic() + START_SECONDS
    while not is_ready(layout, server):
        components.require("etcd")
        components.require("kube-apiserver")
        if time.monotonic() > limit:
            log = components.last_lines("kube-apiserver")
            raise ClusterError(f"the API server is not ready after {START_SECONDS} s; the end of its log:\n{log}")
        time.sleep(0.1)
