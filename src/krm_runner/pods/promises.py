"""The pods that calls may go to unasked: what the pool decides ahead, told to whoever holds calls.

A call that went to a pod by a promise is there while this process still has other things to do. It is heard of all the
same, and says by which connection it went: so it is counted where it is. A promise holds no longer than what it was
made of: the pod's time, and what is known of the image. Who asks although there is a promise does not have it, or not
any more: it is told again, for the image as that caller writes it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from krm_runner.core.held_call import Destination, HeldCall, NextCalls, Promise
from krm_runner.core.pool_terms import Promise as PromisedPod
from krm_runner.pods.lease import Wanted

Pod = TypeVar("Pod")
_MARGIN = 1.0
"""So long before a pod may be collected nobody is sent there unasked."""
_MOST_PODS = 1024
"""That are remembered, also after they are gone."""
Way = tuple[Destination, tuple[tuple[str, str], ...]]
"""Where a call is sent, and with which headers."""


@dataclass(slots=True)
class _Made(Generic[Pod]):
    said: PromisedPod
    pod: Pod
    way: Callable[[], Way]
    connection: int = 0
    """By which it was told; 0: it was not."""


class Promises(Generic[Pod]):
    """Those that the pool has made, by function and pod; and the pods of all, by their connections.

    One that was withdrawn may have been used before that was heard.
    """

    def __init__(self, next_calls: NextCalls, *, clock: Callable[[], float]) -> None:
        self._next_calls = next_calls
        self._clock = clock
        self._made: dict[str, dict[str, _Made[Pod]]] = {}
        self._pods: OrderedDict[int, Pod] = OrderedDict()

    def make(self, said: PromisedPod, pod: Pod, way: Callable[[], Way], wanted: Wanted | None) -> None:
        """Calls may go to this pod; nobody is told before it is known what its image is (`wanted`)."""
        made = _Made(said, pod, way)
        functions_pods = self._made.setdefault(said.function, {})
        if (before := functions_pods.get(said.name)) is not None and before.pod is not pod:
            self._withdraw(before)
        functions_pods[said.name] = made
        if wanted is not None:
            self._tell(made, wanted)

    def withdraw(self, function: str, name: str) -> None:
        """Nobody goes to that pod unasked any more."""
        functions_pods = self._made.get(function, {})
        if (made := functions_pods.pop(name, None)) is not None:
            self._withdraw(made)
        if not functions_pods:
            self._made.pop(function, None)

    def asked(self, wanted: Wanted) -> None:
        """A call asked that might have gone to a pod at once: whoever holds calls does not know that."""
        for made in self._made.get(wanted.function, {}).values():
            self._tell(made, wanted)

    def used(self, call: HeldCall) -> Pod | None:
        """The pod that a call is with by a promise; none if there is no such thing."""
        return self.pod_of(call.connection) if call.is_promised else None

    def pod_of(self, connection: int) -> Pod | None:
        """The one that was promised by that connection."""
        return self._pods.get(connection)

    def _tell(self, made: _Made[Pod], wanted: Wanted) -> None:
        said = made.said
        seconds = min(said.until - _MARGIN - self._clock(), wanted.fresh_until - asyncio.get_running_loop().time())
        if seconds <= 0:
            return
        destination, headers = made.way()
        made.connection = destination.connection
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

    def _withdraw(self, made: _Made[Pod]) -> None:
        if made.connection:
            self._next_calls.withdraw(made.connection)
