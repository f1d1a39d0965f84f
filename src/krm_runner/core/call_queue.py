"""Whose turn it is: a bounded number of calls run at once, the others wait in a fair order.

The rules:
- at most `limit` calls run at a time, and no more than what they are expected to take of `memory_limit` together; one
  that is expected to take more than all of it runs alone;
- nobody passes a call whose turn it is and for which there is not enough memory yet: a large one would wait for ever;
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
from collections.abc import Callable, Hashable
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
    """After something became free: whose turn it is, and which calls were dropped on the way."""

    granted: tuple[Ticket, ...]
    expired: tuple[Ticket, ...]


@dataclass(frozen=True, slots=True)
class _Waiting:
    deadline: float
    expected: int
    """What it was expected to take when it came."""
    memory: Callable[[], int]


class CallQueue(Generic[Ticket]):
    """See the module's text for the rules."""

    def __init__(self, *, limit: int, max_waiting: int, memory_limit: int | None = None) -> None:
        self._limit = limit
        self._max_waiting = max_waiting
        self._memory_limit = memory_limit
        self._running: dict[Ticket, int] = {}
        """With what they are expected to take of the memory."""
        self._memory = 0
        """Of all that run, together."""
        self._memory_in_line = 0
        """Of all that wait, together."""
        self._waiting: OrderedDict[str, OrderedDict[Ticket, _Waiting]] = OrderedDict()
        self._seconds: OrderedDict[str, float] = OrderedDict()
        """How long a call of a function holds its place, on average; the newest count most."""
        self._seconds_of_any = 0.0
        """The same, of whichever function."""

    @property
    def running(self) -> int:
        """How many calls hold a place."""
        return len(self._running)

    @property
    def memory(self) -> int:
        """What those that hold a place are expected to take."""
        return self._memory

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
        return (ahead + self._seconds_of_any) / self._parallel

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

    def enter(
        self, ticket: Ticket, *, function: str, deadline: float, now: float, memory: Callable[[], int] = int
    ) -> Admission:
        """A call comes: it runs, waits, or is refused. What it will take may be better known when its turn comes."""
        expected = memory()
        if not self._waiting and self._has_room(expected):
            self._run(ticket, expected)
            return Admission.RUN
        if self.waiting(function) >= self._max_waiting:
            return Admission.FULL
        if now + _MARGIN * self.expected_wait(function) + self._seconds.get(function, 0.0) > deadline:
            return Admission.LATE
        self._waiting.setdefault(function, OrderedDict())[ticket] = _Waiting(deadline, expected, memory)
        self._memory_in_line += expected
        return Admission.WAIT

    def leave(self, ticket: Ticket, *, function: str, now: float) -> NextTurn[Ticket]:
        """A waiting call gives up; others may have waited behind it for memory that they do not need."""
        if ticket in self._waiting.get(function, ()):
            self._take(function, ticket)
        return self._next(now)

    def finish(self, ticket: Ticket, *, now: float) -> NextTurn[Ticket]:
        """A running call is over; what it held goes to the next ones, if there are any."""
        self._memory -= self._running.pop(ticket)
        return self._next(now)

    @property
    def _parallel(self) -> float:
        """How many run at a time when all are like those that run and wait now."""
        calls = self.running + self.waiting()
        memory = self._memory + self._memory_in_line
        if self._memory_limit is None or not memory:
            return self._limit
        return max(1.0, min(self._limit, self._memory_limit * calls / memory))

    def _has_room(self, memory: int) -> bool:
        if len(self._running) >= self._limit:
            return False
        return self._memory_limit is None or not self._running or self._memory + memory <= self._memory_limit

    def _run(self, ticket: Ticket, memory: int) -> None:
        self._running[ticket] = memory
        self._memory += memory

    def _take(self, function: str, ticket: Ticket) -> None:
        """Out of the line."""
        line = self._waiting[function]
        self._memory_in_line -= line.pop(ticket).expected
        if not line:
            del self._waiting[function]

    def _next(self, now: float) -> NextTurn[Ticket]:
        """Everybody whose turn it is and for whom there is room."""
        granted: list[Ticket] = []
        expired: list[Ticket] = []
        while self._waiting:
            function, line = next(iter(self._waiting.items()))
            ticket, call = next(iter(line.items()))
            if call.deadline <= now:
                self._take(function, ticket)
                expired.append(ticket)
                continue
            memory = call.memory()
            if not self._has_room(memory):
                break
            self._take(function, ticket)
            if line:
                self._waiting.move_to_end(function)
            self._run(ticket, memory)
            granted.append(ticket)
        return NextTurn(tuple(granted), tuple(expired))


def _follow(average: float, newest: float) -> float:
    return average + (newest - average) * _WEIGHT_OF_THE_NEWEST
