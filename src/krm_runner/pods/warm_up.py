"""Starts a pod for every function of `--pod-cache-config` before anybody calls it.

A few at a time, so that a long file does not overwhelm the cluster or the registries. A function that cannot be started
is logged with its reason and holds up nobody: its first caller will hear the same. How long one start may take is for
`start` to bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import structlog

from krm_runner.core.errors import EvaluationError
from krm_runner.core.pod_cache_config import FunctionConfig
from krm_runner.pods.function_limits import FunctionLimits

_log = structlog.get_logger("krm_runner.pods")


class WarmUp:
    """Runs over all functions, once now and once more whenever it is asked to."""

    def __init__(
        self, functions: FunctionLimits, start: Callable[[FunctionConfig], Awaitable[None]], *, at_once: int = 8
    ) -> None:
        self.done = asyncio.Event()
        """Every function was tried at least once."""
        self._functions = functions
        self._start = start
        self._at_once = at_once
        self._is_running = False
        self._is_asked = False

    async def run(self) -> None:
        """See that every function has a pod; never raises.

        There is one run at a time: who asks during one gets another after it, by whoever runs the first, and does not
        wait for it.
        """
        self._is_asked = True
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._is_asked:
                self._is_asked = False
                await self._run_once()
                self.done.set()
        finally:
            self._is_running = False

    async def _run_once(self) -> None:
        functions = self._functions.configured
        if not functions:
            return
        loop = asyncio.get_running_loop()
        begin, remaining = loop.time(), iter(functions)
        async with asyncio.TaskGroup() as group:
            workers = [
                group.create_task(self._work(remaining), name="warm-up")
                for _ in range(min(self._at_once, len(functions)))
            ]
        warm = sum(worker.result() for worker in workers)
        seconds = round(loop.time() - begin, 3)
        _log.info("warm-up done", functions=warm, failed=len(functions) - warm, seconds=seconds)

    async def _work(self, remaining: Iterator[FunctionConfig]) -> int:
        """Start one after the other; how many it could."""
        warm = 0
        for function in remaining:
            warm += await self._try(function)
        return warm

    async def _try(self, function: FunctionConfig) -> bool:
        try:
            await self._start(function)
        except EvaluationError as error:
            _log.warning("not warmed up", image=function.name, reason=error.reason, error=str(error))
            return False
        except Exception as error:
            # A mistake of ours; it must not keep the others cold.
            _log.error("not warmed up", image=function.name, error=repr(error), exc_info=True)
            return False
        return True
