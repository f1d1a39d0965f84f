"""Whose turn it is: a bounded number of calls run at once, the others wait in a fair order.

The rules:
- at most `limit` calls run at a time;
- waiting calls are served round-robin by function, first come first served within one, so that a flood of calls
  of one function delays the others by one turn each, not by the whole flood;
- a function has at most `max_waiting` calls waiting; one more is refused;
- a call that would come too late, by what calls have taken so far, is refused at once: whoever sent it can try
  elsewhere or later, and those that wait are served. Too late is a turn after the first half of the time that the call
  has beside its own run: a forecast is an average, and under a lasting overload the line is always as long as it may
  be, so that with no margin every other call would run for nothing;
- a call whose deadline has passed is dropped when its turn comes, and never runs;
- a call that gives up leaves no trace.

A pure state machine: `now` is an argument, tickets are whatever the caller uses to tell calls apart, and it is
the caller that wakes whom it is told to wake.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

Ticket = TypeVar("Ticket", bound=Hashable)
_WEIGHT_OF_THE_NEWEST = 0.2
_MARGIN = 2
"""So many times the expected wait must fit."""
_MAX_REMEMBERED = 1000


class Admission(Enum):
    """What a call is told when it comes."""

    RUN = "run"
    WAIT = "wait"
    FULL = "full"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class NextTurn(Generic[Ticket]):
    """After a place became free: whose turn it is, and which calls were dropped on the way."""

    granted: Ticket | None
    expired: tuple[Ticket, ...]


class CallQueue(Generic[Ticket]):
    """See the module's text for the rules."""

    def __init__(self, *, limit: int, max_waiting: int) -> None:
        self._limit = limit
        self._max_waiting = max_waiting
        self._running = 0
        self._waiting: OrderedDict[str, OrderedDict[Ticket, float]] = OrderedDict()
        self._seconds: OrderedDict[str, float] = OrderedDict()
        """How long a call of a function holds its place, on average; the newest count most."""
        self._seconds_of_any = 0.0
        """The same, of whichever function."""

    @property
    def running(self) -> int:
        """How many calls hold a place."""
        return self._running

    def waiting(self, function: str | None = None) -> int:
        """How many calls wait, of one function or of all."""
        if function is not None:
            return len(self._waiting.get(function, ()))
        return sum(len(line) for line in self._waiting.values())

    def expected_wait(self, function: str) -> float:
        """How long one more call of a function would wait for a place, in seconds; 0 when nothing is known.

        Taking turns, it waits for all of its own function that wait, and for as many of each other one; and before
        that, for one of those that run to end.
        """
        own = self.waiting(function) + 1
        ahead = sum(
            min(len(line), own if name != function else own - 1) * self._seconds.get(name, 0.0)
            for name, line in self._waiting.items()
        )
        return (ahead + self._seconds_of_any) / self._limit

    def learn(self, function: str, seconds: float) -> None:
        """A call of the function held its place for so long."""
        self._seconds_of_any = _follow(self._seconds_of_any or seconds, seconds)
        self._seconds[function] = _follow(self._seconds.pop(function, seconds), seconds)
        if len(self._seconds) > _MAX_REMEMBERED:
            self._seconds.popitem(last=False)

    def learn_at_least(self, function: str, seconds: float) -> None:
        """A call of the function was cut off after so long: what is known may be nearer to what it would have taken."""
        if seconds > self._seconds.get(function, 0.0):
            self.learn(function, seconds)

    def enter(self, ticket: Ticket, *, function: str, deadline: float, now: float) -> Admission:
        """A call comes: it runs, waits, or is refused."""
        if self._running < self._limit and not self._waiting:
            self._running += 1
            return Admission.RUN
        if self.waiting(function) >= self._max_waiting:
            return Admission.FULL
        if now + _MARGIN * self.expected_wait(function) + self._seconds.get(function, 0.0) > deadline:
            return Admission.LATE
        self._waiting.setdefault(function, OrderedDict())[ticket] = deadline
        return Admission.WAIT

    def leave(self, ticket: Ticket, *, function: str) -> None:
        """A waiting call gives up."""
        line = self._waiting.get(function)
        if line is None:
            return
        line.pop(ticket, None)
        if not line:
            del self._waiting[function]

    def finish(self, *, now: float) -> NextTurn[Ticket]:
        """A running call is over; its place goes to the next one, if there is any."""
        self._running -= 1
        expired: list[Ticket] = []
        while self._waiting and self._running < self._limit:
            function, line = next(iter(self._waiting.items()))
            ticket, deadline = line.popitem(last=False)
            if not line:
                del self._waiting[function]
            if deadline <= now:
                expired.append(ticket)
                continue
            if line:
                self._waiting.move_to_end(function)
            self._running += 1
            return NextTurn(ticket, tuple(expired))
        return NextTurn(None, tuple(expired))


def _follow(average: float, newest: float) -> float:
    return average + (newest - average) * _WEIGHT_OF_THE_NEWEST
