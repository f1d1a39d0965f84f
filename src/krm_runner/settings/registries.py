"""The flags of images and registries, which `serve` and `image` share, and the settings that they make."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from krm_runner.core.duration import duration, positive_duration
from krm_runner.core.image_metadata import Platform, parse_platform
from krm_runner.settings.go_flags import Flag, ParsedFlags, boolean

T = TypeVar("T")

REGISTRIES = "Private registries"
IMAGES = "Images"

_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")


def _hosts(text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not all(_HOST.fullmatch(name) for name in names):
        raise ValueError("hosts separated by commas, with their ports: registry.lan:5000,10.0.0.7")
    # An IPv6 address is written in brackets, and known without them.
    return frozenset(name.lower().replace("[", "").replace("]", "") for name in names)


def _platform(text: str) -> Platform | None:
    return parse_platform(text) if text else None


REGISTRY_FLAGS: tuple[Flag, ...] = (
    Flag(
        "enable-private-registries",
        REGISTRIES,
        "false",
        "use the secret below for all but the default registries",
        boolean,
        is_boolean=True,
    ),
    Flag(
        "registry-auth-secret-path",
        REGISTRIES,
        "/var/tmp/config-secret/.dockerconfigjson",  # noqa: S108 - Porch's own default, where the secret is mounted
        "docker config JSON with the credentials",
    ),
    Flag("registry-auth-secret-name", REGISTRIES, "auth-secret", "name of the pull secret of the function pods"),
    Flag(
        "enable-private-registries-tls",
        REGISTRIES,
        "false",
        "trust the CA below for private registries",
        boolean,
        is_boolean=True,
    ),
    Flag(
        "tls-secret-path",
        REGISTRIES,
        "/var/tmp/tls-secret/",  # noqa: S108 - Porch's own default
        "directory with ca.crt or ca.pem",
    ),
    Flag("image-tag-ttl", IMAGES, "10m", "how long a tag counts before the registry is asked again", duration),
    Flag(
        "image-platform",
        IMAGES,
        "",
        "platform of the nodes, such as linux/arm64 (empty: that of this machine)",
        _platform,
    ),
    Flag("image-map", IMAGES, "", "file with digests and entrypoints of images that no registry is asked for"),
    Flag(
        "registry-timeout", IMAGES, "30s", "how long an image may take to look up, retries included", positive_duration
    ),
    Flag("plain-http-registries", IMAGES, "", "registries without TLS, host or host:port, separated by commas", _hosts),
)


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Images and their registries, for the pod runtime."""

    enabled: bool
    """Whether private registries are."""
    auth_secret_path: Path
    auth_secret_name: str
    tls_enabled: bool
    tls_secret_path: Path
    tag_ttl: float
    platform: Platform | None
    image_map: Path | None
    timeout: float
    plain_http: frozenset[str]


def registry_settings(flags: ParsedFlags) -> RegistrySettings:
    """The settings that the flags make."""

    def value(name: str, kind: type[T]) -> T:
        del kind  # only says what the flag's own parser returns
        return cast(T, flags.values[name])

    image_map = value("image-map", str)
    return RegistrySettings(
        enabled=value("enable-private-registries", bool),
        auth_secret_path=Path(value("registry-auth-secret-path", str)),
        auth_secret_name=value("registry-auth-secret-name", str),
        tls_enabled=value("enable-private-registries-tls", bool),
        tls_secret_path=Path(value("tls-secret-path", str)),
        tag_ttl=value("image-tag-ttl", float),
        platform=cast("Platform | None", flags.values["image-platform"]),
        image_map=Path(image_map) if image_map else None,
        timeout=value("registry-timeout", float),
        plain_http=cast("frozenset[str]", flags.values["plain-http-registries"]),
    )
