"""The exec runtime's configuration file on disk: read at the start, read again when it changes.

A broken new file never replaces a good table: the old one stays in force and the log says why.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import structlog

from krm_runner.core import function_table
from krm_runner.core.errors import ConfigurationError
from krm_runner.core.function_table import EMPTY_TABLE, FunctionTable
from krm_runner.files.watched_file import Signature, signature_of, wait_for_change

_log = structlog.get_logger("krm_runner.exec")


class FunctionFile:
    """Holds the table that is in force."""

    def __init__(self, path: Path, *, required: bool, functions: Path, default_prefix: str) -> None:
        self._path = path
        self._required = required
        self._functions = functions
        self._default_prefix = default_prefix
        self._signature: Signature = None
        self.on_change: Callable[[FunctionTable], None] | None = None
        """Told the table that is in force from now on."""
        self.table: FunctionTable = EMPTY_TABLE

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
        """Read the file again; when that fails, the table in force stays."""
        self._signature = signature_of(self._path)
        try:
            table = self._read(may_be_empty=False)
        except ConfigurationError as error:
            _log.error("configuration not reloaded, the old one stays in force", error=str(error))
            return
        self._replace(table)
        _log.info("configuration reloaded", path=str(self._path), images=len(table.executables))

    async def watch(self) -> None:
        """Reload whenever the file changes; never returns."""
        while True:
            await wait_for_change(self._path, lambda: self._signature)
            if signature_of(self._path) is None:
                self._signature = None
                _log.error("the configuration file is gone, the old configuration stays in force", path=str(self._path))
            else:
                self.reload()

    def _read(self, *, may_be_empty: bool = True) -> FunctionTable:
        try:
            text = self._path.read_bytes()
        except OSError as error:
            raise ConfigurationError(f"cannot read {self._path}: {error.strerror} (--config)") from error
        if not may_be_empty and not text.strip():
            raise ConfigurationError(f"{self._path} is empty")
        return function_table.parse(text, source=str(self._path), default_prefix=self._default_prefix)

    def _replace(self, table: FunctionTable) -> None:
        self.table = table
        for warning in table.warnings:
            _log.warning(warning)
        for name in sorted(set(table.executables.values())):
            if not os.path.isfile(self._functions / name):
                _log.warning("a configured function is not there", function=name, directory=str(self._functions))
        if self.on_change is not None:
            self.on_change(table)
