"""Which processes are kept in standby: started before their input arrives, so that a call need not wait for it.

The rules:
- a function that was called has as many processes waiting as it is wanted to have, once CPUs are free: one is started
  only when no call waits and fewer processes work than there are CPUs, and one at a time;
- a call gets the oldest process that was started from the very file that is the function's executable now;
- a function that ended or wrote before its input came is marked: none is started again from that file;
- a process is retired at a maximum age, and another takes its place; all of a function go when it was not called for a
  while;
- all functions together have a bounded number, and the one that was not called for the longest time gives way;
- a start that failed is tried again after the function's next call.

A pure state machine: `now` is an argument, processes are whatever the caller uses to tell them apart, and it is the
caller that starts and ends whom it is told to.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Process = TypeVar("Process", bound=Hashable)

Identity = tuple[int, ...]
"""What is another when an executable is: device, inode, size, times of change."""

MAX_PER_FUNCTION = 8
"""More would only wait in line for the CPUs."""

_MAX_TOTAL = 32
_SETTLING = 0.05


@dataclass(frozen=True, slots=True)
class StandbyLimits:
    """How many, and for how long."""

    cpus: int
    max_age: float
    idle: float
    """A function that was not called for so long has none."""
    total: int = _MAX_TOTAL
    settling: float = _SETTLING
    """How long a new process counts as being started: it loads its code, and needs a CPU for that."""


@dataclass(frozen=True, slots=True)
class Start(Generic[Process]):
    """A process of this function is to be started, once these are ended."""

    function: str
    ended: tuple[Process, ...] = ()


@dataclass(frozen=True, slots=True)
class Taken(Generic[Process]):
    """What a call gets, if anything; the others were started from another file, and are to be ended."""

    process: Process | None
    ended: tuple[Process, ...] = ()


@dataclass(slots=True)
class _Waiting(Generic[Process]):
    process: Process
    identity: Identity
    since: float


@dataclass(slots=True)
class _Function(Generic[Process]):
    """What is known of one function."""

    wanted: int = 0
    called: float = 0.0
    marked: Identity | None = None
    """Of the file that is of no use in standby."""
    failed: bool = False
    """Its last start did; so no other before its next call."""
    waiting: deque[_Waiting[Process]] = field(default_factory=deque[_Waiting[Process]])


class StandbyPolicy(Generic[Process]):
    """See the module's text for the rules."""

    def __init__(self, limits: StandbyLimits) -> None:
        self._limits = limits
        self._functions: dict[str, _Function[Process]] = {}
        self._starting: str | None = None
        self._newest: Process | None = None
        self._settled_at = 0.0
        self._is_over = False

    @property
    def waiting(self) -> int:
        """How many processes wait for a call."""
        return sum(len(function.waiting) for function in self._functions.values())

    def called(self, name: str, *, wanted: int, now: float, identity: Identity | None = None) -> tuple[Process, ...]:
        """A call of this function is over; the processes that it now has too many are to be ended.

        What its executable is now need only be said of a function that is marked.
        """
        if name not in self._functions:
            if not wanted:
                return ()
            self._functions[name] = _Function()
        function = self._functions[name]
        function.called = now
        function.failed = False
        if identity != function.marked and identity is not None:
            function.marked = None
        return self.want(name, wanted)

    def want(self, name: str, wanted: int) -> tuple[Process, ...]:
        """So many are wanted from now on; the ones that are too many are to be ended."""
        function = self._functions.get(name)
        if function is None:
            return ()
        function.wanted = wanted
        return self._end([function.waiting.popleft() for _ in range(len(function.waiting) - wanted)])

    def functions(self) -> tuple[str, ...]:
        """Those that have processes, or may get some."""
        return tuple(self._functions)

    def has_waiting(self, name: str) -> bool:
        """Whether a call may get one of this function."""
        function = self._functions.get(name)
        return function is not None and len(function.waiting) > 0

    def take(self, name: str, *, identity: Identity | None) -> Taken[Process]:
        """A call has its place, and wants a process."""
        function = self._functions.get(name)
        if function is None or not function.waiting:
            return Taken(None)
        stale = [waiting for waiting in function.waiting if waiting.identity != identity]
        for waiting in stale:
            function.waiting.remove(waiting)
        ended = self._end(stale)
        if not function.waiting:
            return Taken(None, ended)
        (process,) = self._end([function.waiting.popleft()])
        return Taken(process, ended)

    def next_start(self, *, busy: int, queued: int, now: float) -> Start[Process] | None:
        """What to start now, with so many processes at work and so many calls that wait for a place."""
        if queued or busy >= self._limits.cpus or self._is_starting(now) or self._is_over:
            return None
        lacking = [item for item in self._functions.items() if self._lacks(item[1], now)]
        if not lacking:
            return None
        name, function = max(lacking, key=lambda item: item[1].called)
        ended: tuple[Process, ...] = ()
        if self.waiting >= self._limits.total:
            longest_idle = min((f for f in self._functions.values() if f.waiting), key=lambda f: f.called)
            if longest_idle.called >= function.called:
                return None
            ended = self._end([longest_idle.waiting.popleft()])
        self._starting = name
        return Start(name, ended)

    def started(self, name: str, process: Process, *, identity: Identity, now: float) -> bool:
        """It runs. False when it is not wanted any more, and is to be ended."""
        self._starting = None
        function = self._functions.get(name)
        if function is None or not self._lacks(function, now):
            return False
        function.waiting.append(_Waiting(process, identity, now))
        self._newest, self._settled_at = process, now + self._limits.settling
        return True

    def start_failed(self, name: str) -> None:
        """There is no such process."""
        self._starting = None
        if name in self._functions:
            self._functions[name].failed = True

    def mark(self, name: str, identity: Identity) -> tuple[Process, ...]:
        """A process of this file ended or wrote before its input came; the others are to be ended."""
        function = self._functions.setdefault(name, _Function())
        function.marked = identity
        ended = [waiting for waiting in function.waiting if waiting.identity == identity]
        for waiting in ended:
            function.waiting.remove(waiting)
        return self._end(ended)

    def marked(self, name: str) -> Identity | None:
        """The file of this function that is known to be of no use in standby."""
        function = self._functions.get(name)
        return None if function is None else function.marked

    def expire(self, now: float) -> tuple[Process, ...]:
        """Those that are too old, or whose function is idle, are to be ended."""
        ended: list[Process] = []
        for name, function in list(self._functions.items()):
            oldest = now if self._is_idle(function, now) else now - self._limits.max_age
            while function.waiting and function.waiting[0].since <= oldest:
                ended += self._end([function.waiting.popleft()])
            if self._is_idle(function, now) and function.marked is None:
                del self._functions[name]
        return tuple(ended)

    def next_event(self, now: float) -> float | None:
        """When to look again, though nothing happens until then."""
        moments: list[float] = []
        for function in self._functions.values():
            if function.waiting:
                moments.append(function.called + self._limits.idle)
                moments.append(function.waiting[0].since + self._limits.max_age)
            if self._starting is None and self._is_starting(now) and self._lacks(function, now):
                moments.append(self._settled_at)
        return min(moments, default=None)

    def give_way(self) -> tuple[Process, ...]:
        """All are to be ended; a function gets others after its next call."""
        ended: list[Process] = []
        for function in self._functions.values():
            ended += self._end(function.waiting)
            function.waiting.clear()
            function.failed = True
        return tuple(ended)

    def end(self) -> tuple[Process, ...]:
        """All are to be ended, and none is started any more."""
        ended = self.give_way()
        self._functions.clear()
        self._is_over = True
        return ended

    def _lacks(self, function: _Function[Process], now: float) -> bool:
        return (
            len(function.waiting) < function.wanted
            and not function.failed
            and function.marked is None
            and not self._is_idle(function, now)
        )

    def _is_idle(self, function: _Function[Process], now: float) -> bool:
        return function.called + self._limits.idle <= now

    def _is_starting(self, now: float) -> bool:
        return self._starting is not None or now < self._settled_at

    def _end(self, processes: Iterable[_Waiting[Process]]) -> tuple[Process, ...]:
        """These wait no longer."""
        ended = tuple(waiting.process for waiting in processes)
        if self._newest in ended:
            self._newest, self._settled_at = None, 0.0
        return ended
