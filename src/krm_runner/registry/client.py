"""The registry's HTTP API, as much of it as metadata needs: manifests by tag or digest, config blobs.

Every body is held against its digest before anybody reads it. Status codes become faults here, once; of what a registry
writes into its errors only the codes that the specification knows are repeated.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Literal, cast

from yarl import URL

from krm_runner.core import image_ref
from krm_runner.core.image_fault import FaultKind, ImageFault
from krm_runner.core.image_manifest import (
    ACCEPTED,
    MAX_CONFIG_BYTES,
    MAX_MANIFEST_BYTES,
    Descriptor,
    check_content,
    digest_of,
    refuse_schema_1,
)
from krm_runner.core.image_ref import DEFAULT_REGISTRY, ImageRef
from krm_runner.registry.authentication import Authenticator, refused
from krm_runner.registry.exchange import Answer, Request
from krm_runner.registry.keychain import Match
from krm_runner.registry.transport import Transport

_DOCKER_HUB_API = "registry-1.docker.io"
_ERROR_CODES = frozenset(
    {
        "BLOB_UNKNOWN", "DENIED", "DIGEST_INVALID", "MANIFEST_INVALID", "MANIFEST_UNKNOWN", "NAME_INVALID",
        "NAME_UNKNOWN", "PAGINATION_NUMBER_INVALID", "SIZE_INVALID", "TAG_INVALID", "TOOMANYREQUESTS", "UNAUTHORIZED",
        "UNKNOWN", "UNSUPPORTED",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Access:
    """How one image is asked for."""

    image: ImageRef
    match: Match
    private: bool
    deadline: float


@dataclass(frozen=True, slots=True)
class Document:
    """A manifest or index, verified."""

    body: bytes
    content_type: str
    digest: str


class RegistryClient:
    """Asks registries on behalf of whoever has access."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._authenticator = Authenticator(transport)

    async def manifest(self, access: Access) -> Document:
        """What the reference names."""
        answer = await self._ask(access, "manifests", access.image.digest or access.image.tag, MAX_MANIFEST_BYTES)
        refuse_schema_1(answer.headers.get("content-type", ""))
        announced = access.image.digest or answer.headers.get("docker-content-digest", "")
        digest = announced if image_ref.is_digest(announced) else digest_of(answer.body)
        check_content(answer.body, digest=digest)
        return Document(answer.body, answer.headers.get("content-type", ""), digest)

    async def current_digest(self, access: Access) -> str:
        """What a tag points to now, without reading it; empty when the registry does not say."""
        try:
            answer = await self._ask(access, "manifests", access.image.tag, 0, method="HEAD")
        except ImageFault as fault:
            # Some registries refuse HEAD in their own ways; the GET that follows finds out what is the matter.
            if fault.registry_is_away:
                raise
            return ""
        return answer.headers.get("docker-content-digest", "")

    async def child(self, access: Access, descriptor: Descriptor) -> Document:
        """A manifest that an index names."""
        answer = await self._ask(access, "manifests", descriptor.digest, MAX_MANIFEST_BYTES)
        check_content(answer.body, digest=descriptor.digest, size=descriptor.size)
        return Document(answer.body, answer.headers.get("content-type", "") or descriptor.media_type, descriptor.digest)

    async def config(self, access: Access, descriptor: Descriptor) -> bytes:
        """The config blob that a manifest names."""
        answer = await self._ask(access, "blobs", descriptor.digest, min(descriptor.size, MAX_CONFIG_BYTES))
        check_content(answer.body, digest=descriptor.digest, size=descriptor.size)
        return answer.body

    async def _ask(
        self, access: Access, kind: str, name: str, limit: int, *, method: Literal["GET", "HEAD"] = "GET"
    ) -> Answer:
        image, match = access.image, access.match
        authorization = self._authenticator.remembered(image, match)
        request = Request(
            url=_url(image, kind, name),
            limit=max(limit, 1),
            private=access.private,
            method=method,
            headers={"Accept": ", ".join(ACCEPTED)} if kind == "manifests" else {},
            authorization=authorization,
        )
        answer = await self._transport.fetch(request, deadline=access.deadline)
        if answer.status == 401:
            authorization = await self._authenticator.authorize(
                image, match, answer, private=access.private, deadline=access.deadline
            )
            request = Request(
                request.url, request.limit, request.private, method, request.headers, authorization=authorization
            )
            answer = await self._transport.fetch(request, deadline=access.deadline)
        if answer.status != 200:
            raise _fault(access, kind, name, answer)
        return answer


def _url(image: ImageRef, kind: str, name: str) -> URL:
    host = _DOCKER_HUB_API if image.registry == DEFAULT_REGISTRY else image.registry
    # Everything in it passed the reference parser: nothing needs quoting.
    return URL(f"https://{host}/v2/{image.repository}/{kind}/{name}", encoded=True)


def _fault(access: Access, kind: str, name: str, answer: Answer) -> ImageFault:
    image = access.image
    codes = _error_codes(answer.body)
    said = f"status {answer.status}{f' ({codes})' if codes else ''}"
    if answer.status in (401, 403):
        return refused(image, access.match, f"{image.registry} answered with {said}")
    if answer.status == 404:
        what = f"{name} of its manifest" if kind == "blobs" else f'"{name}" in {image.repository}'
        return ImageFault(FaultKind.NOT_FOUND, f"{image.registry} has no {what}: {said}")
    return ImageFault(FaultKind.UNUSABLE, f"{image.registry} answered with {said}")


def _error_codes(body: bytes) -> str:
    try:
        errors = cast("list[dict[str, object]]", json.loads(body)["errors"])
        codes = [str(error["code"]) for error in errors[:3]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return ""
    return ", ".join(code for code in codes if code in _ERROR_CODES)
