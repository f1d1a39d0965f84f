"""Images resolved: from the image map, from the cache, or from the registry, which is asked once however many ask.

The policy of what is kept is `core.image_cache`'s. This module performs it: one task per image that is being looked up
(a flight); everybody who wants that image waits for the same flight, and whoever gives up leaves it to the others.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from krm_runner.core.errors import UnexpectedError
from krm_runner.core.image_cache import Failed, Freshness, ImageCache, Known
from krm_runner.core.image_fault import FaultKind, ImageFault
from krm_runner.core.image_manifest import (
    MAX_INDEX_DEPTH,
    ImageManifestError,
    Index,
    Manifest,
    parse_config,
    parse_manifest,
)
from krm_runner.core.image_map import ImageMap
from krm_runner.core.image_metadata import ImageMetadata, Platform
from krm_runner.core.image_ref import ImageRef
from krm_runner.files.watched_file import WatchedFile
from krm_runner.registry.client import Access, Document, RegistryClient
from krm_runner.registry.keychain import Keychains
from krm_runner.telemetry import internal_errors

_log = structlog.get_logger("krm_runner.registry")
_RENEWAL_TIMEOUT = 5.0
"""How long a caller waits for the registry when there is an old answer to fall back on."""
_MAPPED_SECONDS = 5.0
"""For how long an entry of the image map is relied on without a look at the file."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """An image's metadata, and how the runner came by it."""

    metadata: ImageMetadata
    source: str
    """`image map`, `cache`, `stale cache` or `registry`."""
    fresh_until: float
    """Until when nobody needs to look again."""


class ImageResolver:
    """An async context manager: flights live as long as it does."""

    def __init__(
        self,
        client: RegistryClient,
        keychains: Keychains,
        cache: ImageCache,
        *,
        platform: Platform,
        timeout: float,
        image_map: WatchedFile[ImageMap] | None = None,
    ) -> None:
        self._client = client
        self._keychains = keychains
        self._cache = cache
        self._platform = platform
        self._timeout = timeout
        self._image_map = image_map
        self._flights: dict[str, asyncio.Task[Known | Exception]] = {}
        self._tasks = asyncio.TaskGroup()

    async def __aenter__(self) -> ImageResolver:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        for flight in self._flights.values():
            flight.cancel()
        await self._tasks.__aexit__(None, None, None)

    async def look_up(self, reference: ImageRef, *, image: str, deadline: float | None = None) -> Resolution:
        """What the image is, and who says so; an EvaluationError that names `image` when it cannot be had.

        TimeoutError when that is not known at the deadline, on the event loop's clock.
        """
        now = asyncio.get_running_loop().time()
        if self._image_map is not None and (mapped := (await self._image_map.refresh()).find(reference)):
            return Resolution(mapped, "image map", now + _MAPPED_SECONDS)
        known = self._cache.find(reference, now=now)
        if isinstance(known, Failed):
            raise known.fault.to_error(image)
        if known is not None and known.freshness(now) is Freshness.FRESH:
            return _resolution(known, "cache")
        flight = self._flight(reference, known)
        if known is not None and known.is_stale:
            # The registry was away a moment ago: nobody waits to find out whether it still is.
            return _resolution(known, "cache")
        async with asyncio.timeout_at(deadline):
            # Shielded: the end of one caller is not the end of the flight.
            outcome = await asyncio.shield(flight)
        if isinstance(outcome, ImageFault):
            raise outcome.to_error(image) from outcome
        if isinstance(outcome, Exception):
            raise UnexpectedError(image, cause=outcome) from outcome
        return _resolution(outcome, "registry")

    def _flight(self, reference: ImageRef, known: Known | None) -> asyncio.Task[Known | Exception]:
        """The task that asks the registry, started if there is none."""
        flight = self._flights.get(reference.canonical)
        if flight is None:
            flight = self._flights[reference.canonical] = self._tasks.create_task(self._fly(reference, known))
        return flight

    async def _fly(self, reference: ImageRef, known: Known | None) -> Known | Exception:
        """Ask the registry; never raises, since its task is everybody's."""
        loop = asyncio.get_running_loop()
        seconds = self._timeout if known is None else min(self._timeout, _RENEWAL_TIMEOUT)
        try:
            metadata = await self._ask(reference, known, deadline=loop.time() + seconds)
            if known is not None and metadata.digest != known.metadata.digest:
                _log.info("tag moved", image=reference.canonical, digest=metadata.digest, was=known.metadata.digest)
            return self._cache.resolved(metadata, now=loop.time())
        except ImageFault as fault:
            kept = self._cache.failed(reference, fault, now=loop.time())
            if kept is None:
                return fault
            # Once: while the registry stays away, everybody who looks at the log knows it already.
            log = _log.debug if known is not None and known.is_stale else _log.warning
            log("registry away, the tag is served as it was known", image=reference.canonical, error=fault.why)
            return kept
        except Exception as error:
            internal_errors.report("image", error, image=reference.canonical)
            return error
        finally:
            del self._flights[reference.canonical]

    async def _ask(self, reference: ImageRef, known: Known | None, *, deadline: float) -> ImageMetadata:
        match = await self._keychains.find(reference)
        access = Access(reference, match, self._keychains.is_private(reference), deadline)
        try:
            if known is not None and await self._client.current_digest(access) == known.metadata.digest:
                return known.metadata
            document = await self._client.manifest(access)
            manifest, manifest_digest = await self._manifest_of_platform(access, document)
            config = parse_config(await self._client.config(access, manifest.config))
        except ImageManifestError as error:
            raise ImageFault(FaultKind.UNUSABLE, f"{reference.registry}: {error}") from error
        if config.platform is not None and (config.platform.os, config.platform.architecture) != (
            self._platform.os,
            self._platform.architecture,
        ):
            _log.warning(
                "image is for another platform", image=reference.canonical, platform=str(config.platform),
                wanted=str(self._platform),
            )  # fmt: skip
        return ImageMetadata(
            reference, document.digest, manifest_digest, config.platform, config.entrypoint, config.cmd
        )

    async def _manifest_of_platform(self, access: Access, document: Document) -> tuple[Manifest, str]:
        for _ in range(MAX_INDEX_DEPTH + 1):
            parsed = parse_manifest(document.body, document.content_type)
            if not isinstance(parsed, Index):
                return parsed, document.digest
            document = await self._client.child(access, parsed.choose(self._platform))
        raise ImageManifestError(f"indexes are nested more than {MAX_INDEX_DEPTH} deep")


def _resolution(known: Known, source: str) -> Resolution:
    return Resolution(known.metadata, "stale cache" if known.is_stale else source, known.fresh_until)
