"""A file that is read when it is needed, and again after it changed: credentials, certificates, configuration.

A broken new version never replaces a good one: the old one stays in force, the log says why, and `problem` says it for
error messages. Nothing here watches by itself: a look at the file's status comes with every use
(`refresh`), and who wants to act on a change awaits `wait_for_change`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from krm_runner.core.errors import ConfigurationError

T = TypeVar("T")

_log = structlog.get_logger("krm_runner.files")
_MAX_BYTES = 8 * 1024 * 1024
_LOOK_INTERVAL = 1.0

Signature = tuple[int, int, int, int] | None


class WatchedFile(Generic[T]):
    """Parses the file with `parse`, which raises ConfigurationError; `absent` stands in for a missing file."""

    def __init__(self, path: Path, *, parse: Callable[[bytes], T], absent: T, is_expected: bool = True) -> None:
        self.path = path
        self.problem = ""
        self._parse = parse
        self._absent = self._value = absent
        self._is_expected = is_expected
        self._signature: Signature = None
        self._has_looked = False
        self._reading = asyncio.Lock()

    def load(self) -> T:
        """Read it for the first time, before anything starts: ConfigurationError when it is broken or missing."""
        signature = signature_of(self.path)
        self._value = self._parse(read_bounded(self.path))
        self._signature, self._has_looked = signature, True
        return self._value

    async def wait_for_change(self) -> None:
        """Return when the next `refresh` will read the file."""
        await wait_for_change(self.path, lambda: self._signature)

    async def refresh(self) -> T:
        """Return what the file says, as far as it could be understood. A changed file is read off the event loop."""
        async with self._reading:
            if self._has_looked and signature_of(self.path) == self._signature:
                return self._value
            return await asyncio.to_thread(self._refresh)

    def _refresh(self) -> T:
        signature = signature_of(self.path)
        is_first = not self._has_looked
        self._signature, self._has_looked = signature, True
        try:
            if signature is None and not self._is_expected:
                self._value = self._absent
                return self._value
            self._value = self._parse(read_bounded(self.path))
        except ConfigurationError as error:
            self.problem = str(error)
            _log.error(
                "file not read" if is_first else "file not read again, the old version stays", error=self.problem
            )
        else:
            self.problem = ""
            if not is_first:
                _log.info("file read again", path=str(self.path))
        return self._value


def signature_of(path: Path) -> Signature:
    """What changes when the file does; a mounted secret's swapped links are seen as well."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_dev


async def wait_for_change(path: Path, known: Callable[[], Signature]) -> None:
    """Returns when the file is another than the known version; its absence is a version, too.

    A look a second also sees a ConfigMap's swapped links.
    """
    await wait_for_another(lambda: signature_of(path), known)


async def wait_for_another(look: Callable[[], T], known: Callable[[], T]) -> None:
    """Returns when two looks in a row saw the same, and not what is known: files just being written are not read."""
    previous = known()
    while True:
        await asyncio.sleep(_LOOK_INTERVAL)
        seen = look()
        if seen == previous != known():
            return
        previous = seen


def read_bounded(path: Path) -> bytes:
    """The file's content; ConfigurationError when it cannot be read or is far too large."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigurationError(f"cannot read {path}: {error.strerror}") from error
    if len(content) > _MAX_BYTES:
        raise ConfigurationError(f"{path} is larger than {_MAX_BYTES} bytes")
    return content
