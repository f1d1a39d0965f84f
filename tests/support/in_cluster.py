"""A process on this machine that sees the cluster as a container of a pod does: DNS, token, certificate, environment.

So a runner under test is a process that one can stop, kill and read the log of, and its rights are really those of its
ServiceAccount.
"""

from __future__ import annotations

import os
from pathlib import Path

from cluster.layout import DOMAIN, FIRST_SERVICE_ADDRESS, NODE_ADDRESS, Layout
from support.namespace import Namespace

_SCRIPT = Path(__file__).parent / "in-cluster.sh"


class InCluster:
    """Must itself be used in the cluster's network: by default that of the full cluster."""

    def __init__(
        self,
        layout: Layout,
        namespace: Namespace,
        service_account: str,
        directory: Path,
        *,
        api: tuple[str, int] = (FIRST_SERVICE_ADDRESS, 443),
        name_server: str = NODE_ADDRESS,
    ) -> None:
        self.service_account = service_account
        self.api = api
        """Where the process finds the API server: a relay, for a test that takes it away."""
        self._namespace = namespace
        self._account = directory / "serviceaccount"
        self._account.mkdir(parents=True)
        (self._account / "ca.crt").write_bytes(layout.certificate("ca").read_bytes())
        (self._account / "namespace").write_text(namespace.name)
        self.rotate_token()
        self._resolv_conf = directory / "resolv.conf"
        search = [f"{namespace.name}.svc.{DOMAIN}", f"svc.{DOMAIN}", DOMAIN]
        self._resolv_conf.write_text(f"nameserver {name_server}\nsearch {' '.join(search)}\noptions ndots:5\n")

    @property
    def user(self) -> str:
        """As the audit log calls it."""
        return f"system:serviceaccount:{self._namespace.name}:{self.service_account}"

    @property
    def prefix(self) -> list[str]:
        """Put before a command; the process keeps its pid."""
        enter = ["unshare", "--mount", "sh", str(_SCRIPT), str(self._account), str(self._resolv_conf)]
        return [*enter, "env", "--unset=KUBECONFIG"]

    @property
    def environment(self) -> dict[str, str]:
        host, port = self.api
        return {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port)}

    def rotate_token(self) -> None:
        """A new token in the file, as the kubelet does it."""
        temporary = self._account / ".token"
        temporary.write_text(self._namespace.token(self.service_account))
        os.rename(temporary, self._account / "token")
