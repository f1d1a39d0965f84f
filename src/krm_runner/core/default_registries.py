"""Which images come from the default registries: those of kpt's catalog, and those of the default image prefix.

They use the default keychain and the system's certificates, and their pods need no pull secret; with private
registries enabled, every other image uses the mounted credentials.
"""

from __future__ import annotations

from krm_runner.core import image_ref
from krm_runner.core.image_ref import ImageRef

KPT_CATALOG = "gcr.io/kpt-fn"


class DefaultRegistries:
    """Knows its images by the beginning of their names."""

    def __init__(self, default_prefix: str) -> None:
        prefixes = [KPT_CATALOG]
        if default_prefix:
            # As a reference, so that a prefix without a registry means what an image with it means.
            prefixes.append(image_ref.parse(f"{default_prefix.rstrip('/')}/x").name.removesuffix("/x"))
        self._prefixes = tuple(f"{prefix}/" for prefix in prefixes)

    def __contains__(self, image: ImageRef) -> bool:
        return image.name.startswith(self._prefixes)
