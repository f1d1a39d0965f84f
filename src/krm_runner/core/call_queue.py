"""Whose turn it is: a bounded number of calls run at once, the others wait in a fair order.

The rules:
- at most `limit` calls run at a time;
- waiting calls are served round-robin by function, first come first served within one, so that a flood of calls
  of one function delays the others by one turn each, not by the whole flood;
- a function has at most `max_waiting` calls waiting; one more is refused;
- a call whose turn would come after its deadline, by what calls have taken so far, is refused at once: whoever sent it
  can try elsewhere or later, and those that wait are served;
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
        """How long one more call of a function would wait, in seconds; 0 when nothing is known.

        Taking turns, it waits for all of its own function that wait, and for as many of each other one.
        """
        own = self.waiting(function) + 1
        ahead = sum(
            min(len(line), own if name != function else own - 1) * self._seconds.get(name, 0.0)
            for name, line in self._waiting.items()
        )
        return ahead / self._limit

    def learn(self, function: str, seconds: float) -> None:
        """A call of the function held its place for so long."""
        known = self._seconds.pop(function, seconds)
        self._seconds[function] = known + (seconds - known) * _WEIGHT_OF_THE_NEWEST
        if len(self._seconds) > _MAX_REMEMBERED:
            self._seconds.popitem(last=False)

    def enter(self, ticket: Ticket, *, function: str, deadline: float, now: float) -> Admission:
        """A call comes: it runs, waits, or is refused."""
        if self._running < self._limit and not self._waiting:
            self._running += 1
            return Admission.RUN
        if self.waiting(function) >= self._max_waiting:
            return Admission.FULL
        if now + self.expected_wait(function) > deadline:
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
