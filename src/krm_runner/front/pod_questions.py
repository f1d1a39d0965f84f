"""Questions to pods' wrapper servers whether they serve, by the front's connections: `core.held_call.HealthAsker`.

The front has a connection to each pod for its calls; one of this process's own besides took two fifths of what the
start of a pod costs here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from krm_runner.core.held_call import Destination, NoAnswer, ReturnedStatus
from krm_runner.front.held_calls import headers_of
from krm_runner.rpc._generated.front_pb2 import AskHealth, Disconnect, FromFront, HealthAnswer, ToFront

_GRACE = 1.0
"""The front answers at the end of the time; a little later, if it has much to do."""
_NO_FRONT = NoAnswer("the runner has no connections now", reached=False)
_SILENCE = NoAnswer("it does not answer", reached=False)
_NOT_USED_ANY_MORE = NoAnswer("its connection is not used any more", reached=False)

Answer = bytes | ReturnedStatus | NoAnswer


@dataclass(frozen=True, slots=True)
class _Question:
    destination: Destination
    answer: asyncio.Future[Answer]


class PodQuestions:
    """Made before the front is there: who asks before that waits for it."""

    def __init__(self) -> None:
        self._send: Callable[[ToFront], None] | None = None
        self._opened = asyncio.Event()
        self._questions: dict[int, _Question] = {}
        self._last = 0

    def open(self, send: Callable[[ToFront], None]) -> None:
        """The front is there."""
        self._send = send
        self._opened.set()

    def close(self) -> None:
        """It is not there any more."""
        self._send = None
        self._opened.set()
        for question in self._questions.values():
            _end(question, _NO_FRONT)

    async def ask(
        self,
        destination: Destination,
        service: str,
        *,
        timeout: float,
        headers: Sequence[tuple[str, str]],
        patiently: bool,
        hurried: bool,
    ) -> Answer:
        """See `core.held_call.HealthAsker`."""
        end = asyncio.get_running_loop().time() + timeout
        try:
            async with asyncio.timeout_at(end):
                await self._opened.wait()
        except TimeoutError:
            return _NO_FRONT
        if self._send is None:
            return _NO_FRONT
        self._last += 1
        number = self._last
        question = _Question(destination, asyncio.get_running_loop().create_future())
        self._questions[number] = question
        ask = AskHealth(
            id=number,
            connection=destination.connection,
            address=destination.address,
            authority=destination.authority,
            timeout_seconds=max(0.0, end - asyncio.get_running_loop().time()),
            headers=headers_of(headers),
            patiently=patiently,
            service=service,
            hurried=hurried,
        )
        self._send(ToFront(ask_health=ask))
        try:
            async with asyncio.timeout_at(end + _GRACE):
                return await question.answer
        except TimeoutError:
            return _SILENCE
        finally:
            del self._questions[number]

    def disconnect(self, destination: Destination) -> None:
        """See `core.held_call.HealthAsker`."""
        if self._send is not None:
            self._send(ToFront(disconnect=Disconnect(connection=destination.connection)))
        for question in self._questions.values():
            if question.destination.connection == destination.connection:
                _end(question, _NOT_USED_ANY_MORE)

    def about(self, message: FromFront) -> Mapping[str, str]:
        """The pod that an answer is about, for the log."""
        question = self._questions.get(message.health_answer.id)
        return {"pod": question.destination.authority} if question is not None else {}

    def answered(self, message: HealthAnswer) -> None:
        """The front says what it heard; nobody may want to know any more."""
        question = self._questions.get(message.id)
        if question is not None:
            _end(question, _answer_of(message))


def _end(question: _Question, answer: Answer) -> None:
    if not question.answer.done():
        question.answer.set_result(answer)


def _answer_of(message: HealthAnswer) -> Answer:
    match message.WhichOneof("outcome"):
        case "response":
            return message.response
        case "status":
            return ReturnedStatus(message.status.code, message.status.message, message.status.details)
        case _:
            trouble = message.trouble
            return NoAnswer(trouble.why, reached=trouble.reached, is_unnamed=trouble.is_unnamed)
