"""Manifests, indexes and configs of images, OCI's and Docker's: read, checked, and the right platform chosen.

Everything here comes from a registry that may be broken or hostile. What is refused, with the reason: schema 1,
artifacts that are no images, documents that are two things at once, wrong types, descriptors without a usable
digest or with a size that no manifest has, content that is not what its digest or size says.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from krm_runner.core import image_ref
from krm_runner.core.image_metadata import Platform

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
DOCKER_LIST = "application/vnd.docker.distribution.manifest.list.v2+json"
DOCKER_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"
ACCEPTED = (OCI_INDEX, DOCKER_LIST, OCI_MANIFEST, DOCKER_MANIFEST)

MAX_MANIFEST_BYTES = 4 * 1024 * 1024
MAX_CONFIG_BYTES = 8 * 1024 * 1024
MAX_INDEX_DEPTH = 2
"""An index may name indexes, once; no builder nests deeper."""
_MAX_COMMAND_BYTES = 64 * 1024

_SCHEMA_1 = (
    "application/vnd.docker.distribution.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v1+prettyjws",
)
_CONFIG_TYPES = (
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
    "application/octet-stream",
    "",
)
_ALGORITHMS = ("sha256", "sha384", "sha512")
_SHOWN_PLATFORMS = 12
_MEDIA_TYPE = re.compile(r"[a-z]{1,20}/[a-z0-9.+-]{1,80}")
_PLATFORM_WORD = re.compile(r"[a-z0-9]{0,20}")


class ImageManifestError(ValueError):
    """The registry's answer is no usable image; the message says why."""


@dataclass(frozen=True, slots=True)
class Descriptor:
    """Something in the registry, by digest."""

    media_type: str
    digest: str
    size: int
    platform: Platform | None = None


@dataclass(frozen=True, slots=True)
class Index:
    """One image for many platforms."""

    manifests: tuple[Descriptor, ...]

    def choose(self, platform: Platform) -> Descriptor:
        """The manifest for a platform; ImageManifestError lists what there is instead."""
        fitting = [
            item
            for item in self.manifests
            if item.platform is not None
            and (item.platform.os, item.platform.architecture) == (platform.os, platform.architecture)
        ]
        for variant in platform.acceptable_variants:
            for item in fitting:
                if item.platform is not None and item.platform.variant == variant:
                    return _of_bounded_size(item)
        nested = [item for item in self.manifests if item.platform is None]
        if len(nested) == 1 and len(self.manifests) == 1:
            return _of_bounded_size(nested[0])
        names = sorted(
            {str(item.platform) for item in self.manifests if item.platform and item.platform.os != "unknown"}
        )
        there = ", ".join(names[:_SHOWN_PLATFORMS]) + (", ..." if len(names) > _SHOWN_PLATFORMS else "")
        raise ImageManifestError(f"the image has nothing for {platform}; it has {there or 'no platform at all'}")


@dataclass(frozen=True, slots=True)
class Manifest:
    """One image for one platform; only its config matters here."""

    config: Descriptor


@dataclass(frozen=True, slots=True)
class ImageConfig:
    """What the image says about how it is run."""

    platform: Platform | None
    entrypoint: tuple[str, ...]
    cmd: tuple[str, ...]


def parse_manifest(body: bytes, content_type: str = "") -> Index | Manifest:
    """The manifest or index in a response body."""
    document = _object(_json(body, "the manifest", content_type), "the manifest")
    media_type = _media_type(document, content_type)
    refuse_schema_1(media_type)
    if document.get("schemaVersion") == 1:
        refuse_schema_1(_SCHEMA_1[0])
    if document.get("schemaVersion") != 2:
        raise ImageManifestError("the manifest's schemaVersion is not 2")
    is_index, is_manifest = "manifests" in document, "config" in document or "layers" in document
    if is_index and is_manifest:
        raise ImageManifestError("the manifest claims to be an index and an image at once")
    if media_type in (OCI_INDEX, DOCKER_LIST) if media_type in ACCEPTED else is_index:
        return Index(tuple(_descriptor(item, "manifests") for item in _list(document.get("manifests"), "manifests")))
    if media_type not in (*ACCEPTED, "", "application/json"):
        raise ImageManifestError(f"the manifest is no container image{_of_type(media_type)}")
    return _manifest(document)


def refuse_schema_1(media_type: str) -> None:
    """ImageManifestError for Docker's schema 1, whose signed manifests do not even match their own digests."""
    if media_type.partition(";")[0].strip() in _SCHEMA_1:
        raise ImageManifestError(
            "the manifest is of Docker's schema 1, which is obsolete; push the image again with a current tool"
        )


def parse_config(body: bytes) -> ImageConfig:
    """The config blob of an image; ImageManifestError when it says nothing that can be run."""
    document = _object(_json(body, "the image's config", ""), "the image's config")
    settings = _object(document.get("config") or {}, "config")
    entrypoint, cmd = _command(settings.get("Entrypoint"), "Entrypoint"), _command(settings.get("Cmd"), "Cmd")
    if not entrypoint + cmd:
        raise ImageManifestError("the image has neither an ENTRYPOINT nor a CMD: there is nothing to run in it")
    if sum(len(word.encode(errors="surrogatepass")) + 1 for word in entrypoint + cmd) > _MAX_COMMAND_BYTES:
        raise ImageManifestError(f"the image's ENTRYPOINT and CMD are longer than {_MAX_COMMAND_BYTES} bytes")
    return ImageConfig(_platform(document), entrypoint, cmd)


def check_content(body: bytes, *, digest: str, size: int | None = None) -> None:
    """ImageManifestError unless the body is what its digest (and descriptor) say."""
    if size is not None and len(body) != size:
        raise ImageManifestError(f"{digest} should have {size} bytes, the registry sent {len(body)}")
    found = digest_of(body, digest.partition(":")[0])
    if found != digest:
        raise ImageManifestError(f"the content does not match its digest: expected {digest}, the registry sent {found}")


def digest_of(body: bytes, algorithm: str = "sha256") -> str:
    """The body's digest."""
    if algorithm not in _ALGORITHMS:
        raise ImageManifestError(f'digests by "{algorithm[:20]}" are not supported; {", ".join(_ALGORITHMS)} are')
    return f"{algorithm}:{hashlib.new(algorithm, body).hexdigest()}"


def _manifest(document: Mapping[str, object]) -> Manifest:
    config = _descriptor(document.get("config"), "config")
    if config.media_type not in _CONFIG_TYPES:
        kind = _text(document.get("artifactType"), "artifactType") or config.media_type
        raise ImageManifestError(f"this is an artifact and no container image{_of_type(kind)}")
    if config.size > MAX_CONFIG_BYTES:
        raise ImageManifestError(
            f"the image's config is announced with {config.size} bytes; {MAX_CONFIG_BYTES} are allowed"
        )
    return Manifest(config)


def _of_bounded_size(item: Descriptor) -> Descriptor:
    if item.size > MAX_MANIFEST_BYTES:
        raise ImageManifestError(
            f"the manifest {item.digest} is announced with {item.size} bytes; {MAX_MANIFEST_BYTES} are allowed"
        )
    return item


def _media_type(document: Mapping[str, object], content_type: str) -> str:
    """What the document says of itself counts more than what the server says."""
    own = _text(document.get("mediaType"), "mediaType")
    return own or content_type.partition(";")[0].strip().lower()


def _of_type(text: str) -> str:
    """A media type as part of a message, if it is one: nothing else that a registry writes is repeated."""
    name = text.partition(";")[0].strip()
    return f", of type {name}" if _MEDIA_TYPE.fullmatch(name) else ""


def _json(body: bytes, what: str, content_type: str) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        kind = "HTML" if body.lstrip()[:1] == b"<" else "no valid JSON"
        raise ImageManifestError(f"{what} is {kind} ({len(body)} bytes){_of_type(content_type)}") from None


def _descriptor(value: object, place: str) -> Descriptor:
    fields = _object(value, place)
    digest, size = _text(fields.get("digest"), f"{place}.digest"), fields.get("size")
    if not image_ref.is_digest(digest):
        raise ImageManifestError(f"{place}.digest is no digest")
    if not isinstance(size, int) or isinstance(size, bool) or size < 0:
        raise ImageManifestError(f"{place}.size is no size")
    platform = _object(fields.get("platform") or {}, f"{place}.platform")
    return Descriptor(_text(fields.get("mediaType"), f"{place}.mediaType"), digest, size, _platform(platform))


def _platform(fields: Mapping[str, object]) -> Platform | None:
    words = [_text(fields.get(name), name) for name in ("os", "architecture", "variant")]
    if not all(_PLATFORM_WORD.fullmatch(word) for word in words):
        raise ImageManifestError("the image's platform is no platform")
    return Platform(*words) if words[0] or words[1] else None


def _command(value: object, place: str) -> tuple[str, ...]:
    """A list of words; old builders wrote a lone text."""
    if value is None or value == "":
        return ()
    words = [value] if isinstance(value, str) else _list(value, place)
    if not all(isinstance(word, str) and "\0" not in word for word in words):
        raise ImageManifestError(f"{place} is no list of words")
    return tuple(cast(Sequence[str], words))


def _object(value: object, place: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ImageManifestError(f"{place} is no JSON object")
    return cast(dict[str, object], value)


def _list(value: object, place: str) -> list[object]:
    if not isinstance(value, list):
        raise ImageManifestError(f"{place} is no list")
    return cast(list[object], value)


def _text(value: object, place: str) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise ImageManifestError(f"{place} is no text")
    return value
