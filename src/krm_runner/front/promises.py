"""Where calls may go unasked, told to the front: `core.held_call.NextCalls` over the link.

An image that the configuration file names is a local function first, always: for its calls nothing is promised.
"""

from __future__ import annotations

from collections.abc import Callable

from krm_runner.core.held_call import Promise as PromisedPod
from krm_runner.front.held_calls import headers_of
from krm_runner.front.local_functions import LocalFunctions
from krm_runner.rpc._generated.front_pb2 import Promise, ToFront, Withdraw


class FrontPromises:
    """Made before the front is there: what is promised before that is not told."""

    runtime = "pod"

    def __init__(self) -> None:
        self.served: Callable[[int], str] = lambda _: ""
        """See `core.held_call.NextCalls.listen`."""
        self._send: Callable[[ToFront], None] | None = None
        self._functions: LocalFunctions | None = None

    def open(self, send: Callable[[ToFront], None], functions: LocalFunctions | None) -> None:
        """The front is there; it forgets every promise when it is told that `functions` are others."""
        self._send = send
        self._functions = functions

    def promise(self, promise: PromisedPod) -> None:
        """See `core.held_call.NextCalls`."""
        if self._send is None or (self._functions is not None and self._functions.find(promise.reference) is not None):
            return
        destination = promise.destination
        message = Promise(
            image=promise.image,
            connection=destination.connection,
            address=destination.address,
            authority=destination.authority,
            headers=headers_of(promise.headers),
            valid_seconds=promise.seconds,
            calls=promise.calls,
            calls_in_all=promise.calls_in_all,
        )
        self._send(ToFront(promise=message))

    def withdraw(self, connection: int) -> None:
        """See `core.held_call.NextCalls`."""
        if self._send is not None:
            self._send(ToFront(withdraw=Withdraw(connection=connection)))

    def listen(self, served: Callable[[int], str]) -> None:
        """See `core.held_call.NextCalls`."""
        self.served = served
