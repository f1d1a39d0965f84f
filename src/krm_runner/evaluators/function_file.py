"""The exec runtime's configuration file on disk: read at the start, read again when it changes.

A broken new file never replaces a good table: the old one stays in force and the log says why.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import structlog

from krm_runner.core import function_table
from krm_runner.core.errors import ConfigurationError
from krm_runner.core.file_warnings import summarized
from krm_runner.core.function_table import EMPTY_TABLE, FunctionTable
from krm_runner.files.watched_file import Signature, read_bounded, signature_of, wait_for_change

_log = structlog.get_logger("krm_runner.exec")


class FunctionFile:
    """Holds the table that is in force."""

    def __init__(
        self, path: Path, *, required: bool, functions: Path, default_prefix: str, may_fall_back: bool = False
    ) -> None:
        """`may_fall_back`: an image whose executable is missing is left to another runtime."""
        self._path = path
        self._required = required
        self._functions = functions
        self._default_prefix = default_prefix
        self._may_fall_back = may_fall_back
        self._signature: Signature = None
        self._is_asked = asyncio.Event()
        self.on_change: Callable[[FunctionTable], None] | None = None
        """Told the table that is in force from now on."""
        self.table: FunctionTable = EMPTY_TABLE

    def is_usable(self, name: str) -> bool:
        """Whether an executable is to serve its images: not one that is missing, if another runtime may serve them."""
        return not self._may_fall_back or os.path.isfile(self._functions / name)

    def load(self) -> None:
        """Read the file for the first time; ConfigurationError when it is broken, or missing though asked for."""
        self._signature = signature_of(self._path)
        if self._signature is None and not self._required:
            _log.warning(
                "no configuration file: the exec runtime knows no function",
                path=str(self._path),
                hint="name one with --config, or start with --disable-runtimes=exec",
            )
            return
        self._replace(self._read())

    def reload(self) -> None:
        """Have `watch` read the file again, changed or not."""
        self._is_asked.set()

    async def watch(self) -> None:
        """Read the file again whenever it changes or somebody asks for it; never returns.

        What cannot be read leaves the table in force as it is.
        """
        while True:
            await self._wait_for_change()
            signature = signature_of(self._path)
            if signature is None:
                self._signature = None
                _log.error("the configuration file is gone, the old configuration stays in force", path=str(self._path))
                continue
            self._signature = signature
            try:
                # A large file takes a while, in which calls go on.
                table = await asyncio.to_thread(self._read, may_be_empty=False)
            except ConfigurationError as error:
                _log.error("configuration not reloaded, the old one stays in force", error=str(error))
                continue
            self._replace(table)
            _log.info("configuration reloaded", path=str(self._path), images=len(table.executables))

    async def _wait_for_change(self) -> None:
        change = asyncio.ensure_future(wait_for_change(self._path, lambda: self._signature))
        asked = asyncio.ensure_future(self._is_asked.wait())
        try:
            await asyncio.wait((change, asked), return_when=asyncio.FIRST_COMPLETED)
        finally:
            change.cancel()
            asked.cancel()
        self._is_asked.clear()

    def _read(self, *, may_be_empty: bool = True) -> FunctionTable:
        try:
            text = read_bounded(self._path)
        except ConfigurationError as error:
            raise ConfigurationError(f"{error} (--config)") from error
        if not may_be_empty and not text.strip():
            raise ConfigurationError(f"{self._path} is empty")
        return function_table.parse(text, source=str(self._path), default_prefix=self._default_prefix)

    def _replace(self, table: FunctionTable) -> None:
        self.table = table
        for warning in summarized(table.warnings):
            _log.warning(warning)
        if missing := [name for name in sorted(table.standby) if not os.path.isfile(self._functions / name)]:
            _log.warning(
                "configured functions are not there",
                functions=", ".join(summarized(missing)),
                directory=str(self._functions),
                because="their images are served in pods" if self._may_fall_back else "their calls fail",
            )
        if self.on_change is not None:
            self.on_change(table)
