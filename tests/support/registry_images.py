"""Images for tests: made by hand as OCI layouts, by umoci, and pushed by skopeo or by plain HTTP."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclass(frozen=True)
class Blob:
    """Content with its type."""

    media_type: str
    body: bytes

    @property
    def digest(self) -> str:
        return "sha256:" + hashlib.sha256(self.body).hexdigest()

    def descriptor(self, **more: object) -> dict[str, object]:
        return {"mediaType": self.media_type, "digest": self.digest, "size": len(self.body), **more}


def as_blob(media_type: str, document: object) -> Blob:
    return Blob(media_type, json.dumps(document).encode())


@dataclass(frozen=True)
class Image:
    """One platform's image."""

    manifest: Blob
    blobs: tuple[Blob, ...]


def make_image(
    *,
    entrypoint: Sequence[str] | None = ("/fn",),
    cmd: Sequence[str] | None = None,
    os: str = "linux",
    architecture: str = "amd64",
    variant: str = "",
) -> Image:
    """An image with one small layer."""
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        info = tarfile.TarInfo("fn")
        info.size = len(content := f"#!/bin/sh\n# {architecture}\ncat\n".encode())
        archive.addfile(info, io.BytesIO(content))
    layer = Blob(OCI_LAYER, gzip.compress(tar.getvalue(), mtime=0))
    config: dict[str, Any] = {
        "os": os, "architecture": architecture, "config": {"Entrypoint": entrypoint, "Cmd": cmd},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(tar.getvalue()).hexdigest()]},
        "history": [{"created_by": "test"}],
    }  # fmt: skip
    if variant:
        config["variant"] = variant
    config_blob = as_blob(OCI_CONFIG, config)
    manifest = as_blob(
        OCI_MANIFEST,
        {
            "schemaVersion": 2,
            "mediaType": OCI_MANIFEST,
            "config": config_blob.descriptor(),
            "layers": [layer.descriptor()],
        },
    )
    return Image(manifest, (config_blob, layer))


def make_index(*entries: tuple[Blob, dict[str, str] | None]) -> Blob:
    """An index of manifests with their platforms."""
    manifests = [blob.descriptor(**({"platform": platform} if platform else {})) for blob, platform in entries]
    return as_blob(OCI_INDEX, {"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": manifests})


def push(address: str, repository: str, tag: str, image: Image | Blob, *others: Image) -> str:
    """By plain HTTP to an open registry; the digest."""
    top = image.manifest if isinstance(image, Image) else image
    for part in (*others, *([image] if isinstance(image, Image) else [])):
        for blob in part.blobs:
            _push_blob(address, repository, blob)
        _push_manifest(address, repository, part.manifest.digest, part.manifest)
    _push_manifest(address, repository, tag, top)
    return top.digest


def push_manifest(address: str, repository: str, name: str, manifest: Blob, *blobs: Blob) -> None:
    for blob in blobs:
        _push_blob(address, repository, blob)
    _push_manifest(address, repository, name, manifest)


def _push_blob(address: str, repository: str, blob: Blob) -> None:
    start = urllib.request.Request(f"http://{address}/v2/{repository}/blobs/uploads/", method="POST")
    with urllib.request.urlopen(start, timeout=30) as response:
        location = str(response.headers["Location"])
    separator = "&" if "?" in location else "?"
    finish = urllib.request.Request(f"{location}{separator}digest={blob.digest}", data=blob.body, method="PUT")
    finish.add_header("Content-Type", "application/octet-stream")
    urllib.request.urlopen(finish, timeout=30).close()


def _push_manifest(address: str, repository: str, name: str, manifest: Blob) -> None:
    request = urllib.request.Request(
        f"http://{address}/v2/{repository}/manifests/{name}", data=manifest.body, method="PUT"
    )
    request.add_header("Content-Type", manifest.media_type)
    urllib.request.urlopen(request, timeout=30).close()


def skopeo(*arguments: str) -> str:
    """Its output; an AssertionError with its words when it fails."""
    done = subprocess.run(
        ["skopeo", "--insecure-policy", *arguments], check=False, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def inspect(image: str, *flags: str) -> tuple[str, list[str]]:
    """Digest, and Entrypoint with Cmd, as skopeo sees them."""
    name = f"docker://{image}"
    digest = json.loads(skopeo("inspect", *flags, name))["Digest"]
    settings = json.loads(skopeo("inspect", "--config", *flags, name)).get("config", {})
    return cast(str, digest), [*(settings.get("Entrypoint") or []), *(settings.get("Cmd") or [])]


def make_by_umoci(layout: Path, tag: str, *, entrypoint: Sequence[str], cmd: Sequence[str]) -> None:
    """An image in an OCI layout, made by umoci."""
    name = f"{layout}:{tag}"
    if not layout.exists():
        _umoci("init", "--layout", str(layout))
    _umoci("new", "--image", name)
    flags = [f"--config.entrypoint={word}" for word in entrypoint] + [f"--config.cmd={word}" for word in cmd]
    _umoci("config", "--image", name, "--architecture=amd64", "--os=linux", *flags)


def _umoci(*arguments: str) -> None:
    done = subprocess.run(["umoci", *arguments], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
