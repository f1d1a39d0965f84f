"""The image map: what images are, told by a file, for clusters whose registries the runner cannot reach.

    images:
      - image: ghcr.io/kptdev/krm-functions-catalog/set-namespace:v0.4.1
        digest: sha256:...
        entrypoint: [/usr/local/bin/function]

Refuses what it cannot understand with the place in the file: a half-read map would send some images to a registry.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from krm_runner.core import image_ref, kubernetes_yaml
from krm_runner.core.errors import ConfigurationError
from krm_runner.core.image_metadata import ImageMetadata
from krm_runner.core.image_ref import ImageRef, ImageRefError

_FIELDS = ("image", "digest", "entrypoint")


@dataclass(frozen=True, slots=True)
class ImageMap:
    """Images by canonical reference."""

    images: Mapping[str, ImageMetadata] = field(default_factory=dict[str, ImageMetadata])

    def find(self, reference: ImageRef) -> ImageMetadata | None:
        """What the file says of an image."""
        return self.images.get(reference.canonical)


EMPTY_MAP = ImageMap()


def parse_image_map(text: bytes, *, source: str, default_prefix: str) -> ImageMap:
    """The map in a file; ConfigurationError names `source`, the place and the reason."""
    document = kubernetes_yaml.load(text, source=source)
    entries = _mapping(document, source, "the file", ("images",)).get("images")
    if not isinstance(entries, list):
        raise ConfigurationError(f"{source}: images must be a list")
    images: dict[str, ImageMetadata] = {}
    for index, entry in enumerate(cast(list[object], entries)):
        place = f"images[{index}]"
        metadata = _metadata(_mapping(entry, source, place, _FIELDS), source, place, default_prefix)
        if metadata.reference.canonical in images:
            raise ConfigurationError(f"{source}: {place}: {metadata.reference.canonical} stands twice")
        images[metadata.reference.canonical] = metadata
    return ImageMap(images)


def _metadata(fields: Mapping[str, object], source: str, place: str, default_prefix: str) -> ImageMetadata:
    image, digest, entrypoint = fields.get("image"), fields.get("digest"), fields.get("entrypoint")
    try:
        reference = image_ref.parse(image if isinstance(image, str) else "", default_prefix=default_prefix)
    except ImageRefError as error:
        raise ConfigurationError(f"{source}: {place}.image is no image: {error}") from error
    digest = digest or reference.digest
    if not isinstance(digest, str) or not image_ref.is_digest(digest):
        raise ConfigurationError(f"{source}: {place}.digest is no digest such as sha256:...")
    if reference.digest not in ("", digest):
        raise ConfigurationError(f"{source}: {place}: the image names another digest than the entry")
    words = cast(list[object], entrypoint) if isinstance(entrypoint, list) else []
    if not words or not all(isinstance(word, str) for word in words):
        raise ConfigurationError(f"{source}: {place}.entrypoint must be a list of words")
    return ImageMetadata(reference, digest, digest, None, tuple(cast(list[str], words)))


def _mapping(value: object, source: str, place: str, known: tuple[str, ...]) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{source}: {place} must be a mapping")
    fields = cast(dict[str, object], value)
    for name in fields:
        if name not in known:
            raise ConfigurationError(f'{source}: {place}: "{name}" is not known; it takes {", ".join(known)}')
    return fields
