"""Places to run in: the event loop's side of `core.call_queue`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeAlias

from krm_runner.core.call_queue import Admission, CallQueue, NextTurn


class SlotsFullError(Exception):
    """No room to wait."""

    def __init__(self, waiting: int) -> None:
        super().__init__(f"{waiting} calls are waiting already")
        self.waiting = waiting


class TurnTooLateError(Exception):
    """The call's turn would come too late for its deadline."""

    def __init__(self, waiting: int, expected: float) -> None:
        super().__init__(f"{waiting} calls are waiting already, which takes {expected:.1f} s")
        self.waiting = waiting
        self.expected = expected


Turn: TypeAlias = "asyncio.Future[None]"
"""A call's place, once it is its turn."""


class Slots:
    """A bounded number of places; `acquire` waits for one in turn, `release` gives it to the next in line."""

    def __init__(self, *, limit: int, max_waiting: int, memory_limit: int | None = None) -> None:
        self._queue: CallQueue[Turn] = CallQueue(limit=limit, max_waiting=max_waiting, memory_limit=memory_limit)

    @property
    def running(self) -> int:
        """How many places are taken."""
        return self._queue.running

    @property
    def waiting(self) -> int:
        """How many calls wait for one."""
        return self._queue.waiting()

    @property
    def memory(self) -> int:
        """Bytes that the calls with a place are expected to take."""
        return self._queue.memory

    async def acquire(self, *, function: str, deadline: float, memory: Callable[[], int] = int) -> Turn:
        """Returns when the place is ours; SlotsFullError and TurnTooLateError at once.

        A call whose deadline passed is told so by TimeoutError when its turn comes; it is the caller's own timeout
        that should have cancelled it by then.
        """
        loop = asyncio.get_running_loop()
        turn: Turn = loop.create_future()
        match self._queue.enter(turn, function=function, deadline=deadline, now=loop.time(), memory=memory):
            case Admission.RUN:
                return turn
            case Admission.FULL:
                raise SlotsFullError(self._queue.waiting(function))
            case Admission.LATE:
                raise TurnTooLateError(self._queue.waiting(), self._queue.expected_wait(function))
            case Admission.WAIT:
                pass
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                # The place came in the same moment as the cancellation: pass it on.
                self.release(turn)
            else:
                self._tell(self._queue.leave(turn, function=function, now=loop.time()))
            raise
        return turn

    def learn(self, function: str, seconds: float) -> None:
        """How long a call held its place, for the forecast of others' turns."""
        self._queue.learn(function, seconds)

    def learn_at_least(self, function: str, seconds: float) -> None:
        """The same of a call that was cut off."""
        self._queue.learn_at_least(function, seconds)

    def release(self, turn: Turn) -> None:
        """A place is free again."""
        self._tell(self._queue.finish(turn, now=asyncio.get_running_loop().time()))

    def _tell(self, next_turn: NextTurn[Turn]) -> None:
        self._drop(next_turn.expired)
        granted = deque(next_turn.granted)
        while granted:
            turn = granted.popleft()
            if turn.done():
                # That call gave up before it could leave the queue: its place is free again.
                freed = self._queue.finish(turn, now=asyncio.get_running_loop().time())
                granted.extend(freed.granted)
                self._drop(freed.expired)
            else:
                turn.set_result(None)

    def _drop(self, expired: Iterable[Turn]) -> None:
        for turn in expired:
            if not turn.done():
                turn.set_exception(TimeoutError())
