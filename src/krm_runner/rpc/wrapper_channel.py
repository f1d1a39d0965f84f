"""One lasting connection to the wrapper server of one pod.

Calls share it, and a warm call costs what a bare gRPC call costs. Whatever goes wrong is told in one of three ways: the
wrapper's own error, passed on as it is (RemoteError); the end of the call's time (DeadlineExceededError); a pod that
cannot be reached or was lost in the middle (PodLostError), with whether the function may have been started.

A call whose message is held elsewhere goes by a connection of whoever holds it, and is told in the same ways; where
calls are held, there is no other connection: the pod is asked by that one, too, whether it serves.

A gRPC channel that could not connect waits longer and longer, up to minutes after a name that was not known, and goes
on trying although nobody asks. So such a channel is thrown away, and the next call begins with a new one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from krm_runner.core.bearer_tokens import HEADER, authorization
from krm_runner.core.errors import EvaluationError
from krm_runner.core.evaluation import EvaluationRequest, EvaluationResult
from krm_runner.core.held_call import Destination, HealthAsker, HeldCall, NoAnswer, ReturnedStatus
from krm_runner.core.secret import Secret
from krm_runner.rpc import wire
from krm_runner.rpc.connection_trouble import Trouble, trouble_of
from krm_runner.rpc.evaluate import METHOD
from krm_runner.rpc.evaluate import SERVICE_NAME as EVALUATOR
from krm_runner.rpc.health import SERVICE_NAME as HEALTH_SERVICE
from krm_runner.rpc.health import SERVING
from krm_runner.rpc.remote_status import details_of
from krm_runner.rpc.wrapper_answers import WrapperAnswers, code_of

_CHECK = f"/{HEALTH_SERVICE}/Check"

NOT_SERVING = "it says NOT_SERVING"
UNKNOWN_SERVICE = "it answers NOT_FOUND: it does not know the service that was asked for"
_SILENCE = "it does not answer"
_NEXT_LOOK_AT_THE_NAME = 0.2

_connections = itertools.count(1)
"""Numbers of the connections of held calls, never used again."""

_OPTIONS: tuple[tuple[str, int | str], ...] = (
    # Otherwise channels to one address share a connection, and its troubles.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.max_send_message_length", -1),
    # An answer of megabytes comes without a pause, in frames as large as the wrapper's.
    ("grpc.http2.lookahead_bytes", 8 * 1024 * 1024),
    ("grpc.http2.max_frame_size", 256 * 1024),
    # A pod whose node is gone does not say so.
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # This, by default a minute, is what really decides how long a ping may take.
    ("grpc.http2.ping_timeout_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # Somebody waits for the wrapper to listen.
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 50),
    # How long one attempt may take, whatever the name says.
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.dns_min_time_between_resolutions_ms", 200),
    # A name that ends with a dot would not be found in no_proxy; and no proxy leads to pods.
    ("grpc.enable_http_proxy", 0),
    # No look-ups of TXT records.
    ("grpc.service_config_disable_resolution", 1),
)


@dataclass(frozen=True, slots=True)
class Target:
    """Where a wrapper listens."""

    address: str
    """host:port, as gRPC dials it."""
    authority: str = ""
    """What the calls say that they want to speak to, if that is not the address."""


class _Link:
    """A gRPC channel, and how many calls are on it."""

    def __init__(self, target: Target, message_limit: int) -> None:
        options = [*_OPTIONS, ("grpc.max_receive_message_length", message_limit)]
        if target.authority:
            options.append(("grpc.default_authority", target.authority))
        self._channel = grpc.aio.insecure_channel(target.address, options=options)
        # No (de)serializers: messages stay bytes.
        self.evaluate = cast("grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]", self._channel.unary_unary(METHOD))
        self.check = cast("grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]", self._channel.unary_unary(_CHECK))
        self.calls = 0

    async def close(self) -> None:
        """Ends every call on it."""
        await self._channel.close()


class WrapperChannel:
    """Calls one pod; made without a connection, which the first call opens."""

    def __init__(
        self,
        target: Target,
        *,
        pod: str,
        message_limit: int,
        token: Callable[[], Secret | None] = lambda: None,
        asker: HealthAsker | None = None,
    ) -> None:
        """`token` is asked for every call what the pod wants to be shown; `asker` is whoever holds calls."""
        self._target = target
        self._token = token
        self._asker = asker
        self._answers = WrapperAnswers(pod=pod, message_limit=message_limit)
        self._destination = Destination(next(_connections), target.address, target.authority)
        self._disconnect: Callable[[Destination], None] | None = None
        """Only once a held call went this way."""
        # An answer of the wrapper is at most so large, and gRPC counts nothing but the message itself.
        self._message_limit = message_limit
        self._link: _Link | None = None
        self._dropped: set[_Link] = set()
        self._closed = ""

    async def ask_health(self, *, timeout: float, of_function: bool = False, hurried: bool = False) -> str:
        """Nothing when the wrapper serves, else one line that says why not; raises only CancelledError.

        Of the function: a wrapper that may have none is asked for the service that evaluates it, which is NOT_SERVING
        until then. Hurried: it is asked often, since it is there any moment.
        Comes back as soon as somebody answers, whatever the answer; while nobody does, at the end of the time.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        service = EVALUATOR if of_function else ""
        answer = await self._check(service, timeout, wait_for_ready=False, hurried=hurried)
        pause = 0.0
        while isinstance(answer, Trouble) and not answer.reached and loop.time() < end:
            # gRPC waits for a connection better than we could; for a name it waits much too long.
            waits = not answer.is_unnamed
            await asyncio.sleep(min(pause if waits else _NEXT_LOOK_AT_THE_NAME, end - loop.time()))
            pause = _NEXT_LOOK_AT_THE_NAME
            again = await self._check(service, end - loop.time(), wait_for_ready=waits, hurried=hurried)
            answer = answer if again == _SILENCE else again
        if isinstance(answer, Trouble) and self._link is not None:
            await self._drop(self._link)
        return answer.why if isinstance(answer, Trouble) else answer

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        """See `core.evaluation.Evaluator`; PodLostError and RemoteError as the module says."""
        started = asyncio.get_running_loop().time()
        timeout = request.deadline - started
        if (held := request.held) is not None and held.is_promised and held.connection == self._destination.connection:
            # It is there already, whatever became of the pod.
            return await self._forward(request, held, started)
        if timeout <= 0:
            raise self._answers.too_late(request, after=0)
        if self._closed:
            raise self._answers.lost(request, Trouble(self._closed, reached=False))
        if request.held is not None:
            return await self._forward(request, request.held, started)
        link = self._open()
        cancellations = _cancellations()
        link.calls += 1
        try:
            message = wire.encode_request(request.image, request.resource_list)
            metadata = (*self._authorization, *request.trace) or None
            return self._answers.result(request, await link.evaluate(message, timeout=timeout, metadata=metadata))
        except grpc.aio.AioRpcError as error:
            raise await self._failure(request, error, link, started) from error
        except asyncio.CancelledError as cancelled:
            if self._is_ended_by_us(cancellations):
                raise self._answers.lost(request, Trouble(self._closed, reached=True)) from cancelled
            raise
        finally:
            link.calls -= 1
            await self._bury(link)

    @property
    def way(self) -> tuple[Destination, tuple[tuple[str, str], ...]]:
        """Where a held call is sent, and which headers it has for the pod."""
        return self._destination, self._authorization

    async def retire(self) -> None:
        """The pod goes: no connection is made any more but for calls, and what is open ends with the calls on it."""
        if self._asker is not None:
            self._asker.disconnect(self._destination)
        if self._link is not None:
            await self._drop(self._link)

    async def close(self, why: str) -> None:
        """Calls under way end with a PodLostError that says why, and so do those that come later."""
        if self._closed:
            return
        self._closed = why or "it is not used any more"
        links = {*self._dropped, *({self._link} if self._link else ())}
        self._link = None
        self._dropped.clear()
        if self._asker is not None:
            self._asker.disconnect(self._destination)
        if self._disconnect is not None:
            self._disconnect(self._destination)
        for link in links:
            await link.close()

    async def _forward(self, request: EvaluationRequest, held: HeldCall, started: float) -> EvaluationResult:
        """By whoever has the call's message, on a connection of theirs."""
        loop = asyncio.get_running_loop()
        self._disconnect = held.disconnect
        try:
            timeout = max(0.0, request.deadline - started)
            outcome = await held.forward(self._destination, timeout=timeout, headers=self._authorization)
        except TimeoutError as error:
            raise self._answers.too_late(request, after=loop.time() - started) from error
        if self._closed and isinstance(outcome, NoAnswer):
            raise self._answers.lost(request, Trouble(self._closed, reached=outcome.reached))
        return self._answers.of_held_call(request, outcome, after=loop.time() - started)

    @property
    def _authorization(self) -> tuple[tuple[str, str], ...]:
        token = self._token()
        return () if token is None else ((HEADER, authorization(token.reveal())),)

    def _is_ended_by_us(self, cancellations: int) -> bool:
        """Calls that `close` ends look like calls whose own task is cancelled."""
        return bool(self._closed) and _cancellations() == cancellations

    def _open(self) -> _Link:
        if self._link is None:
            self._link = _Link(self._target, self._message_limit)
        return self._link

    async def _drop(self, link: _Link) -> None:
        """The next call gets another one; this one ends with the last call on it."""
        if self._link is link:
            self._link = None
            self._dropped.add(link)
        await self._bury(link)

    async def _bury(self, link: _Link) -> None:
        if link in self._dropped and not link.calls:
            self._dropped.discard(link)
            await link.close()

    async def _check(self, service: str, timeout: float, *, wait_for_ready: bool, hurried: bool) -> str | Trouble:
        """What `ask_health` says, or why there is no connection."""
        if self._closed:
            return self._closed
        if self._asker is not None:
            return await self._ask(self._asker, service, timeout, patiently=wait_for_ready, hurried=hurried)
        link = self._open()
        cancellations = _cancellations()
        link.calls += 1
        try:
            answer = await link.check(
                health_pb2.HealthCheckRequest(service=service).SerializeToString(),
                timeout=max(0.0, timeout),
                wait_for_ready=wait_for_ready,
                metadata=self._authorization or None,
            )
            return _health_in_words(answer)
        except grpc.aio.AioRpcError as error:
            said = _status_in_words(error.code(), error.details() or "")
            if isinstance(said, Trouble) and said.is_unnamed:
                await self._drop(link)
            return said
        except asyncio.CancelledError:
            if self._is_ended_by_us(cancellations):
                return self._closed
            raise
        finally:
            link.calls -= 1
            await self._bury(link)

    async def _ask(
        self, asker: HealthAsker, service: str, timeout: float, *, patiently: bool, hurried: bool
    ) -> str | Trouble:
        """The same of a pod whose connection is somebody else's."""
        headers = self._authorization
        answer = await asker.ask(
            self._destination,
            service,
            timeout=max(0.0, timeout),
            headers=headers,
            patiently=patiently,
            hurried=hurried,
        )
        if self._closed:
            return self._closed
        match answer:
            case NoAnswer(why, reached, is_unnamed):
                return Trouble(why, reached, is_unnamed)
            case ReturnedStatus(code, text):
                return _status_in_words(code_of(code), text)
            case _:
                return _health_in_words(answer)

    async def _failure(
        self, request: EvaluationRequest, error: grpc.aio.AioRpcError, link: _Link, started: float
    ) -> EvaluationError:
        """The one error that stands for a status."""
        details = details_of((str(name), value) for name, value in error.trailing_metadata())
        after = asyncio.get_running_loop().time() - started
        failure = self._answers.failure(request, error.code(), error.details() or "", details, after=after)
        if isinstance(failure, EvaluationError):
            return failure
        if not failure.reached:
            await self._drop(link)
        return self._answers.lost(request, failure)


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def _status_in_words(code: grpc.StatusCode, text: str) -> str | Trouble:
    """Of a question that was not answered."""
    if code is grpc.StatusCode.NOT_FOUND:
        return UNKNOWN_SERVICE
    trouble = trouble_of(code, text)
    if trouble is None and code is not grpc.StatusCode.DEADLINE_EXCEEDED:
        return f"it answers {code.name}: {text}"
    return trouble or _SILENCE


def _health_in_words(answer: bytes) -> str:
    try:
        status = health_pb2.HealthCheckResponse.FromString(answer).status
    except DecodeError:
        return "what answers on its port is no wrapper server"
    return "" if status == SERVING else f"it says {health_pb2.HealthCheckResponse.ServingStatus.Name(status)}"
