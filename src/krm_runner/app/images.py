"""The parts that resolve images, wired: for the pod runtime, and for `krm-runner image`."""

from __future__ import annotations

import os
import platform as machine
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from krm_runner.core.default_registries import DefaultRegistries
from krm_runner.core.image_cache import ImageCache
from krm_runner.core.image_map import EMPTY_MAP, ImageMap, parse_image_map
from krm_runner.core.image_metadata import Platform
from krm_runner.files.watched_file import WatchedFile
from krm_runner.registry.client import RegistryClient
from krm_runner.registry.keychain import DefaultKeychain, Keychains, MountedKeychain
from krm_runner.registry.resolver import ImageResolver
from krm_runner.registry.transport import Transport
from krm_runner.registry.trust import Trust
from krm_runner.settings import RegistrySettings

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i686": "386"}
_REQUEST_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class Images:
    """What the pod runtime and the command line need of registries."""

    resolver: ImageResolver
    keychains: Keychains
    platform: Platform


@asynccontextmanager
async def open_images(
    settings: RegistrySettings, *, default_prefix: str, node_platform: Platform | None = None
) -> AsyncGenerator[Images]:
    """Everything that resolves images. The flag decides the platform, else the nodes, else this machine.

    ConfigurationError when the image map is named and broken.
    """
    chosen = settings.platform or node_platform or this_platform()
    keychains = Keychains(
        default=DefaultKeychain(os.environ, Path.home()),
        private=MountedKeychain(settings.auth_secret_path) if settings.enabled else None,
        default_registries=DefaultRegistries(default_prefix),
    )
    trust = Trust(settings.tls_secret_path if settings.enabled and settings.tls_enabled else None)
    image_map = _image_map(settings.image_map, default_prefix) if settings.image_map is not None else None
    request_timeout = min(_REQUEST_TIMEOUT, settings.timeout)
    async with (
        Transport(trust, plain_http=settings.plain_http, request_timeout=request_timeout) as transport,
        ImageResolver(
            RegistryClient(transport),
            keychains,
            ImageCache(tag_ttl=settings.tag_ttl),
            platform=chosen,
            timeout=settings.timeout,
            image_map=image_map,
        ) as resolver,
    ):
        yield Images(resolver, keychains, chosen)


def this_platform() -> Platform:
    """The platform of the machine that this process runs on."""
    name = machine.machine().lower()
    return Platform("linux", _ARCHITECTURES.get(name, name))


def _image_map(path: Path, default_prefix: str) -> WatchedFile[ImageMap]:
    def parse(text: bytes) -> ImageMap:
        return parse_image_map(text, source=str(path), default_prefix=default_prefix)

    file = WatchedFile(path, parse=parse, absent=EMPTY_MAP)
    # Once before anything starts: what is wrong with it then is an error of whoever starts the program.
    file.load()
    return file
