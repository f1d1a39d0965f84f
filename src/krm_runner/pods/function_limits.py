"""What each function's pods may be: the flags' limits, and over them what `--pod-cache-config` says of a function.

The file is read at the start and again when it changes. A file that is not there is a warning: the flags alone count.
One that is broken at the start is an error of whoever starts the service; a broken, empty or vanished one later never
replaces a good one. `of` is asked on every call: it looks up what was worked out when the file was read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from krm_runner.core.errors import ConfigurationError
from krm_runner.core.file_warnings import summarized
from krm_runner.core.pod_cache_config import EMPTY_CONFIG, FunctionConfig, PodCacheConfig, parse_pod_cache_config
from krm_runner.core.pool_terms import Limits
from krm_runner.core.resources import NO_RESOURCES, Resources
from krm_runner.core.spare import SPARE
from krm_runner.files.watched_file import WatchedFile, signature_of

_log = structlog.get_logger("krm_runner.pods")


@dataclass(frozen=True, slots=True)
class FunctionRules:
    """What one function may have."""

    limits: Limits
    resources: Resources


class FunctionLimits:
    """Holds the rules that are in force."""

    def __init__(
        self,
        path: Path,
        *,
        default_prefix: str,
        ttl: float,
        max_waitlist_length: int,
        max_parallel_pods: int,
        max_queue_length: int,
        spares: int = 0,
    ) -> None:
        self._default_prefix = default_prefix
        self._ttl = ttl
        self._max_waitlist_length = max_waitlist_length
        self._max_parallel_pods = max_parallel_pods
        self._max_queue_length = max_queue_length
        self._file = WatchedFile(path, parse=self._parse, absent=EMPTY_CONFIG)
        self._may_be_empty = True
        self._config = EMPTY_CONFIG
        self._default = self._work_out()
        self._spares = self._work_out(pods=spares, ready=spares)
        self._rules: Mapping[str, FunctionRules] = {}

    def load(self) -> None:
        """Read the file for the first time; ConfigurationError when it is broken."""
        path = self._file.path
        if signature_of(path) is None:
            _log.warning(
                "no pod cache configuration: no function is warmed up, and all have the limits of the flags",
                path=str(path),
                hint="name one with --pod-cache-config; it is read when it appears",
            )
        else:
            self._apply(self._file.load())
        self._may_be_empty = False

    @property
    def configured(self) -> Sequence[FunctionConfig]:
        """The functions of the file, in its order."""
        return tuple(self._config.functions.values())

    def of(self, image: str) -> FunctionRules:
        """The rules of a function, by its canonical image; or of spares."""
        return self._spares if image == SPARE else self._rules.get(image, self._default)

    async def watch(self, changed: Callable[[], None]) -> None:
        """Apply the file whenever it changes, and tell; never returns."""
        while True:
            await self._file.wait_for_change()
            config = await self._file.refresh()
            if config == self._config:
                continue
            self._apply(config)
            _log.info("pod cache configuration read", path=str(self._file.path), functions=len(config.functions))
            changed()

    def _parse(self, text: bytes) -> PodCacheConfig:
        source = str(self._file.path)
        if not self._may_be_empty and not text.strip():
            raise ConfigurationError(f"{source} is empty; a file without functions is written as []")
        return parse_pod_cache_config(text, source=source, default_prefix=self._default_prefix)

    def _apply(self, config: PodCacheConfig) -> None:
        for warning in summarized(config.warnings):
            _log.warning(warning)
        self._config = config
        self._rules = {
            image: self._work_out(
                ttl=function.ttl,
                waitlist=function.max_waitlist_length,
                pods=function.max_parallel_pods,
                ready=function.min_ready_pods,
                resources=function.resources,
            )
            for image, function in config.functions.items()
        }

    def _work_out(
        self,
        *,
        ttl: float | None = None,
        waitlist: int | None = None,
        pods: int | None = None,
        ready: int | None = None,
        resources: Resources = NO_RESOURCES,
    ) -> FunctionRules:
        # Whoever wants so many ready allows as many.
        max_pods = max(pods or self._max_parallel_pods, ready or 0)
        limits = Limits(
            waitlist=waitlist or self._max_waitlist_length,
            max_pods=max_pods,
            # The pool counts all calls of a function, and as many as it has pods are not waiting.
            max_calls=self._max_queue_length + max_pods,
            ttl=ttl or self._ttl,
            min_ready=ready or 0,
        )
        return FunctionRules(limits, resources)
