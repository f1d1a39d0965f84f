"""Pushing a test's images under names that no other test has."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

from cluster import registries
from cluster.layout import MIRRORED_REGISTRIES, OPEN, Layout, Registry
from images.oci import Image


def push(image: Image, reference: str, options: Iterable[str] = ()) -> None:
    """To a registry; `options` are skopeo's, for the destination."""
    with tempfile.TemporaryDirectory() as directory:
        image.write_layout(Path(directory), "image")
        copy = ["skopeo", "copy", "--quiet", "--preserve-digests", *options]
        done = subprocess.run(
            [*copy, f"oci:{directory}:image", f"docker://{reference}"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    if done.returncode:
        raise AssertionError(f"cannot push {reference}: {done.stderr.strip()}")


class Push:
    """Called with a name and an image, it pushes and gives the reference to pull by."""

    def __init__(self, prefix: str, layout: Layout) -> None:
        self.prefix = prefix
        self._layout = layout

    def __call__(self, name: str, image: Image, registry: Registry = OPEN, tag: str = "v1") -> str:
        reference = f"{registry.address}/{self.prefix}/{name}:{tag}"
        push(image, reference, registries.push_options(self._layout, registry))
        return reference

    def mirrored(self, name: str, image: Image, host: str, tag: str = "v1") -> str:
        """A reference into a public registry, which the cluster asks its own for."""
        assert host in MIRRORED_REGISTRIES
        self(name, image, tag=tag)
        return f"{host}/{self.prefix}/{name}:{tag}"


class ForeignPush(Push):
    """Into the registry that another cluster pulls from, with the credentials that skopeo finds by itself."""

    def __init__(self, prefix: str, address: str) -> None:
        self.prefix = prefix
        self._address = address

    def __call__(self, name: str, image: Image, registry: Registry = OPEN, tag: str = "v1") -> str:
        assert registry is OPEN, "the other registries are asked for with the fixture `sealed`"
        reference = f"{self._address}/{self.prefix}/{name}:{tag}"
        is_local = self._address.startswith(("localhost", "127."))
        push(image, reference, ["--dest-tls-verify=false"] if is_local else [])
        return reference
