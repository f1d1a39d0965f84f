"""Calls whose messages the front holds while this process decides where they go: `core.held_call` over the link."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from krm_runner.core.held_call import Destination, ForwardOutcome, NoAnswer, PassedOn, ReturnedStatus
from krm_runner.rpc._generated.front_pb2 import Disconnect, Forward, Forwarded, Header, ToFront

_NOT_USED_ANY_MORE = "its connection is not used any more"


class HeldCalls:
    """All of them, by their numbers."""

    def __init__(self, send: Callable[[ToFront], None]) -> None:
        self.send = send
        self._calls: dict[int, FrontsCall] = {}

    def hold(self, number: int, *, is_promised: bool, connection: int) -> None:
        """One more, which may be on its way by a promise; to be released when the call is over."""
        self._calls[number] = FrontsCall(self, number, is_promised=is_promised, connection=connection)

    def of(self, number: int) -> FrontsCall:
        """One that is held."""
        return self._calls[number]

    def release(self, number: int) -> None:
        """Nobody asks what becomes of it any more."""
        self._calls.pop(number, None)

    def forwarded(self, message: Forwarded) -> None:
        """The front says what became of a call; of one that is over here, that is not interesting."""
        call = self._calls.get(message.id)
        if call is not None:
            call.came_back(message.connection, outcome_of(message))

    def disconnect(self, destination: Destination) -> None:
        """See `core.held_call.HeldCall`."""
        self.send(ToFront(disconnect=Disconnect(connection=destination.connection)))
        for call in list(self._calls.values()):
            call.lost(destination.connection)


class FrontsCall:
    """One of them; a `core.held_call.HeldCall`."""

    def __init__(self, calls: HeldCalls, number: int, *, is_promised: bool, connection: int) -> None:
        self.is_promised = is_promised
        self.connection = connection
        self.answered: PassedOn | None = None
        """What the caller has."""
        self._calls = calls
        self._number = number
        self._early: ForwardOutcome | None = None
        """What became of a promised call before anybody asked."""
        self._outcome: asyncio.Future[ForwardOutcome] | None = None

    async def forward(
        self, destination: Destination, *, timeout: float, headers: Sequence[tuple[str, str]]
    ) -> ForwardOutcome:
        """See `core.held_call.HeldCall`."""
        if self.answered is not None:
            return self.answered
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        if self.is_promised:
            outcome = await self._outcome_by(end)
            if destination.connection == self.connection or not isinstance(outcome, NoAnswer) or outcome.reached:
                # Also where it is to go elsewhere now: its function may have been executed.
                return outcome
        self.connection = destination.connection
        forward = Forward(
            id=self._number,
            connection=destination.connection,
            address=destination.address,
            authority=destination.authority,
            timeout_seconds=max(0.0, end - loop.time()),
            headers=headers_of(headers),
        )
        self._calls.send(ToFront(forward=forward))
        return await self._outcome_by(end)

    async def _outcome_by(self, end: float) -> ForwardOutcome:
        """What becomes of it where it is; TimeoutError when that is not heard in time."""
        self.is_promised = False
        if self._early is not None:
            early, self._early = self._early, None
            return early
        self._outcome = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout_at(end):
                return await self._outcome
        finally:
            self._outcome = None

    def disconnect(self, destination: Destination) -> None:
        """See `core.held_call.HeldCall`."""
        self._calls.disconnect(destination)

    def came_back(self, connection: int, outcome: ForwardOutcome) -> None:
        """From the front, maybe of an earlier attempt: that counts only if its answer has reached the caller."""
        if isinstance(outcome, PassedOn):
            self.answered = outcome
        elif connection not in (0, self.connection):
            return
        self._end(outcome)

    def lost(self, connection: int) -> None:
        """Nothing is wanted from there any more; but of a promised call nobody has heard yet what became of it."""
        if connection == self.connection and not self.is_promised:
            self._end(NoAnswer(_NOT_USED_ANY_MORE, reached=True))

    def _end(self, outcome: ForwardOutcome) -> None:
        if self.is_promised:
            self._early = outcome
        elif self._outcome is not None and not self._outcome.done():
            self._outcome.set_result(outcome)


def headers_of(headers: Sequence[tuple[str, str]]) -> list[Header]:
    """In the link's words."""
    return [Header(name=name, value=value) for name, value in headers]


def outcome_of(message: Forwarded) -> ForwardOutcome:
    """In the core's words."""
    match message.WhichOneof("outcome"):
        case "answered":
            answered = message.answered
            return PassedOn(answered.response_bytes, answered.log_bytes, answered.seconds)
        case "status":
            status = message.status
            return ReturnedStatus(status.code, status.message, status.details)
        case _:
            trouble = message.trouble
            return NoAnswer(trouble.why, reached=trouble.reached, is_unnamed=trouble.is_unnamed)
