"""Certificates, tokens and kubeconfigs of one cluster, made anew with every start.

Clients authenticate by token, since a token says in the audit log who it was as well as a certificate does and is made
in no time. Certificates are for servers, and for what the API server itself asks.
"""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
from pathlib import Path

from cluster.layout import (
    ADMINISTRATOR,
    DOMAIN,
    FIRST_SERVICE_ADDRESS,
    MIRRORED_REGISTRIES,
    NODE_ADDRESS,
    NODE_NAME,
    REGISTRY_PASSWORD,
    REGISTRY_USER,
    Layout,
)

NODE_USER = f"system:node:{NODE_NAME}"
CONTROLLERS_USER = "system:kube-controller-manager"
SCHEDULER_USER = "system:kube-scheduler"
PROXY_USER = "system:kube-proxy"
DNS_USER = "system:coredns"
_GROUPS = {
    ADMINISTRATOR: "system:masters",
    NODE_USER: "system:nodes",
    CONTROLLERS_USER: "",
    SCHEDULER_USER: "",
    PROXY_USER: "",
    DNS_USER: "",
}
_API_NAMES = ["DNS:localhost"] + [
    f"DNS:{name}"
    for name in ("kubernetes", "kubernetes.default", "kubernetes.default.svc", f"kubernetes.default.svc.{DOMAIN}")
]
_API_ADDRESSES = [f"IP:{address}" for address in ("127.0.0.1", NODE_ADDRESS, FIRST_SERVICE_ADDRESS)]
_REGISTRY_NAMES = [f"DNS:{name}" for host in MIRRORED_REGISTRIES for name in (host, f"*.{host}")]


def make(layout: Layout, server: str) -> None:
    """Everything that the components need to know each other by; `server` is the API server's URL."""
    directory = layout.credentials
    directory.mkdir(parents=True, mode=0o700)
    for authority in ("ca", "front-proxy-ca", "registry-ca"):
        _make_authority(directory, authority)
    _make_certificate(directory, "apiserver", "ca", "/CN=kube-apiserver", [*_API_NAMES, *_API_ADDRESSES])
    _make_certificate(
        directory, "kubelet", "ca", f"/O=system:nodes/CN={NODE_USER}", [f"DNS:{NODE_NAME}", f"IP:{NODE_ADDRESS}"]
    )
    _make_certificate(directory, "apiserver-kubelet-client", "ca", "/O=system:masters/CN=apiserver-kubelet-client")
    _make_certificate(directory, "front-proxy", "front-proxy-ca", "/CN=front-proxy")
    _make_certificate(
        directory,
        "registry",
        "registry-ca",
        "/CN=registry",
        ["DNS:localhost", "IP:127.0.0.1", f"IP:{NODE_ADDRESS}", *_REGISTRY_NAMES],
    )
    _openssl("genrsa", "-out", layout.key("service-account"), "2048")
    _make_tokens(layout, server)


def make_htpasswd(layout: Layout) -> Path:
    """Who may use the registry with a password."""
    path = layout.credentials / "htpasswd"
    made = subprocess.run(
        ["htpasswd", "-Bbn", REGISTRY_USER, REGISTRY_PASSWORD], check=True, capture_output=True, timeout=30
    )
    path.write_bytes(made.stdout)
    return path


def kubeconfig(server: str, authority: bytes, token: str) -> str:
    """A kubeconfig for one user, as JSON, which is YAML."""
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": "krm-runner",
                    "cluster": {
                        "server": server,
                        "certificate-authority-data": base64.b64encode(authority).decode(),
                    },
                }
            ],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": "krm-runner", "context": {"cluster": "krm-runner", "user": "user"}}],
            "current-context": "krm-runner",
        },
        indent=2,
    )


def _make_tokens(layout: Layout, server: str) -> None:
    authority = layout.certificate("ca").read_bytes()
    lines: list[str] = []
    for user, group in _GROUPS.items():
        token = secrets.token_hex(16)
        lines.append(f"{token},{user},{user}" + (f',"{group}"' if group else ""))
        layout.kubeconfig(user).write_text(kubeconfig(server, authority, token))
    (layout.credentials / "tokens.csv").write_text("\n".join(lines) + "\n")


def _make_authority(directory: Path, name: str) -> None:
    files = ("-keyout", directory / f"{name}.key", "-out", directory / f"{name}.crt")
    _openssl("req", "-x509", *_EC_KEY, *files, "-days", "30", "-subj", f"/CN={name}")


def _make_certificate(directory: Path, name: str, authority: str, subject: str, names: list[str] | None = None) -> None:
    """For a server when it has names, else for a client."""
    request, extensions = directory / f"{name}.csr", directory / f"{name}.ext"
    usage = f"serverAuth\nsubjectAltName={','.join(names)}" if names else "clientAuth"
    extensions.write_text(f"extendedKeyUsage={usage}\n")
    _openssl("req", *_EC_KEY, "-keyout", directory / f"{name}.key", "-out", request, "-subj", subject)
    signed_by = ("-CA", directory / f"{authority}.crt", "-CAkey", directory / f"{authority}.key")
    serial = ("-set_serial", f"0x{secrets.token_hex(8)}")
    output = ("-out", directory / f"{name}.crt", "-extfile", extensions)
    _openssl("x509", "-req", "-in", request, *signed_by, *serial, "-days", "30", *output)
    request.unlink()
    extensions.unlink()


_EC_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")


def _openssl(*arguments: str | Path) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)
