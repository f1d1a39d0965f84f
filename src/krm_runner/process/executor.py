"""Executing one command per call: input in, output out, within limits, and nothing left behind.

The order of things in one execution: wait for a place; start the process in a thread; write its stdin and read its
stdout and stderr on the event loop; when its leader ends, kill the rest of its group, read what is still in the
pipes, and answer. However it ends (answer, limit, cancellation), the process group is killed, and the place becomes
free only when the last process of the group is gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from krm_runner.process.child import reap_strays
from krm_runner.process.execution import Execution, OutputLimitError
from krm_runner.process.slots import Slots
from krm_runner.process.spawn import Spawner
from krm_runner.process.spawn_threads import SpawnThreads
from krm_runner.process.watcher import Watcher

__all__ = ["Executor", "Outcome", "OutputLimitError"]

_STRAYS_INTERVAL = 2.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a process ended by itself, and what it wrote."""

    exit_code: int
    """As the process gave it; minus the number of the signal that killed it."""
    stdout: bytes
    stderr: bytes
    queue_wait: float


class Executor:
    """Runs commands, a bounded number at a time."""

    def __init__(self, spawner: Spawner, *, max_parallel: int, max_waiting: int) -> None:
        self.on_turn: Callable[[float], None] | None = None
        """Told how long each call waited."""
        self._slots = Slots(limit=max_parallel, max_waiting=max_waiting)
        self._threads = SpawnThreads(spawner, max_parallel)
        self._watcher = Watcher()
        self._executions: set[Execution] = set()

    @property
    def running(self) -> int:
        """How many places are taken: processes that run, start, or are being reaped."""
        return self._slots.running

    @property
    def waiting(self) -> int:
        """How many calls wait for a place."""
        return self._slots.waiting

    async def run(
        self,
        argv: Sequence[bytes],
        stdin: bytes | memoryview,
        *,
        function: str,
        max_output: int,
        deadline: float,
    ) -> Outcome:
        """Execute `argv` once.

        The deadline only orders the queue: whoever calls sets a timeout around this, and cancelling ends the process.
        SlotsFullError when too many wait; OSError when it cannot be started; OutputLimitError when it wrote too much.
        """
        loop = asyncio.get_running_loop()
        arrived = loop.time()
        await self._slots.acquire(function=function, deadline=deadline)
        queue_wait = loop.time() - arrived
        if self.on_turn is not None:
            self.on_turn(queue_wait)
        try:
            execution = Execution(loop, self._watcher, stdin, max_output=max_output, gone=self._on_gone)
        except BaseException:
            self._slots.release()
            raise
        self._executions.add(execution)
        self._threads.start(argv, execution.pipes, execution.started)
        try:
            ended = await execution.result
        finally:
            execution.stop()
            self._slots.learn(function, loop.time() - arrived - queue_wait)
        return Outcome(ended.exit_code, ended.stdout, ended.stderr, queue_wait)

    async def reap_strays(self) -> None:
        """Look now and then for ended processes that had left their function's group; never returns."""
        while True:
            await asyncio.sleep(_STRAYS_INTERVAL)
            known = {execution.pid for execution in self._executions}
            # A process that a thread starts just now is not known yet, and would look like a stray.
            if None not in known:
                reap_strays(known.__contains__)

    def kill_all(self) -> None:
        """Kill every process group at once; for the moment before this process ends."""
        for execution in self._executions:
            execution.kill()

    def close(self) -> None:
        """Let the threads go; no execution may be under way."""
        self._threads.close()
        self._watcher.close()

    def _on_gone(self, execution: Execution) -> None:
        self._executions.discard(execution)
        self._slots.release()
