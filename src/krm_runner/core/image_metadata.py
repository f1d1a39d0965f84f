"""What the runner knows of an image before it makes a pod of it."""

from __future__ import annotations

from dataclasses import dataclass

from krm_runner.core.image_ref import ImageRef

_VARIANT_ORDER = {"arm64": ("v8",), "arm": ("v8", "v7", "v6", "v5")}
_DEFAULT_VARIANTS = {"arm64": "v8", "arm": "v7"}


@dataclass(frozen=True, slots=True)
class Platform:
    """An operating system and an architecture, in the words of Go and OCI."""

    os: str
    architecture: str
    variant: str = ""

    def __str__(self) -> str:
        return "/".join(part for part in (self.os, self.architecture, self.variant) if part)

    @property
    def acceptable_variants(self) -> tuple[str, ...]:
        """What this platform runs, best first; an image that names no variant comes after the exact one."""
        ours = self.variant or _DEFAULT_VARIANTS.get(self.architecture, "")
        order = _VARIANT_ORDER.get(self.architecture, ())
        older = order[order.index(ours) + 1 :] if ours in order else ()
        return tuple(dict.fromkeys((ours, "", *older)))


def parse_platform(text: str) -> Platform:
    """`linux/amd64`, `linux/arm/v7`, or an architecture alone; ValueError says what it takes."""
    parts = text.split("/")
    if len(parts) == 1:
        parts = ["linux", *parts]
    if len(parts) not in (2, 3) or not all(
        part.isascii() and part.isalnum() and part == part.lower() for part in parts
    ):
        raise ValueError("a platform such as linux/amd64 or linux/arm/v7")
    return Platform(*parts)


@dataclass(frozen=True, slots=True)
class ImageMetadata:
    """An image, resolved."""

    reference: ImageRef
    digest: str
    """Of what the reference names: an index where there is one, so that each node takes its own platform."""
    manifest_digest: str
    """Of the one manifest whose entrypoint this is; the same as `digest` where there is no index."""
    platform: Platform | None
    """As the image says it; None when it does not."""
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...] = ()

    @property
    def asked_for(self) -> str:
        """The image as callers name it, in its canonical form."""
        return self.reference.canonical

    @property
    def command(self) -> tuple[str, ...]:
        """What a container of the image runs: Entrypoint and then Cmd, or Cmd alone."""
        return self.entrypoint + self.cmd

    @property
    def pinned(self) -> str:
        """The image by digest: what a pod is to run, whatever happens to the tag."""
        return f"{self.reference.name}@{self.digest}"
