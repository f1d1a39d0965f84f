"""One lasting connection to the wrapper server of one pod.

Calls share it, and a warm call costs what a bare gRPC call costs. Whatever goes wrong is told in one of three ways: the
wrapper's own error, passed on as it is (RemoteError); the end of the call's time (DeadlineExceededError); a pod that
cannot be reached or was lost in the middle (PodLostError), with whether the function may have been started.

A gRPC channel that could not connect waits longer and longer, up to minutes after a name that was not known, and goes
on trying although nobody asks. So such a channel is thrown away, and the next call begins with a new one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2

from krm_runner.core.bearer_tokens import HEADER, authorization
from krm_runner.core.errors import DeadlineExceededError, EvaluationError, PodLostError, RemoteError
from krm_runner.core.evaluation import EvaluationRequest, EvaluationResult
from krm_runner.core.secret import Secret
from krm_runner.rpc import wire
from krm_runner.rpc.connection_trouble import Trouble, trouble_of
from krm_runner.rpc.evaluate import METHOD
from krm_runner.rpc.health import SERVICE_NAME as HEALTH_SERVICE
from krm_runner.rpc.health import SERVING
from krm_runner.rpc.remote_status import Details, details_of

_CHECK = f"/{HEALTH_SERVICE}/Check"
_WHOLE_SERVER = b""
"""A HealthCheckRequest with the empty name."""

_RUNTIME = "pod"
_ENDING = "SHUTTING_DOWN"
_SILENCE = "it does not answer"
_NEXT_LOOK_AT_THE_NAME = 0.2

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
    ) -> None:
        """`token` is asked for every call what the pod wants to be shown."""
        self._target = target
        self._token = token
        self._pod = pod
        # An answer of the wrapper is at most so large, and gRPC counts nothing but the message itself.
        self._message_limit = message_limit
        self._link: _Link | None = None
        self._dropped: set[_Link] = set()
        self._closed = ""

    async def ask_health(self, *, timeout: float) -> str:
        """Nothing when the wrapper serves, else one line that says why not; raises only CancelledError.

        Comes back as soon as somebody answers, whatever the answer; while nobody does, at the end of the time.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        answer = await self._check(timeout, wait_for_ready=False)
        pause = 0.0
        while isinstance(answer, Trouble) and not answer.reached and loop.time() < end:
            # gRPC waits for a connection better than we could; for a name it waits much too long.
            waits = not answer.is_unnamed
            await asyncio.sleep(min(pause if waits else _NEXT_LOOK_AT_THE_NAME, end - loop.time()))
            pause = _NEXT_LOOK_AT_THE_NAME
            again = await self._check(end - loop.time(), wait_for_ready=waits)
            answer = answer if again == _SILENCE else again
        if isinstance(answer, Trouble) and self._link is not None:
            await self._drop(self._link)
        return answer.why if isinstance(answer, Trouble) else answer

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        """See `core.evaluation.Evaluator`; PodLostError and RemoteError as the module says."""
        started = asyncio.get_running_loop().time()
        timeout = request.deadline - started
        if timeout <= 0:
            raise DeadlineExceededError(request.image, after=0, pod=self._pod)
        if self._closed:
            raise self._lost(request, Trouble(self._closed, reached=False))
        link = self._open()
        cancellations = _cancellations()
        link.calls += 1
        try:
            message = wire.encode_request(request.image, request.resource_list)
            metadata = (*self._authorization, *request.trace) or None
            return self._result(request, await link.evaluate(message, timeout=timeout, metadata=metadata))
        except grpc.aio.AioRpcError as error:
            raise await self._failure(request, error, link, started) from error
        except asyncio.CancelledError as cancelled:
            if self._is_ended_by_us(cancellations):
                raise self._lost(request, Trouble(self._closed, reached=True)) from cancelled
            raise
        finally:
            link.calls -= 1
            await self._bury(link)

    async def close(self, why: str) -> None:
        """Calls under way end with a PodLostError that says why, and so do those that come later."""
        if self._closed:
            return
        self._closed = why or "it is not used any more"
        links = {*self._dropped, *({self._link} if self._link else ())}
        self._link = None
        self._dropped.clear()
        for link in links:
            await link.close()

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

    async def _check(self, timeout: float, *, wait_for_ready: bool) -> str | Trouble:
        """What `ask_health` says, or why there is no connection."""
        if self._closed:
            return self._closed
        link = self._open()
        cancellations = _cancellations()
        link.calls += 1
        try:
            answer = await link.check(
                _WHOLE_SERVER,
                timeout=max(0.0, timeout),
                wait_for_ready=wait_for_ready,
                metadata=self._authorization or None,
            )
            return _health_in_words(answer)
        except grpc.aio.AioRpcError as error:
            code, text = error.code(), error.details() or ""
            trouble = trouble_of(code, text)
            if trouble is not None and trouble.is_unnamed:
                await self._drop(link)
            if trouble is None and code is not grpc.StatusCode.DEADLINE_EXCEEDED:
                return f"it answers {code.name}: {text}"
            return trouble or _SILENCE
        except asyncio.CancelledError:
            if self._is_ended_by_us(cancellations):
                return self._closed
            raise
        finally:
            link.calls -= 1
            await self._bury(link)

    def _result(self, request: EvaluationRequest, message: bytes) -> EvaluationResult:
        try:
            resource_list, log = wire.decode_response(message)
        except wire.WireError as error:
            raise RemoteError(
                request.image,
                code=grpc.StatusCode.INTERNAL.name,
                message=f'function "{request.image}": what pod "{self._pod}" answered is no response: {error}',
                facts={"pod": self._pod},
            ) from error
        return EvaluationResult(resource_list=resource_list, log=bytes(log), runtime=_RUNTIME)

    async def _failure(
        self, request: EvaluationRequest, error: grpc.aio.AioRpcError, link: _Link, started: float
    ) -> EvaluationError:
        """The one error that stands for a status."""
        code, text = error.code(), error.details() or ""
        details = details_of((str(name), value) for name, value in error.trailing_metadata())
        if details is not None:
            return self._answered(request, code, text, details)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceededError(
                request.image, after=asyncio.get_running_loop().time() - started, pod=self._pod
            )
        trouble = trouble_of(code, text)
        if trouble is None:
            return self._foreign(request, code, text)
        if not trouble.reached:
            await self._drop(link)
        return self._lost(request, trouble)

    def _answered(
        self, request: EvaluationRequest, code: grpc.StatusCode, text: str, details: Details
    ) -> EvaluationError:
        if code is grpc.StatusCode.UNAUTHENTICATED:
            # Not the caller's fault: the pod's token is another than its annotations say.
            return self._lost(request, Trouble("it does not accept this runner's token", reached=False))
        if details.reason == _ENDING:
            reached = details.facts.get("started") != "false"
            return self._lost(request, Trouble("it is shutting down", reached))
        return RemoteError(
            request.image,
            code=code.name,
            message=text,
            reason=details.reason,
            facts={**details.facts, "pod": self._pod},
            retry_after=details.retry_after,
        )

    def _foreign(self, request: EvaluationRequest, code: grpc.StatusCode, text: str) -> EvaluationError:
        """Not in the words of a wrapper: of gRPC itself, of a proxy, or of another program."""
        if "Received message larger than max" in text:
            text = (
                f"its answer is larger than the limit of {self._message_limit} bytes set by --max-request-body-size; "
                "the pod was started with another one"
            )
        return RemoteError(
            request.image,
            code=code.name,
            message=f'function "{request.image}": pod "{self._pod}" answered {code.name}: {text}',
            facts={"pod": self._pod},
        )

    def _lost(self, request: EvaluationRequest, trouble: Trouble) -> PodLostError:
        return PodLostError(request.image, pod=self._pod, why=trouble.why, reached=trouble.reached)


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def _health_in_words(answer: bytes) -> str:
    try:
        status = health_pb2.HealthCheckResponse.FromString(answer).status
    except DecodeError:
        return "what answers on its port is no wrapper server"
    return "" if status == SERVING else f"it says {health_pb2.HealthCheckResponse.ServingStatus.Name(status)}"
