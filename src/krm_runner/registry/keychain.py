"""Which credentials are shown for which image, and where they come from.

Images of the default registries, and all images while private registries are off, use the default keychain: docker's
own config of whoever runs the service, with its credential helpers. With private registries enabled every other image
uses the mounted docker config, and nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from krm_runner.core.default_registries import DefaultRegistries
from krm_runner.core.image_ref import ImageRef
from krm_runner.core.registry_auth import ANONYMOUS, EMPTY_CONFIG, Credentials, DockerConfig, parse_docker_config
from krm_runner.files.watched_file import WatchedFile
from krm_runner.registry.credential_helper import CredentialHelperError, ask_helper

_log = structlog.get_logger("krm_runner.registry")


@dataclass(frozen=True, slots=True)
class Match:
    """Credentials, and in words where they were found, or why none were."""

    credentials: Credentials
    source: str


class Keychain(Protocol):
    """Knows credentials."""

    async def find(self, image: ImageRef) -> Match:
        """The credentials for an image; ANONYMOUS when there are none."""
        ...


class MountedKeychain:
    """The docker config JSON that `--registry-auth-secret-path` names."""

    def __init__(self, path: Path) -> None:
        self.file = docker_config_file(path, is_expected=True)

    async def find(self, image: ImageRef) -> Match:
        return await _from_file(self.file, image)


class DefaultKeychain:
    """Docker's config in DOCKER_CONFIG or the home directory, and the helpers that it names."""

    def __init__(self, environment: Mapping[str, str], home: Path) -> None:
        directory = environment.get("DOCKER_CONFIG", "")
        path = (Path(directory) if directory else home / ".docker") / "config.json"
        self._file = docker_config_file(path, is_expected=bool(directory))

    async def find(self, image: ImageRef) -> Match:
        helper = (await self._file.refresh()).helper_for(image.registry)
        if helper is None:
            return await _from_file(self._file, image)
        name, address = helper
        program = f"docker-credential-{name}"
        try:
            credentials = await ask_helper(name, address)
        except CredentialHelperError as error:
            _log.warning("credential helper failed", helper=program, registry=image.registry, error=str(error))
            found = await _from_file(self._file, image)
            return found if found.credentials else Match(ANONYMOUS, f"{error}, named by {self._file.path}")
        if credentials is None:
            found = await _from_file(self._file, image)
            return found if found.credentials else Match(ANONYMOUS, f"{program} has none for {image.registry}")
        return Match(credentials, f"{program}, named by {self._file.path}")


class Keychains:
    """Chooses the keychain by image."""

    def __init__(self, *, default: Keychain, private: Keychain | None, default_registries: DefaultRegistries) -> None:
        self._default = default
        self._private = private
        self._default_registries = default_registries

    def is_private(self, image: ImageRef) -> bool:
        """Whether the mounted credentials and the private CA are for this image."""
        return self._private is not None and image not in self._default_registries

    async def find(self, image: ImageRef) -> Match:
        if self._private is not None and image not in self._default_registries:
            return await self._private.find(image)
        return await self._default.find(image)


def docker_config_file(path: Path, *, is_expected: bool) -> WatchedFile[DockerConfig]:
    """A docker config that is read again when it changes."""

    def parse(text: bytes) -> DockerConfig:
        return parse_docker_config(text, source=str(path))

    return WatchedFile(path, parse=parse, absent=EMPTY_CONFIG, is_expected=is_expected)


async def _from_file(file: WatchedFile[DockerConfig], image: ImageRef) -> Match:
    config = await file.refresh()
    key = config.key_for(image)
    if key is not None and config.auths[key]:
        return Match(config.auths[key], f'{file.path}, entry "{key}"')
    if file.problem:
        return Match(ANONYMOUS, file.problem)
    return Match(ANONYMOUS, f"{file.path} has no entry for {image.name}")
