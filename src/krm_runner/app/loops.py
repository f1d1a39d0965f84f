"""Loops that must go on for as long as the service runs: if one ends, the service ends.

A service whose watch has died looks healthy and serves pods that are gone. An API server or a registry that is away is
not the end of a loop: each loop waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import NoReturn

import structlog

from krm_runner.core.errors import ServeError

_log = structlog.get_logger("krm_runner")


class Loops:
    """The loops of one part of the service."""

    def __init__(self) -> None:
        self._tasks: dict[asyncio.Task[object], str] = {}
        self._failure: asyncio.Future[ServeError] = asyncio.get_running_loop().create_future()

    def start(self, loop: Coroutine[object, object, object], *, name: str) -> None:
        """Run a coroutine that never returns; `name` says in the log what it does."""
        task = asyncio.get_running_loop().create_task(loop, name=name)
        self._tasks[task] = name
        task.add_done_callback(self._ended)

    async def supervise(self) -> NoReturn:
        """Raise ServeError as soon as a loop has ended, also if that was before this call."""
        raise await self._failure

    async def stop(self) -> None:
        """Cancel all loops, and wait for their end."""
        tasks = list(self._tasks)
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[object]) -> None:
        name = self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if name is None:
            return  # it was stopped
        _log.error("loop ended unexpectedly: the service ends", loop=name, exc_info=error)
        if not self._failure.done():
            why = f"{type(error).__name__}: {error}" if error is not None else "without an error"
            self._failure.set_result(ServeError(f'the loop "{name}" ended unexpectedly ({why}); its log has more'))
