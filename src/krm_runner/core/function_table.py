"""Which image is served by which local executable: the exec runtime's configuration file, parsed.

    functions:
      - function: set-namespace-v0.4.1     # a file in the functions directory
        images:
          - ghcr.io/kptdev/krm-functions-catalog/set-namespace:v0.4.1
        standby: 1                         # processes that wait for their input; without it, what --standby says

Refuses what it cannot understand with the place in the file; what is merely odd (an image that stands twice, a field
that nobody reads) is a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from krm_runner.core import image_ref, kubernetes_yaml
from krm_runner.core.errors import ConfigurationError
from krm_runner.core.image_ref import ImageRef

MAX_STANDBY = 8
"""Of one function: more processes that wait would take more memory than they save time."""


@dataclass(frozen=True, slots=True)
class FunctionTable:
    """Executables by canonical image; a look-up is O(1)."""

    executables: Mapping[str, str]
    warnings: tuple[str, ...] = ()
    standby: Mapping[str, int | None] = field(default_factory=dict[str, int | None])
    """How many processes of each executable are to wait for their input; None where the file does not say it."""

    def find(self, image: ImageRef) -> str | None:
        """The name of the executable that serves `image`."""
        return self.executables.get(image.canonical)

    def wanted_in_standby(self, executable: str, *, default: int) -> int:
        """How many processes of an executable are to wait for their input; none if the file does not have it."""
        number = self.standby.get(executable, 0)
        return default if number is None else number


EMPTY_TABLE = FunctionTable({})


def parse(text: bytes, *, source: str, default_prefix: str) -> FunctionTable:
    """The table in a configuration file; ConfigurationError names `source`, the place and the reason."""
    document = kubernetes_yaml.load(text, source=source)
    if document is None:
        return EMPTY_TABLE
    top = _mapping(document, source, "the file")
    warnings = [f'{source}: "{name}" is not known and is ignored' for name in top if name != "functions"]
    executables: dict[str, str] = {}
    standby: dict[str, int | None] = {}
    for place, entry in _entries(top.get("functions"), source, "functions"):
        fields = _mapping(entry, source, place)
        warnings += [
            f'{source}: {place}: "{name}" is not known and is ignored'
            for name in fields
            if name not in ("function", "images", "standby")
        ]
        executable = _executable_name(fields.get("function"), source, place)
        number = _standby(fields.get("standby"), source, place)
        known = standby.get(executable)
        standby[executable] = number if known is None else known
        if known is not None and number not in (None, known):
            warnings.append(
                f'{source}: {place}.standby: "{executable}" stands twice; it keeps its first number, {known}'
            )
        for image_place, image in _entries(fields.get("images"), source, f"{place}.images"):
            key = _canonical(image, source, image_place, default_prefix)
            if key in executables:
                warnings.append(
                    f'{source}: {image_place}: "{image}" stands twice; it keeps its first entry, '
                    f'function "{executables[key]}"'
                )
            else:
                executables[key] = executable
    return FunctionTable(executables, tuple(warnings), standby)


def _mapping(value: object, source: str, place: str) -> dict[str, object]:
    if not isinstance(value, dict):
        raise ConfigurationError(f"{source}: {place} must be a mapping, not {_kind_of(value)}")
    return cast(dict[str, object], value)


def _entries(value: object, source: str, place: str) -> Iterator[tuple[str, object]]:
    if value is None:
        return
    if not isinstance(value, list):
        raise ConfigurationError(f"{source}: {place} must be a list, not {_kind_of(value)}")
    for index, entry in enumerate(cast(list[object], value)):
        yield f"{place}[{index}]", entry


def _executable_name(value: object, source: str, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise ConfigurationError(f"{source}: {place}.function must name a file in the functions directory")
    if "/" in value or "\0" in value or value in (".", ".."):
        raise ConfigurationError(f'{source}: {place}.function: "{value}" must be a file name without a path')
    return value


def _standby(value: object, source: str, place: str) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= MAX_STANDBY:
        raise ConfigurationError(
            f"{source}: {place}.standby must be a whole number from 0 to {MAX_STANDBY}, not {_kind_of(value)}"
        )
    return value


def _canonical(value: object, source: str, place: str, default_prefix: str) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(f"{source}: {place} must be an image, not {_kind_of(value)}")
    try:
        return image_ref.parse(value, default_prefix=default_prefix).canonical
    except image_ref.ImageRefError as error:
        raise ConfigurationError(f'{source}: {place}: "{value}" is no image: {error}') from error


def _kind_of(value: object) -> str:
    match value:
        case None:
            return "nothing"
        case dict():
            return "a mapping"
        case list():
            return "a list"
        case str():
            return "text"
        case _:
            return f"{value}"
