"""The pods that were promised to next calls: what the pool decides ahead, told to whoever holds calls.

A call that was promised a pod is there while this process still has other things to do. It is heard of all the same,
and says by which promise it went: so it is counted where it is. A promise holds no longer than what it was made of: the
pod's time, and what is known of the image.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from krm_runner.core.held_call import Destination, NextCalls, Promise
from krm_runner.core.pod_facts import PodFacts
from krm_runner.pods.lease import Wanted

Way = tuple[Destination, tuple[tuple[str, str], ...]]
"""Where a call is sent, and with which headers."""


@dataclass(slots=True)
class _Made:
    number: int
    image: str
    pod: PodFacts
    holds: bool = True


class Promises:
    """The last one of every function: one that was withdrawn may have been used before that was heard."""

    def __init__(self, next_calls: NextCalls, *, clock: Callable[[], float]) -> None:
        self._next_calls = next_calls
        self._clock = clock
        self._numbers = itertools.count(1)
        self._made: dict[str, _Made] = {}

    def make(self, wanted: Wanted, pod: PodFacts, way: Way, *, until: float) -> None:
        """The function's next call gets this pod, which stays until then, by the pool's clock."""
        self.withdraw(wanted.function)
        seconds = min(until - self._clock(), wanted.fresh_until - asyncio.get_running_loop().time())
        if seconds <= 0:
            return
        number = next(self._numbers)
        destination, headers = way
        self._made[wanted.function] = _Made(number, wanted.spelling, pod)
        promise = Promise(number, wanted.spelling, wanted.reference, destination, headers, seconds)
        self._next_calls.promise(promise)

    def withdraw(self, function: str) -> None:
        """Its next call is to ask again."""
        made = self._made.get(function)
        if made is not None and made.holds:
            made.holds = False
            self._next_calls.withdraw(made.number, made.image)

    def used(self, function: str, number: int) -> PodFacts | None:
        """The pod that a call of the function was promised and has; told once, and only of the last promise."""
        made = self._made.get(function)
        if made is None or made.number != number:
            return None
        del self._made[function]
        return made.pod

    def forget_others(self, functions: Iterable[str]) -> None:
        """Nothing is known any more of functions but these."""
        for function in self._made.keys() - set(functions):
            self.withdraw(function)
            del self._made[function]
