"""Executing one command per call: input in, output out, within limits, and nothing left behind.

The order of things in one execution: wait for a place; start the process in a thread; write its stdin and read its
stdout and stderr on the event loop; when its leader ends, kill the rest of its group, read what is still in the pipes,
and answer. A limit or a cancellation kills the leader and all of its descendants. The place becomes free only when the
last of these processes is gone. No process waits for its input in advance: that is krm-front's.
"""

from __future__ import annotations

import asyncio
import errno
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from krm_runner.core.memory_forecast import MemoryForecast
from krm_runner.process.child import Pipes, reap_strays
from krm_runner.process.execution import Ended, Execution, OutputLimitError
from krm_runner.process.slots import Slots, Turn
from krm_runner.process.spawn import Spawner
from krm_runner.process.spawn_threads import SpawnThreads
from krm_runner.process.watcher import Watcher

__all__ = ["OUT_OF_RESOURCES", "Executor", "Outcome", "OutputLimitError"]

OUT_OF_RESOURCES = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})
"""Errors of a start that another time may not have."""

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

    def __init__(
        self,
        spawner: Spawner,
        *,
        max_parallel: int,
        max_waiting: int,
        max_memory: int | None = None,
    ) -> None:
        """`max_memory` is that of all functions together."""
        self.on_turn: Callable[[float], None] | None = None
        """Told how long each call waited."""
        self.on_ended: Callable[[str, float], None] | None = None
        """Told how long each call's process took from its turn to its end, with its function."""
        self._slots = Slots(limit=max_parallel, max_waiting=max_waiting, memory_limit=max_memory)
        self._max_memory = max_memory
        self._memory = MemoryForecast()
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

    @property
    def memory(self) -> int:
        """Bytes that the processes of calls under way are expected to take."""
        return self._slots.memory

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
        turn = await self._turn(function, len(stdin), deadline)
        began = loop.time()
        queue_wait = began - arrived
        if self.on_turn is not None:
            self.on_turn(queue_wait)
        try:
            ended = await self._execute(argv, stdin, turn, max_output)
        except asyncio.CancelledError:
            self._slots.learn_at_least(function, loop.time() - began)
            raise
        except OutputLimitError:
            self._slots.learn(function, loop.time() - began)
            raise
        self._slots.learn(function, loop.time() - began)
        self._learn_memory(ended, function, len(stdin))
        if self.on_ended is not None:
            self.on_ended(function, loop.time() - began)
        return Outcome(ended.exit_code, ended.stdout, ended.stderr, queue_wait)

    async def _turn(self, function: str, size: int, deadline: float) -> Turn:
        """A place, and the memory that a call with so much input is expected to take."""
        memory = partial(self._memory.expected, function, size)
        return await self._slots.acquire(function=function, deadline=deadline, memory=memory)

    def _learn_memory(self, ended: Ended, function: str, size: int) -> None:
        if ended.exit_code == -signal.SIGKILL and self._max_memory is not None:
            # Not by us.
            self._memory.was_killed(function, size, self._max_memory)
        elif ended.peak_memory:
            self._memory.learn(function, size, ended.peak_memory)

    async def reap_strays(self) -> None:
        """Look now and then for ended processes that had left their function's group; never returns."""
        while True:
            await asyncio.sleep(_STRAYS_INTERVAL)
            known = {execution.pid for execution in self._executions}
            # A process that a thread starts just now is not known yet, and would look like a stray.
            if None not in known:
                reap_strays(known.__contains__)

    def _is_alone(self, execution: Execution) -> bool:
        """Whether an orphan that was started after this execution can belong to no other call."""
        return self._executions <= {execution}

    def kill_all(self) -> None:
        """Kill every process at once; for the moment before this process ends."""
        for execution in self._executions:
            execution.kill()

    def close(self) -> None:
        """Let the threads go; no execution may be under way."""
        self._threads.close()
        self._watcher.close()

    async def _execute(self, argv: Sequence[bytes], stdin: bytes | memoryview, turn: Turn, max_output: int) -> Ended:
        """With a place; it is given back when nothing is left of the process."""
        try:
            pipes = Pipes()
        except BaseException:
            self._slots.release(turn)
            raise

        def gone(execution: Execution) -> None:
            self._executions.discard(execution)
            self._slots.release(turn)

        loop = asyncio.get_running_loop()
        execution = Execution(
            loop,
            self._watcher,
            pipes,
            stdin,
            function=os.fsdecode(argv[0]),
            max_output=max_output,
            gone=gone,
            is_alone=self._is_alone,
        )
        self._executions.add(execution)
        self._threads.start(argv, pipes, execution.started)
        try:
            return await execution.result
        finally:
            execution.stop()
