"""Every flag of `krm-runner image`, and the settings that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from krm_runner.core import image_ref
from krm_runner.core.errors import ConfigurationError
from krm_runner.core.image_ref import ImageRef
from krm_runner.settings.go_flags import Flag, choice, integer, parse_flags
from krm_runner.settings.registries import REGISTRY_FLAGS, RegistrySettings, registry_settings

_GENERAL = "General"

IMAGE_FLAGS: tuple[Flag, ...] = (
    Flag("output", _GENERAL, "text", "text or json", choice("text", "json"), short="o"),
    Flag("log-level", _GENERAL, "1", "0 errors, 1 warnings, 3 every request; on stderr", integer(0, 5)),
    Flag(
        "default-image-prefix",
        _GENERAL,
        "ghcr.io/kptdev/krm-functions-catalog",
        "put before an image without registry and path",
    ),
    *REGISTRY_FLAGS,
)


@dataclass(frozen=True, slots=True)
class ImageSettings:
    """One look at an image."""

    image: str
    reference: ImageRef
    output: Literal["text", "json"]
    log_level: int
    default_image_prefix: str
    registries: RegistrySettings


def parse_image_settings(argv: Sequence[str]) -> ImageSettings:
    """The settings of `krm-runner image ARGV`; ConfigurationError with one line when they make no sense."""
    flags = parse_flags(IMAGE_FLAGS, argv, takes_arguments=True)
    if len(flags.arguments) != 1:
        raise ConfigurationError("name one image, such as set-namespace:v0.4.1")
    image, prefix = flags.arguments[0], cast(str, flags.values["default-image-prefix"])
    try:
        reference = image_ref.parse(image, default_prefix=prefix)
    except image_ref.ImageRefError as error:
        raise ConfigurationError(f'"{image}" is no valid image: {error}') from error
    return ImageSettings(
        image=image,
        reference=reference,
        output=cast("Literal['text', 'json']", flags.values["output"]),
        log_level=cast(int, flags.values["log-level"]),
        default_image_prefix=prefix,
        registries=registry_settings(flags),
    )
