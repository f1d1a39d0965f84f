"""Places to run in: the event loop's side of `core.call_queue`."""

from __future__ import annotations

import asyncio

from krm_runner.core.call_queue import Admission, CallQueue


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


class Slots:
    """A bounded number of places; `acquire` waits for one in turn, `release` gives it to the next in line."""

    def __init__(self, *, limit: int, max_waiting: int) -> None:
        self._queue: CallQueue[asyncio.Future[None]] = CallQueue(limit=limit, max_waiting=max_waiting)

    @property
    def running(self) -> int:
        """How many places are taken."""
        return self._queue.running

    @property
    def waiting(self) -> int:
        """How many calls wait for one."""
        return self._queue.waiting()

    async def acquire(self, *, function: str, deadline: float) -> None:
        """Returns when the place is ours; SlotsFullError and TurnTooLateError at once.

        A call whose deadline passed is told so by TimeoutError when its turn comes; it is the caller's own timeout
        that should have cancelled it by then.
        """
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[None] = loop.create_future()
        match self._queue.enter(turn, function=function, deadline=deadline, now=loop.time()):
            case Admission.RUN:
                return
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
                self.release()
            else:
                self._queue.leave(turn, function=function)
            raise

    def learn(self, function: str, seconds: float) -> None:
        """How long a call held its place, for the forecast of others' turns."""
        self._queue.learn(function, seconds)

    def learn_at_least(self, function: str, seconds: float) -> None:
        """The same of a call that was cut off."""
        self._queue.learn_at_least(function, seconds)

    def release(self) -> None:
        """A place is free again."""
        while True:
            turn = self._queue.finish(now=asyncio.get_running_loop().time())
            for dropped in turn.expired:
                if not dropped.done():
                    dropped.set_exception(TimeoutError())
            if turn.granted is None:
                return
            if not turn.granted.done():
                turn.granted.set_result(None)
                return
            # That call gave up before it could leave the queue: its place is free again.
