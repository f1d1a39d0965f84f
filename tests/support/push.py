"""Pushing a test's images under names that no other test has."""

from __future__ import annotations

from cluster import registries
from cluster.layout import MIRRORED_REGISTRIES, OPEN, Layout, Registry
from support.images import Image


class Push:
    """Called with a name and an image, it pushes and gives the reference to pull by."""

    def __init__(self, prefix: str, layout: Layout) -> None:
        self.prefix = prefix
        self._layout = layout

    def __call__(self, name: str, image: Image, registry: Registry = OPEN, tag: str = "v1") -> str:
        reference = f"{registry.address}/{self.prefix}/{name}:{tag}"
        image.push(reference, registries.push_options(self._layout, registry))
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
        image.push(reference, ["--dest-tls-verify=false"] if is_local else [])
        return reference
