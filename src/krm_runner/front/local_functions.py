"""The functions that the front executes: what the exec runtime's configuration file says, in the front's words."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from krm_runner.core.function_table import FunctionTable
from krm_runner.core.image_ref import ImageRef
from krm_runner.rpc._generated.front_pb2 import Forget, ToFront


@dataclass(frozen=True, slots=True)
class LocalFunction:
    """An executable."""

    name: str
    path: bytes
    standby: int
    """How many of its processes are to wait for calls."""


class LocalFunctions:
    """Looks functions up in the table that is in force."""

    runtime = "exec"

    def __init__(
        self,
        table: Callable[[], FunctionTable],
        *,
        directory: Path,
        default_standby: int,
        is_usable: Callable[[str], bool] = lambda _: True,
    ) -> None:
        """`is_usable` says whether an executable of the table is to serve its images."""
        self._table = table
        self._is_usable = is_usable
        self._directory = os.fsencode(directory.absolute())
        self._default_standby = default_standby

    def find(self, image: ImageRef) -> LocalFunction | None:
        """The one that serves an image."""
        table = self._table()
        name = table.find(image)
        if name is None or not self._is_usable(name):
            return None
        standby = table.wanted_in_standby(name, default=self._default_standby)
        return LocalFunction(name, os.path.join(self._directory, os.fsencode(name)), standby)

    def forget(self) -> ToFront:
        """What the front is told when the table is another."""
        table = self._table()
        standby = {name: table.wanted_in_standby(name, default=self._default_standby) for name in table.standby}
        return ToFront(forget=Forget(standby=standby))
