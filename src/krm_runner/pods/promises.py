"""The pods that calls may go to unasked: what the pool decides ahead, told to whoever holds calls.

A call that went to a pod by a promise is there while this process still has other things to do. It is heard of all the
same, and says by which connection it went: so it is counted where it is. A promise holds no longer than what it was
made of: the pod's time, and what is known of the image. Who asks although there is a promise does not have it, or not
any more: it is told again, for the image as that caller writes it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from krm_runner.core.held_call import Destination, HeldCall, NextCalls, Promise
from krm_runner.core.pool_terms import Promise as PromisedPod
from krm_runner.pods.lease import Wanted

Pod = TypeVar("Pod")
_MARGIN = 1.0
"""So long before a pod may be collected nobody is sent there unasked."""
_MOST_PODS = 4096
"""That are remembered, also after they are gone."""
_MOST_SPELLINGS = 16
"""Of one function, for which its pods are told: with a digest the tag can be anything."""
Way = tuple[Destination, tuple[tuple[str, str], ...]]
"""Where a call is sent, and with which headers."""


@dataclass(slots=True)
class _Made(Generic[Pod]):
    said: PromisedPod
    pod: Pod
    way: Callable[[], Way]
    connection: int = 0
    """By which it was told; 0: it was not."""

    def is_like(self, said: PromisedPod, pod: Pod) -> bool:
        """Whether nothing but the time is another."""
        return self.pod is pod and (self.said.calls, self.said.calls_in_all) == (said.calls, said.calls_in_all)


@dataclass(slots=True)
class _Function(Generic[Pod]):
    pods: dict[str, _Made[Pod]] = field(default_factory=dict[str, _Made[Pod]])
    spellings: set[str] = field(default_factory=set[str])
    """For which its pods were told."""


class Promises(Generic[Pod]):
    """Those that the pool has made, by function and pod; and the pods of all, by their connections.

    One that was withdrawn may have been used before that was heard. Whoever is told of a function is told all of its
    pods: with some of them the others would have no calls. What is to be told leaves behind the calls that are given
    pods at the same time: who comes later must not overtake them.
    """

    def __init__(self, next_calls: NextCalls, *, clock: Callable[[], float]) -> None:
        self._next_calls = next_calls
        self._clock = clock
        self._made: dict[str, _Function[Pod]] = {}
        self._pods: OrderedDict[int, Pod] = OrderedDict()
        self._outbox: deque[Wanted | int] = deque()
        """What to tell all promises for, as they are when it leaves; and connections of those that are withdrawn."""
        self._pending: set[tuple[str, str]] = set()
        """Functions and spellings in the outbox, behind every withdrawal."""

    def make(self, said: PromisedPod, pod: Pod, way: Callable[[], Way], wanted: Wanted | None) -> None:
        """Calls may go to this pod; nobody is told while it is not known what its image is (`wanted`)."""
        function = self._made.setdefault(said.function, _Function())
        before = function.pods.get(said.name)
        made = function.pods[said.name] = _Made(said, pod, way)
        is_like = before is not None and before.is_like(said, pod)
        if before is not None and before.pod is pod:
            made.connection = before.connection
        elif before is not None:
            self._withdraw(before)
        if not is_like and function.spellings - ({wanted.spelling} if wanted is not None else set()):
            # Those who write the image in another way must hear of it as well: they ask, and are told.
            self._withdraw_all(function)
        if wanted is not None:
            self._tell(wanted)

    def withdraw(self, function: str, name: str) -> None:
        """Nobody goes to that pod unasked any more."""
        known = self._made.get(function)
        made = known.pods.pop(name, None) if known is not None else None
        if made is not None:
            self._withdraw(made)
        if known is not None and not known.pods:
            del self._made[function]

    def asked(self, wanted: Wanted, pod: str, load: int) -> None:
        """A call asked, and has this pod, which has so many calls now: if it might have gone there at once, whoever
        holds calls does not know that."""
        function = self._made.get(wanted.function)
        made = function.pods.get(pod) if function is not None else None
        if made is not None and load <= made.said.calls:
            self._tell(wanted)

    def used(self, call: HeldCall) -> Pod | None:
        """The pod that a call is with by a promise; none if there is no such thing."""
        return self.pod_of(call.connection) if call.is_promised else None

    def pod_of(self, connection: int) -> Pod | None:
        """The one that was promised by that connection."""
        if connection in self._pods:
            self._pods.move_to_end(connection)
        return self._pods.get(connection)

    def _tell(self, wanted: Wanted) -> None:
        if (wanted.function, wanted.spelling) not in self._pending:
            self._pending.add((wanted.function, wanted.spelling))
            self._put(wanted)

    def _withdraw(self, made: _Made[Pod]) -> None:
        if made.connection:
            self._pending.clear()
            self._put(made.connection)
            made.connection = 0

    def _withdraw_all(self, function: _Function[Pod]) -> None:
        for made in function.pods.values():
            self._withdraw(made)
        function.spellings.clear()

    def _put(self, what: Wanted | int) -> None:
        self._outbox.append(what)
        # Each by itself: behind all that was granted before it.
        asyncio.get_running_loop().call_soon(self._send)

    def _send(self) -> None:
        what = self._outbox.popleft()
        if isinstance(what, int):
            self._next_calls.withdraw(what)
            return
        self._pending.discard((what.function, what.spelling))
        function = self._made.get(what.function)
        if function is None:
            return
        if what.spelling not in function.spellings and len(function.spellings) >= _MOST_SPELLINGS:
            for made in function.pods.values():
                if made.connection:
                    self._next_calls.withdraw(made.connection)
            function.spellings.clear()
        for made in function.pods.values():
            self._promise(function, made, what)

    def _promise(self, function: _Function[Pod], made: _Made[Pod], wanted: Wanted) -> None:
        said = made.said
        seconds = min(said.until - _MARGIN - self._clock(), wanted.fresh_until - asyncio.get_running_loop().time())
        if seconds <= 0:
            return
        destination, headers = made.way()
        made.connection = destination.connection
        function.spellings.add(wanted.spelling)
        self._pods[destination.connection] = made.pod
        self._pods.move_to_end(destination.connection)
        if len(self._pods) > _MOST_PODS:
            self._pods.popitem(last=False)
        promise = Promise(
            image=wanted.spelling,
            reference=wanted.reference,
            destination=destination,
            headers=headers,
            seconds=seconds,
            calls=said.calls,
            calls_in_all=said.calls_in_all,
        )
        self._next_calls.promise(promise)
