"""Tasks with an owner: none is forgotten, none fails without a word, and all end with their owner."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from krm_runner.telemetry import internal_errors


class Tasks:
    """One that fails is logged, and does not end the others."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any], *, name: str) -> asyncio.Task[Any]:
        """Begin; `name` is for the log."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    async def stop(self) -> None:
        """Cancel all that still run, and wait for their end."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            internal_errors.report("job", error, what=task.get_name())
