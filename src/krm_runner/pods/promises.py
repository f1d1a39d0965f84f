"""The pods that were promised to next calls: what the pool decides ahead, told to whoever holds calls.

A call that was promised a pod is there while this process still has other things to do. It is heard of all the same,
and says by which promise it went: so it is counted where it is. A promise holds no longer than what it was made of: the
pod's time, and what is known of the image.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

from krm_runner.core.held_call import Destination, HeldCall, NextCalls, Promise
from krm_runner.pods.lease import Wanted

Pod = TypeVar("Pod")
_MARGIN = 1.0
"""So long before a pod may be collected nobody is sent there unasked."""
_MOST_PODS = 1024
"""That are remembered, also after they are gone."""
Way = tuple[Destination, tuple[tuple[str, str], ...]]
"""Where a call is sent, and with which headers."""


@dataclass(frozen=True, slots=True)
class _Made:
    number: int
    image: str


class Promises(Generic[Pod]):
    """Those that hold, one for each function; and the pods of all, by their connections.

    One that was withdrawn may have been used before that was heard.
    """

    def __init__(self, next_calls: NextCalls, *, clock: Callable[[], float]) -> None:
        self._next_calls = next_calls
        self._clock = clock
        self._numbers = itertools.count(1)
        self._made: dict[str, _Made] = {}
        self._pods: OrderedDict[int, Pod] = OrderedDict()

    def make(self, wanted: Wanted, pod: Pod, way: Way, *, until: float) -> None:
        """The function's next call gets this pod, which stays until then, by the pool's clock."""
        self.withdraw(wanted.function)
        seconds = min(until - _MARGIN - self._clock(), wanted.fresh_until - asyncio.get_running_loop().time())
        if seconds <= 0:
            return
        number = next(self._numbers)
        destination, headers = way
        self._made[wanted.function] = _Made(number, wanted.spelling)
        self._pods[destination.connection] = pod
        self._pods.move_to_end(destination.connection)
        if len(self._pods) > _MOST_PODS:
            self._pods.popitem(last=False)
        promise = Promise(number, wanted.spelling, wanted.reference, destination, headers, seconds)
        self._next_calls.promise(promise)

    def withdraw(self, function: str) -> None:
        """Its next call is to ask again."""
        made = self._made.pop(function, None)
        if made is not None:
            self._next_calls.withdraw(made.number, made.image)

    def used(self, function: str, call: HeldCall) -> Pod | None:
        """The pod that a call of the function is with by a promise; none if there is no such thing."""
        if not call.promise:
            return None
        made = self._made.get(function)
        if made is not None and made.number == call.promise:
            del self._made[function]
        else:
            # Now that it has a call.
            self.withdraw(function)
        return self._pods.get(call.connection)

    def forget_others(self, functions: Iterable[str]) -> None:
        """Nothing is promised any more to functions but these."""
        for function in self._made.keys() - set(functions):
            self.withdraw(function)
