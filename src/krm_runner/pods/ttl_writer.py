"""Writes into pods how long they may stay, in the background, and again until the API server has taken it.

One writer a pod, however often it is used; while a write is on its way only the newest time is remembered.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Protocol

import structlog

from krm_runner.core.backoff import Backoff
from krm_runner.core.errors import KubernetesError, KubernetesUnavailableError
from krm_runner.core.pod_facts import PodFacts
from krm_runner.telemetry import internal_errors

_log = structlog.get_logger("krm_runner.pods")
_BACKOFF = Backoff(first=0.25, longest=5.0)


class Extend(Protocol):
    """Who writes it; False when the pod is gone."""

    async def __call__(self, facts: PodFacts, reclaim_after: float) -> bool: ...


class TtlWriter:
    """Stop it, and what is not written yet is not."""

    def __init__(self, extend: Extend, *, written: Callable[[bool], None]) -> None:
        self._extend = extend
        self._written = written
        self._wanted: dict[str, tuple[PodFacts, float]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def write(self, facts: PodFacts, reclaim_after: float) -> None:
        """Let this pod stay until then."""
        self._wanted[facts.uid] = facts, reclaim_after
        if facts.uid not in self._tasks:
            name = f"time to live of {facts.name}"
            self._tasks[facts.uid] = asyncio.get_running_loop().create_task(self._write(facts.uid), name=name)

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._wanted.pop(uid, None)

    async def stop(self) -> None:
        """Leave what is not written."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _write(self, uid: str) -> None:
        failures = 0
        try:
            while wanted := self._wanted.pop(uid, None):
                facts, reclaim_after = wanted
                try:
                    await self._extend(facts, reclaim_after)
                except KubernetesError as error:
                    failures += 1
                    self._written(False)
                    log = _log.warning if failures == 1 else _log.debug
                    log("time to live not written, tried again", pod=facts.name, error=str(error))
                    self._wanted.setdefault(uid, wanted)
                    delay = _BACKOFF.delay(failures, chance=random.random())  # noqa: S311 - jitter
                    if isinstance(error, KubernetesUnavailableError):
                        delay = max(delay, error.retry_after or 0.0)
                    await asyncio.sleep(delay)
                else:
                    failures = 0
                    self._written(True)
        except Exception as error:
            internal_errors.report("pod", error, uid=uid)
        finally:
            del self._tasks[uid]
