"""Files that are read at the start, together, and kept up to date from then on: certificates, tokens, keys.

At the start whatever is wrong with them is an error; later a broken new version never replaces a good one: the old one
stays in force, and the log says why. Who uses them looks at no file: that is done in the background, once a second.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from krm_runner.core.errors import ConfigurationError
from krm_runner.files.watched_file import Signature, read_bounded, signature_of, wait_for_another

T = TypeVar("T")

_log = structlog.get_logger("krm_runner.files")


def _nobody_listens() -> None:
    pass


class KeptFiles(Generic[T]):
    """Makes one value of several files; `parse` gets their contents in order, and raises ConfigurationError."""

    def __init__(self, paths: Sequence[Path], *, parse: Callable[[Sequence[bytes]], T]) -> None:
        """ConfigurationError when a file is missing or broken."""
        self._paths = tuple(paths)
        self._parse = parse
        self._seen = self._look()
        self.current = self._read()
        """What counts now."""

    async def keep(self, changed: Callable[[], None] = _nobody_listens) -> None:
        """Read them again whenever one has changed, and tell when there is another value; never returns."""
        while True:
            await wait_for_another(self._look, lambda: self._seen)
            seen = self._look()
            try:
                value = await asyncio.to_thread(self._read)
            except ConfigurationError as error:
                if self._look() == seen:
                    self._seen = seen
                    _log.error("files not read again, the old version stays", error=str(error))
                # Else they were caught in the middle of a change.
                continue
            self._seen = seen
            if value != self.current:
                self.current = value
                _log.info("files read again", paths=", ".join(map(str, self._paths)))
                changed()

    def _look(self) -> tuple[Signature, ...]:
        return tuple(map(signature_of, self._paths))

    def _read(self) -> T:
        return self._parse([read_bounded(path) for path in self._paths])
