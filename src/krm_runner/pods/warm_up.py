"""Starts a pod for every function of `--pod-cache-config` before anybody calls it.

A few at a time, so that a long file does not overwhelm the cluster or the registries. A function that cannot be started
is logged with its reason and holds up nobody: its first caller will hear the same. One that is to be ready at all times
(`minReadyPods`) is tried again, after a while that grows. How long one start may take is for `start` to bound.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress

import structlog

from krm_runner.core.backoff import Backoff
from krm_runner.core.errors import EvaluationError
from krm_runner.core.pod_cache_config import FunctionConfig
from krm_runner.pods.function_limits import FunctionLimits
from krm_runner.telemetry import internal_errors

_log = structlog.get_logger("krm_runner.pods")
_AGAIN = Backoff(first=10.0, longest=300.0)


class WarmUp:
    """Runs over all functions, once now and once more whenever it is asked to."""

    def __init__(
        self,
        functions: FunctionLimits,
        start: Callable[[FunctionConfig], Awaitable[None]],
        *,
        at_once: int = 8,
        again: Backoff = _AGAIN,
    ) -> None:
        self.done = asyncio.Event()
        """Every function was tried at least once."""
        self._functions = functions
        self._start = start
        self._at_once = at_once
        self._again = again
        self._is_running = False
        self._asked = asyncio.Event()

    async def run(self) -> None:
        """See that every function has a pod; never raises, and goes on while one that must be ready is not.

        There is one run at a time: who asks during one gets another after it, by whoever runs the first, and does not
        wait for it.
        """
        self._asked.set()
        if self._is_running:
            return
        self._is_running = True
        try:
            while self._asked.is_set():
                self._asked.clear()
                missing = await self._run_over(self._functions.configured)
                self.done.set()
                await self._insist(missing)
        finally:
            self._is_running = False

    async def _insist(self, missing: Sequence[FunctionConfig]) -> None:
        """Try those again that must be ready, until they are or somebody asks for a new run."""
        attempt = 0
        while missing := [function for function in missing if function.min_ready_pods]:
            attempt += 1
            with suppress(TimeoutError):
                async with asyncio.timeout(self._again.delay(attempt, chance=random.random())):  # noqa: S311 - no secret
                    await self._asked.wait()
            if self._asked.is_set():
                return
            missing = await self._run_over(missing)

    async def _run_over(self, functions: Sequence[FunctionConfig]) -> Sequence[FunctionConfig]:
        """Which of them have no pod."""
        if not functions:
            return ()
        loop = asyncio.get_running_loop()
        begin, remaining = loop.time(), iter(functions)
        async with asyncio.TaskGroup() as group:
            workers = [
                group.create_task(self._work(remaining), name="warm-up")
                for _ in range(min(self._at_once, len(functions)))
            ]
        failed = [function for worker in workers for function in worker.result()]
        seconds = round(loop.time() - begin, 3)
        _log.info("warm-up done", functions=len(functions) - len(failed), failed=len(failed), seconds=seconds)
        return failed

    async def _work(self, remaining: Iterator[FunctionConfig]) -> Sequence[FunctionConfig]:
        """Start one after the other; which it could not."""
        return [function for function in remaining if not await self._try(function)]

    async def _try(self, function: FunctionConfig) -> bool:
        try:
            await self._start(function)
        except EvaluationError as error:
            _log.warning("not warmed up", image=function.name, reason=error.reason, error=str(error))
            return False
        except Exception as error:
            # A mistake of ours; it must not keep the others cold.
            internal_errors.report("job", error, what="warm-up", image=function.name)
            return False
        return True
