"""The runner's own resolver, composed as the service composes it, with the flags of the command line."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from krm_runner.app.images import open_images
from krm_runner.core import image_ref
from krm_runner.core.errors import EvaluationError
from krm_runner.registry.resolver import ImageResolver, Resolution
from krm_runner.settings.image import parse_image_settings


@asynccontextmanager
async def resolver(*flags: str) -> AsyncGenerator[ImageResolver]:
    """A resolver with a cache of its own."""
    settings = parse_image_settings([*flags, "any"])
    async with open_images(settings.registries, default_prefix=settings.default_image_prefix) as images:
        yield images.resolver


async def look_up(image: str, *flags: str) -> Resolution:
    """One image, by a fresh resolver."""
    async with resolver(*flags) as fresh:
        return await fresh.look_up(image_ref.parse(image), image=image)


async def failure(image: str, *flags: str) -> EvaluationError:
    """The error that looking up one image ends with."""
    try:
        found = await look_up(image, *flags)
    except EvaluationError as error:
        return error
    raise AssertionError(f"no error: {found}")


def write_auths(path: Path, auths: dict[str, dict[str, str]], **more: object) -> Path:
    """A docker config."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"auths": auths, **more}))
    return path
