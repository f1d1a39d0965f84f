"""Credentials for registries: the docker config JSON, and which of its entries is meant for an image.

An entry is found as docker and the kubelet find it, so that the runner can read what the kubelet can pull:
- its key is a host, with or without a scheme and `/v1/` or `/v2/`; `https://index.docker.io/v1/` is Docker Hub;
- a key with a path serves the repositories that start with it; the longest path wins;
- parts of the host may hold the wildcards `*`, `?` and `[...]`; a host without wildcards wins over one with them;
- the port must be the same.

Errors name the file and the key. No value of the file is ever part of a message.
"""

from __future__ import annotations

import base64
import binascii
import fnmatch
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import cast

from krm_runner.core.errors import ConfigurationError
from krm_runner.core.image_ref import DEFAULT_REGISTRY, ImageRef
from krm_runner.core.secret import Secret

DOCKER_HUB_KEY = "https://index.docker.io/v1/"
TOKEN_USER = "<token>"  # noqa: S105 - a user's name: docker's sign that the password is an identity token
_MAX_ENTRIES = 10_000
_DOCKER_HUB_HOSTS = frozenset({"docker.io", "index.docker.io", "registry-1.docker.io"})


@dataclass(frozen=True, slots=True)
class Credentials:
    """What to show to a registry: a user and a password, an identity token, or a registry token as it is."""

    username: str = ""
    password: Secret = field(default_factory=Secret)
    identity_token: Secret = field(default_factory=Secret)
    registry_token: Secret = field(default_factory=Secret)

    def __bool__(self) -> bool:
        return bool(self.username or self.password or self.identity_token or self.registry_token)

    @property
    def secrets(self) -> tuple[Secret, ...]:
        """Everything that must not be shown."""
        return tuple(secret for secret in (self.password, self.identity_token, self.registry_token) if secret)


ANONYMOUS = Credentials()


@dataclass(frozen=True, slots=True)
class DockerConfig:
    """A docker config: credentials by key, and the helpers that know others."""

    auths: Mapping[str, Credentials] = field(default_factory=dict[str, Credentials])
    helpers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Helper by registry (credHelpers)."""
    store: str = ""
    """The helper for every other registry (credsStore)."""

    def key_for(self, image: ImageRef) -> str | None:
        """The key in `auths` that serves this image best."""
        return best_key(self.auths, image)

    def helper_for(self, registry: str) -> tuple[str, str] | None:
        """A helper's name, and the address that it is asked for."""
        for key, helper in self.helpers.items():
            if _split_key(key)[0] == _host_of(registry):
                return helper, key
        if self.store:
            return self.store, DOCKER_HUB_KEY if registry in _DOCKER_HUB_HOSTS else registry
        return None


EMPTY_CONFIG = DockerConfig()


def parse_docker_config(text: bytes, *, source: str) -> DockerConfig:
    """The config in a file; ConfigurationError names `source` and the key, and never shows a value."""
    try:
        document: object = json.loads(text)
    except (ValueError, RecursionError):
        # Not chained: the decoder's error carries the whole document, passwords included.
        raise ConfigurationError(f"{source} is no valid JSON; expected a docker config with auths") from None
    top = _mapping(document, source, "the file")
    for place in ("auths", "credHelpers"):
        if len(_mapping(top.get(place), source, place)) > _MAX_ENTRIES:
            raise ConfigurationError(f"{source}: {place} has more than {_MAX_ENTRIES} entries")
    auths = {
        key: _credentials(_mapping(entry, source, f'auths["{key}"]'), source, f'auths["{key}"]')
        for key, entry in _mapping(top.get("auths"), source, "auths").items()
    }
    helpers = {
        key: _text(helper, source, f'credHelpers["{key}"]')
        for key, helper in _mapping(top.get("credHelpers"), source, "credHelpers").items()
    }
    return DockerConfig(auths, helpers, _text(top.get("credsStore"), source, "credsStore"))


def best_key(keys: Iterable[str], image: ImageRef) -> str | None:
    """The key that serves the image: exact hosts before wildcards, long paths before short ones."""
    registry, path = _host_of(image.registry), f"/{image.repository}"
    matching: list[tuple[bool, int, str]] = []
    for key in keys:
        host, prefix = _split_key(key)
        if path.startswith(prefix) and (host == registry or _matches(host, registry)):
            matching.append((host == registry, len(prefix), key))
    return max(matching)[2] if matching else None


def from_helper(username: str, secret: str) -> Credentials:
    """What a credential helper answered, by docker's rule."""
    if username == TOKEN_USER:
        return Credentials(identity_token=Secret(secret))
    return Credentials(username=username, password=Secret(secret))


def _host_of(registry: str) -> str:
    host = registry.lower()
    return DEFAULT_REGISTRY if host in _DOCKER_HUB_HOSTS else host


def _split_key(key: str) -> tuple[str, str]:
    """Host and path prefix of a key; the prefix is empty where the key stands for the whole host."""
    rest = key.partition("://")[2] if "://" in key else key
    host, slash, path = rest.partition("/")
    prefix = slash + path
    if prefix.startswith(("/v1/", "/v2/")) or prefix in ("/v1", "/v2"):
        prefix = prefix[3:]
    return _host_of(host), "" if prefix == "/" else prefix


def _matches(pattern: str, registry: str) -> bool:
    """Wildcards stand for parts of one label, as the kubelet has it."""
    pattern_host, _, pattern_port = pattern.partition(":")
    host, _, port = registry.partition(":")
    labels, expected = host.split("."), pattern_host.split(".")
    return (
        port == pattern_port
        and len(labels) == len(expected)
        and all(fnmatch.fnmatchcase(label, glob) for label, glob in zip(labels, expected, strict=True))
    )


def _credentials(entry: Mapping[str, object], source: str, place: str) -> Credentials:
    username = _text(entry.get("username"), source, f"{place}.username")
    password = _text(entry.get("password"), source, f"{place}.password")
    if auth := _text(entry.get("auth"), source, f"{place}.auth"):
        username, password = _decode_auth(auth, source, f"{place}.auth")
    identity_token = _text(entry.get("identitytoken"), source, f"{place}.identitytoken")
    if username == TOKEN_USER and password and not identity_token:
        username, password, identity_token = "", "", password
    return Credentials(
        username=username,
        password=Secret(password),
        identity_token=Secret(identity_token),
        registry_token=Secret(_text(entry.get("registrytoken"), source, f"{place}.registrytoken")),
    )


def _decode_auth(auth: str, source: str, place: str) -> tuple[str, str]:
    try:
        padded = auth.strip().rstrip("=")
        decoded = base64.b64decode(padded + "=" * (-len(padded) % 4), validate=True).decode()
    except (binascii.Error, ValueError):
        raise ConfigurationError(f"{source}: {place} is no base64 of user:password") from None
    username, colon, password = decoded.partition(":")
    if not colon:
        raise ConfigurationError(f"{source}: {place} is no base64 of user:password")
    return username, password.strip("\0")


def _mapping(value: object, source: str, place: str) -> dict[str, object]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ConfigurationError(f"{source}: {place} must be a JSON object")
    return cast(dict[str, object], value)


def _text(value: object, source: str, place: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ConfigurationError(f"{source}: {place} must be text")
    return value
