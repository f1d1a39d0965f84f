"""The registries of the cluster, and how its containerd finds them: configuration files and command lines.

All four are Debian's docker-registry. Images that are named after a public registry are pulled from the open one.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from cluster import credentials
from cluster.components import Components
from cluster.layout import (
    MIRRORED_REGISTRIES,
    OPEN,
    REGISTRIES,
    REGISTRY_PASSWORD,
    REGISTRY_USER,
    Layout,
    Registry,
)


def start(layout: Layout, components: Components) -> None:
    """Blobs of earlier clusters stay, for a push to find; the names that tests gave them go."""
    htpasswd = credentials.make_htpasswd(layout)
    for repositories in layout.store.glob("registry-*/docker/registry/v2/repositories/test-*"):
        shutil.rmtree(repositories)
    _authority_directory(layout).mkdir()
    shutil.copy(layout.certificate("registry-ca"), _authority_directory(layout) / "ca.crt")
    for registry in REGISTRIES:
        file = layout.run / f"{registry.name}.yaml"
        file.write_text(json.dumps(_configuration(layout, registry, htpasswd)))
        components.start(registry.name, ["docker-registry", "serve", file])


def write_hosts(layout: Layout) -> Path:
    """The directory of containerd's hosts.toml files."""
    directory = layout.run / "registries"
    for registry in REGISTRIES:
        _write_host(directory, registry.address, layout, registry)
    for host in MIRRORED_REGISTRIES:
        _write_host(directory, host, layout, OPEN)
    return directory


def url(registry: Registry) -> str:
    return f"{'https' if registry.has_tls else 'http'}://{registry.address}"


def push_options(layout: Layout, registry: Registry) -> list[str]:
    """What skopeo must know to push there."""
    options = [f"--dest-cert-dir={_authority_directory(layout)}"] if registry.has_tls else ["--dest-tls-verify=false"]
    return options + ([f"--dest-creds={REGISTRY_USER}:{REGISTRY_PASSWORD}"] if registry.has_password else [])


def pull_secret(registry: Registry, password: str = REGISTRY_PASSWORD) -> str:
    """The docker config that lets one pull from there."""
    entry = {"username": REGISTRY_USER, "password": password}
    return json.dumps({"auths": {registry.address: entry}})


def _authority_directory(layout: Layout) -> Path:
    return layout.run / "registry-authority"


def _configuration(layout: Layout, registry: Registry, htpasswd: Path) -> dict[str, object]:
    http: dict[str, object] = {"addr": registry.address, "secret": "the same for all"}
    if registry.has_tls:
        http["tls"] = {"certificate": str(layout.certificate("registry")), "key": str(layout.key("registry"))}
    content = layout.store / ("registry-private" if registry.has_password else "registry-open")
    configuration: dict[str, object] = {
        "version": 0.1,
        "log": {"level": "warn"},
        "storage": {"filesystem": {"rootdirectory": str(content)}, "delete": {"enabled": True}},
        "http": http,
    }
    if registry.has_password:
        configuration["auth"] = {"htpasswd": {"realm": "krm-runner", "path": str(htpasswd)}}
    return configuration


def _write_host(directory: Path, host: str, layout: Layout, registry: Registry) -> None:
    address = url(registry)
    lines = [f'server = "{address}"', f'[host."{address}"]', '  capabilities = ["pull", "resolve"]']
    if registry.has_tls:
        lines.append(f'  ca = "{layout.certificate("registry-ca")}"')
    (directory / host).mkdir(parents=True, exist_ok=True)
    (directory / host / "hosts.toml").write_text("\n".join(lines) + "\n")
