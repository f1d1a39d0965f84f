"""Image references by Docker's rules: parsed, completed, and brought into one canonical form.

Requirements, in the order in which they apply:
- a name without registry or path gets the default image prefix;
- a first part that looks like a host (a dot, a colon, `localhost`, or an upper-case letter) is the registry, else
  the registry is docker.io, where a name of one part lives under `library/`;
- no tag and no digest means the tag `latest`; where there is a digest, it decides and the tag is only a comment.

Nothing here asks a registry.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT_REGISTRY = "docker.io"
MAX_NAME_LENGTH = 255
MAX_REFERENCE_LENGTH = 1024

_HOST_PART = r"(?:[a-zA-Z0-9]|[a-zA-Z0-9][a-zA-Z0-9-]*[a-zA-Z0-9])"
_REGISTRY = re.compile(rf"(?:{_HOST_PART}(?:\.{_HOST_PART})*|\[[a-fA-F0-9:]+\])(?::[0-9]+)?")
_PATH_PART = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_PATH_PART}(?:/{_PATH_PART})*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_DIGEST = re.compile(r"(?P<algorithm>[a-z0-9]+(?:[.+_-][a-z0-9]+)*):(?P<hex>[0-9a-f]{32,})")
_DIGEST_LENGTHS = {"sha256": 64, "sha384": 96, "sha512": 128}
_BARE_DIGEST = re.compile(r"[0-9a-f]{64}")


class ImageRefError(ValueError):
    """The text is no image reference; the message says why."""


@dataclass(frozen=True, slots=True)
class ImageRef:
    """A complete reference. Equal references name the same image."""

    registry: str
    repository: str
    tag: str
    digest: str

    @property
    def name(self) -> str:
        """Registry and repository."""
        return f"{self.registry}/{self.repository}"

    @property
    def canonical(self) -> str:
        """The one form that serves as a key: by digest where there is one, else by tag."""
        return f"{self.name}@{self.digest}" if self.digest else f"{self.name}:{self.tag}"


def parse(text: str, *, default_prefix: str = "") -> ImageRef:
    """The reference that `text` stands for; ImageRefError when it is none."""
    if not text:
        raise ImageRefError("the image is empty")
    if len(text) > MAX_REFERENCE_LENGTH:
        raise ImageRefError(f"the image has {len(text)} characters; {MAX_REFERENCE_LENGTH} are allowed")
    rest, at, digest = text.partition("@")
    if at:
        _check_digest(digest)
    name, tag = _split_tag(rest)
    if not name:
        raise ImageRefError("the image has no name")
    if default_prefix and "/" not in name:
        if _BARE_DIGEST.fullmatch(name):
            raise ImageRefError("the image is a bare digest without a name")
        name = f"{default_prefix.rstrip('/')}/{name}"
    registry, repository = _split_registry(name)
    if not _REGISTRY.fullmatch(registry):
        raise ImageRefError(f'"{registry}" is no valid registry')
    if not _REPOSITORY.fullmatch(repository):
        hint = "; it must be lower case" if repository != repository.lower() else ""
        raise ImageRefError(f'"{repository}" is no valid repository name{hint}')
    if len(registry) + 1 + len(repository) > MAX_NAME_LENGTH:
        raise ImageRefError(f"the image's name is longer than {MAX_NAME_LENGTH} characters")
    if not at and not tag:
        tag = "latest"
    return ImageRef(registry=registry, repository=repository, tag=tag, digest=digest)


def is_digest(text: str) -> bool:
    """Whether this is a digest: an algorithm, and as many hex digits as it has."""
    try:
        _check_digest(text)
    except ImageRefError:
        return False
    return True


def _split_tag(text: str) -> tuple[str, str]:
    """A colon after the last slash starts the tag; one before it belongs to a port."""
    colon = text.rfind(":")
    if colon <= text.rfind("/"):
        return text, ""
    tag = text[colon + 1 :]
    if not _TAG.fullmatch(tag):
        raise ImageRefError(f'"{tag}" is no valid tag')
    return text[:colon], tag


def _split_registry(name: str) -> tuple[str, str]:
    first, slash, rest = name.partition("/")
    if slash and ("." in first or ":" in first or first == "localhost" or first != first.lower()):
        registry, repository = first, rest
    else:
        registry, repository = DEFAULT_REGISTRY, name
        if _BARE_DIGEST.fullmatch(name):
            raise ImageRefError("the image is a bare digest without a name")
    if registry == "index.docker.io":
        registry = DEFAULT_REGISTRY
    if registry == DEFAULT_REGISTRY and "/" not in repository:
        repository = f"library/{repository}"
    return registry, repository


def _check_digest(digest: str) -> None:
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise ImageRefError(f'"{digest}" is no valid digest')
    expected = _DIGEST_LENGTHS.get(match["algorithm"])
    if expected is not None and len(match["hex"]) != expected:
        raise ImageRefError(f'"{digest}" is no valid digest: {match["algorithm"]} has {expected} hex digits')
