"""A call whose message is held by somebody else, who can send it on to where this process says; and ask there first.

The resource list never comes here: whoever has a request with a HeldCall says where it goes, and hears what became of
it. An answer goes to the caller without coming by; everything else is for us to decide. Where calls may go can be said
before they come (promises): such a call is on its way, or over, when it is heard of.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from krm_runner.core.image_ref import ImageRef


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a held message is sent."""

    connection: int
    """One lasting connection for all calls with the same number."""
    address: str
    """host:port"""
    authority: str = ""
    """What calls say that they want to speak to, if that is not the address."""


@dataclass(frozen=True, slots=True)
class PassedOn:
    """The caller has the answer; so large it was, and so long after its arrival."""

    response_bytes: int
    log_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ReturnedStatus:
    """The other end answered with an error; the caller knows nothing of it yet."""

    code: int
    """gRPC's number."""
    message: str
    details: bytes = b""
    """A google.rpc.Status; empty when there was none."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """The other end was not reached, or was lost; the caller knows nothing of it yet."""

    why: str
    reached: bool
    """Whether it may have the call."""
    is_unnamed: bool = False
    """Whether its name is not known."""


ForwardOutcome = PassedOn | ReturnedStatus | NoAnswer


@dataclass(frozen=True, slots=True)
class Promise:
    """Calls of an image may be sent there before anybody was asked, for so long; see `core.pool_terms.Promise`."""

    image: str
    """As callers write it."""
    reference: ImageRef
    destination: Destination
    headers: Sequence[tuple[str, str]]
    seconds: float
    calls: int
    """At once, on that connection."""
    calls_in_all: int
    """At once, by all promises for the image."""


class NextCalls(Protocol):
    """Whoever holds calls, and sends them where it was promised that they may go."""

    def promise(self, promise: Promise) -> None:
        """Nobody needs to keep it: a call that did not go there is asked about."""
        ...

    def withdraw(self, connection: int) -> None:
        """No call goes there unasked any more, whatever its image; one may be on its way already."""
        ...

    def listen(self, served: Callable[[int], str]) -> None:
        """From now on that is told of every call that went by a promise and was over before it was heard of: on which
        connection it was; it answers with the pod's name."""
        ...


class HeldCall(Protocol):
    """One such call."""

    @property
    def is_promised(self) -> bool:
        """Whether it went where it is by a promise, and nobody has asked yet what became of it there."""
        ...

    @property
    def connection(self) -> int:
        """By which it was sent last; 0: it was not."""
        ...

    async def forward(
        self, destination: Destination, *, timeout: float, headers: Sequence[tuple[str, str]]
    ) -> ForwardOutcome:
        """Send its message there, if it is not on its way; TimeoutError when nothing has come of it in time.

        Another time takes the place of the first.
        """
        ...

    def disconnect(self, destination: Destination) -> None:
        """Nobody will use that connection again. Calls on it, whoever's they are, end with NoAnswer."""
        ...


class HealthAsker(Protocol):
    """Whoever holds calls, and can ask where they might go."""

    async def ask(
        self,
        destination: Destination,
        service: str,
        *,
        timeout: float,
        headers: Sequence[tuple[str, str]],
        patiently: bool,
        hurried: bool,
    ) -> bytes | ReturnedStatus | NoAnswer:
        """The HealthCheckResponse of a server for a service (empty: all of them), or why there is none.

        Patiently: while it does not accept connections, that is tried again until the time is over; hurried: often.
        """
        ...

    def disconnect(self, destination: Destination) -> None:
        """As of a held call: questions that wait for an answer end with NoAnswer."""
        ...
