"""Functions that have a life of their own: which to warm up, and what limits they have. The file, parsed.

    - name: ghcr.io/kptdev/krm-functions-catalog/set-namespace:v0.4.1
      timeToLive: 30m
      maxWaitlistLength: 2
      maxParallelPodsPerFunction: 2
      minReadyPods: 1
      resources: {requests: {cpu: 100m}, limits: {memory: 256Mi}}

A mapping of images to times, `image: 30m`, is taken as well: Porch had that up to 1.5.7. What an entry leaves out, or
says as 0, is what the flags say. Refuses a file with a wrong entry as a whole and names
all that is wrong with it: half a file would silently run functions with other limits than somebody wrote down.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar, cast

from krm_runner.core import image_ref, kubernetes_yaml
from krm_runner.core.duration import duration
from krm_runner.core.errors import ConfigurationError
from krm_runner.core.image_ref import ImageRef, ImageRefError
from krm_runner.core.json_object import JsonObject
from krm_runner.core.resources import NO_RESOURCES, Resources, parse_resources

T = TypeVar("T")

_FIELDS = ("name", "timeToLive", "maxWaitlistLength", "maxParallelPodsPerFunction", "minReadyPods", "resources")
_MAX_WAITLIST_LENGTH = 1_000_000
_MAX_PARALLEL_PODS = 10_000


@dataclass(frozen=True, slots=True)
class FunctionConfig:
    """What one function's pods are like; None is what the flags say."""

    name: str
    """As the file has it, for messages."""
    image: ImageRef
    ttl: float | None = None
    max_waitlist_length: int | None = None
    max_parallel_pods: int | None = None
    min_ready_pods: int | None = None
    resources: Resources = NO_RESOURCES


@dataclass(frozen=True, slots=True)
class PodCacheConfig:
    """Functions by canonical image, in the order of the file."""

    functions: Mapping[str, FunctionConfig] = field(default_factory=dict[str, FunctionConfig])
    warnings: tuple[str, ...] = ()

    def find(self, image: ImageRef) -> FunctionConfig | None:
        """What the file says of a function."""
        return self.functions.get(image.canonical)


EMPTY_CONFIG = PodCacheConfig()


def parse_pod_cache_config(text: bytes, *, source: str, default_prefix: str) -> PodCacheConfig:
    """The functions in a file; ConfigurationError is one line that names `source` and every wrong entry."""
    document = kubernetes_yaml.load(text, source=source)
    if document is None:
        return EMPTY_CONFIG
    if isinstance(document, dict):
        # As Porch wrote it up to 1.5.7.
        document = [{"name": name, "timeToLive": ttl} for name, ttl in cast(JsonObject, document).items()]
    if not isinstance(document, list):
        raise ConfigurationError(
            f"{source}: the file must be a list of functions, each with a name, or a mapping such as `image: 30m`"
        )
    functions: dict[str, FunctionConfig] = {}
    warnings: list[str] = []
    faults: list[str] = []
    for index, entry in enumerate(cast(list[object], document)):
        reader = _Entry(entry, f"[{index}]", default_prefix)
        found = reader.read()
        faults += reader.faults
        warnings += [f"{source}: {warning}" for warning in reader.warnings]
        if found is None:
            continue
        if found.image.canonical in functions:
            warnings.append(f'{source}: [{index}]: "{found.name}" stands twice; it keeps its first entry')
        else:
            functions[found.image.canonical] = found
    if faults:
        raise ConfigurationError(f"{source}: {'; '.join(faults)}")
    return PodCacheConfig(functions, tuple(warnings))


class _Entry:
    """Reads one entry to its end, whatever is wrong with it."""

    def __init__(self, value: object, place: str, default_prefix: str) -> None:
        self.faults: list[str] = []
        self.warnings: list[str] = []
        self._place = place
        self._default_prefix = default_prefix
        self._fields: JsonObject = {}
        if isinstance(value, dict):
            self._fields = cast(JsonObject, value)
        else:
            self.faults.append(f"{place} must be a mapping with a name")

    def read(self) -> FunctionConfig | None:
        """The entry; None when something is wrong with it."""
        if self.faults:
            return None
        self.warnings += [
            f'{self._place}: "{name}" is not known and is ignored' for name in self._fields if name not in _FIELDS
        ]
        name = self._fields.get("name")
        image = self._parsed("name", self._image)
        if isinstance(name, str) and name:
            self._place += f" ({name})"
        ttl = self._parsed("timeToLive", _ttl)
        waitlist = self._parsed("maxWaitlistLength", _count(_MAX_WAITLIST_LENGTH))
        pods = self._parsed("maxParallelPodsPerFunction", _count(_MAX_PARALLEL_PODS))
        ready = self._parsed("minReadyPods", _count(_MAX_PARALLEL_PODS, none="none"))
        if pods is not None and ready is not None and ready > pods:
            self.faults.append(f"{self._place}: minReadyPods is {ready}, and maxParallelPodsPerFunction allows {pods}")
        resources = NO_RESOURCES
        try:
            resources = parse_resources(self._fields.get("resources"))
        except ValueError as error:
            self.faults.append(f"{self._place}: {error}")
        if self.faults or image is None:
            return None
        return FunctionConfig(str(name), image, ttl, waitlist, pods, ready, resources)

    def _parsed(self, name: str, parse: Callable[[object], T]) -> T | None:
        try:
            return parse(self._fields.get(name))
        except ValueError as error:
            self.faults.append(f"{self._place}: {name} must be {error}")
            return None

    def _image(self, value: object) -> ImageRef:
        if not isinstance(value, str) or not value:
            raise ValueError("an image")
        try:
            return image_ref.parse(value, default_prefix=self._default_prefix)
        except ImageRefError as error:
            raise ValueError(f'an image, and "{value}" is none: {error}') from error


def _ttl(value: object) -> float | None:
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise ValueError("a duration such as 30m, 1h30m or 90s")
    return duration(value) or None


def _count(high: int, *, none: str = "what the flag says") -> Callable[[object], int | None]:
    def parse(value: object) -> int | None:
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= high:
            raise ValueError(f"a whole number from 1 to {high}, or 0 for {none}")
        return value or None

    return parse
