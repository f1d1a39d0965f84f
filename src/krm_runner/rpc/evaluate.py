"""The rpc EvaluateFunction: bytes in, bytes out, one log line, and every error as its status."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import NoReturn, cast

import grpc
import structlog
from opentelemetry.trace import Tracer

from krm_runner.core import image_ref
from krm_runner.core.bearer_tokens import HEADER, BearerTokens
from krm_runner.core.errors import (
    EvaluationError,
    InvalidRequestError,
    MessageTooLargeError,
    OverloadedError,
    ShuttingDownError,
    UnauthenticatedError,
    UnexpectedError,
)
from krm_runner.core.evaluation import EvaluationRequest, EvaluationResult, Evaluator
from krm_runner.core.image_ref import ImageRef
from krm_runner.core.log_excerpt import shorten
from krm_runner.core.request_budget import RequestBudget
from krm_runner.rpc import wire
from krm_runner.rpc._generated import evaluator_pb2
from krm_runner.rpc.status import DETAILS_KEY, status_of
from krm_runner.telemetry.metrics import EvaluationMetrics
from krm_runner.telemetry.tracing import evaluation_span, trace_headers

SERVICE_NAME: str = evaluator_pb2.DESCRIPTOR.services_by_name["FunctionEvaluator"].full_name

METHOD = f"/{SERVICE_NAME}/EvaluateFunction"

_MAX_SHOWN_IMAGE = 256
_MAX_LOGGED_ERROR = 4096
_DEADLINE_MARGIN = 0.02

_log = structlog.get_logger("krm_runner.rpc")
_Context = grpc.aio.ServicerContext[bytes, bytes]


@dataclass(slots=True)
class _Call:
    """What is known of one call, for its log line, its metrics and its span."""

    started: float
    request_bytes: int
    image: str = ""
    request: EvaluationRequest | None = None
    code: str = "OK"
    response_bytes: int = 0
    facts: dict[str, object] = field(default_factory=dict[str, object])

    @property
    def runtime(self) -> str:
        """The runtime that has the call, or had it last."""
        return self.request.runtime if self.request else ""

    @property
    def canonical_image(self) -> str:
        """One spelling of the image."""
        return self.request.reference.canonical if self.request else ""


def max_resource_list(message_limit: int) -> int:
    """The largest resource list that an answer of at most `message_limit` bytes can hold."""
    return max(0, message_limit - wire.field_overhead(message_limit))


class EvaluateHandler:
    """Serves EvaluateFunction with one evaluator, and knows the calls that are under way."""

    def __init__(
        self,
        evaluator: Evaluator,
        *,
        metrics: EvaluationMetrics,
        tracer: Tracer | None,
        message_limit: int,
        budget: RequestBudget,
        default_timeout: float,
        default_prefix: str,
        log_payloads: bool,
        accepted_tokens: Callable[[], BearerTokens] | None = None,
    ) -> None:
        self._evaluator = evaluator
        self._metrics = metrics
        self._tracer = tracer
        self._message_limit = message_limit
        self._budget = budget
        self._default_timeout = default_timeout
        self._parse_image = functools.lru_cache(maxsize=1024)(
            functools.partial(image_ref.parse, default_prefix=default_prefix)
        )
        self._log_payloads = log_payloads
        self._accepted_tokens = accepted_tokens
        self._under_way: set[asyncio.Task[object]] = set()
        self._stopping = False
        self.calls_arrived = 0
        """How many calls there were, since the start."""

    def handler(self) -> grpc.GenericRpcHandler:
        """What the server needs to serve it: no (de)serializers, so that messages stay bytes."""
        serving = grpc.method_handlers_generic_handler(
            SERVICE_NAME, {"EvaluateFunction": grpc.unary_unary_rpc_method_handler(self._serve)}
        )
        return serving if self._accepted_tokens is None else _Door(serving, self._accepted_tokens, self._turn_away)

    @property
    def calls_under_way(self) -> int:
        """How many calls have arrived and are not answered."""
        return len(self._under_way)

    def stop_calls(self) -> None:
        """Cancel every call under way; its caller is told that the runner is shutting down."""
        self._stopping = True
        for task in self._under_way:
            task.cancel()

    async def _serve(self, message: bytes, context: _Context) -> bytes:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - grpc.aio runs handlers in tasks
        self._under_way.add(task)
        self.calls_arrived += 1
        self._metrics.arrived()
        call = _Call(started=asyncio.get_running_loop().time(), request_bytes=len(message))
        try:
            with evaluation_span(self._tracer, metadata=self._trace_metadata(context)) as span:
                try:
                    return await self._answer(call, message, context)
                except EvaluationError as error:
                    await self._refuse(call, error, context)
                except asyncio.CancelledError:
                    if not self._stopping:
                        self._note_cancellation(call)
                        raise
                    task.uncancel()
                    await self._refuse(call, ShuttingDownError(call.image), context)
                except Exception as error:
                    _log.exception("unexpected error", image=call.image)
                    await self._refuse(call, UnexpectedError(call.image, cause=error), context)
                finally:
                    span.update(image=call.image, runtime=call.runtime, code=call.code)
        finally:
            self._under_way.discard(task)
            self._report(call)

    async def _turn_away(self, error: UnauthenticatedError, _: AsyncIterator[bytes], context: _Context) -> NoReturn:
        """A call of somebody unknown; its message stays unread."""
        self._metrics.arrived()
        call = _Call(started=asyncio.get_running_loop().time(), request_bytes=0)
        call.facts["peer"] = context.peer()
        try:
            await self._refuse(call, error, context)
        finally:
            self._report(call)

    async def _answer(self, call: _Call, message: bytes, context: _Context) -> bytes:
        call.request = self._read(call, message, context)
        if not self._budget.enter(len(message)):
            raise OverloadedError(call.image, size=len(message), used=self._budget.used, limit=self._budget.limit)
        try:
            return await self._evaluate(call, call.request)
        finally:
            self._budget.leave(len(message))

    async def _evaluate(self, call: _Call, request: EvaluationRequest) -> bytes:
        result = await self._evaluator.evaluate(request)
        call.facts["queue_seconds"] = result.queue_wait
        if result.pod:
            call.facts["pod"] = result.pod
        for failed in result.failed_results:
            _log.warning("the function succeeded with a result of severity error", image=call.image, result=failed)
        return self._write(call, result)

    def _read(self, call: _Call, message: bytes, context: _Context) -> EvaluationRequest:
        if len(message) > self._message_limit:
            raise MessageTooLargeError(size=len(message), limit=self._message_limit)
        try:
            image, resource_list = wire.decode_request(message)
        except wire.WireError as error:
            raise InvalidRequestError(f"the request is no EvaluateFunctionRequest: {error}") from error
        call.image = image if len(image) <= _MAX_SHOWN_IMAGE else image[:_MAX_SHOWN_IMAGE] + "..."
        remaining = cast(float | None, context.time_remaining())  # the stubs do not know of no deadline
        # A little earlier than the caller's own timer, so that it is our message that a person sees.
        margin = 0.0 if remaining is None else min(_DEADLINE_MARGIN, remaining / 20)
        timeout = self._default_timeout if remaining is None else remaining
        if self._log_payloads:
            _log.debug("request", image=call.image, resource_list=str(resource_list, "utf-8", "replace"))
        return EvaluationRequest(
            image=image,
            reference=self._reference(call.image, image),
            resource_list=resource_list,
            deadline=call.started + timeout - margin,
            trace=trace_headers() if self._tracer is not None else (),
        )

    def _note_cancellation(self, call: _Call) -> None:
        """A caller whose deadline passed goes away as well; whose timer was faster does not matter."""
        if call.request and asyncio.get_running_loop().time() >= call.request.deadline:
            call.code = "DEADLINE_EXCEEDED"
            call.facts["error"] = "the deadline of the call passed; the function was stopped"
        else:
            call.code = "CANCELLED"
            call.facts["error"] = "the caller went away; the function was stopped"

    def _reference(self, shown: str, image: str) -> ImageRef:
        try:
            return self._parse_image(image)
        except image_ref.ImageRefError as error:
            raise InvalidRequestError(f'"{shown}" is no valid image: {error}', image=shown) from error

    def _write(self, call: _Call, result: EvaluationResult) -> bytes:
        size = len(result.resource_list)
        room = self._message_limit - size - wire.field_overhead(size)
        log = shorten(result.log, max(0, room - wire.field_overhead(room)) if room > 0 else 0)
        response = wire.encode_response(result.resource_list, log)
        call.response_bytes = len(response)
        call.facts |= {"exit": 0, "log_bytes": len(result.log)}
        if self._log_payloads:
            _log.debug("response", image=call.image, resource_list=str(result.resource_list, "utf-8", "replace"))
        return response

    async def _refuse(self, call: _Call, error: EvaluationError, context: _Context) -> NoReturn:
        status = status_of(error, runtime=call.runtime)
        call.code = status.code.name
        call.facts |= {name: value for name, value in error.facts.items() if name != "exit_code"}
        if "exit_code" in error.facts:
            call.facts["exit"] = int(error.facts["exit_code"])
        call.facts["error"] = shorten(str(error).encode(errors="replace"), _MAX_LOGGED_ERROR).decode(errors="replace")
        try:
            await context.abort(status.code, status.message, ((DETAILS_KEY, status.details),))
        except grpc.aio.InternalError as gone:
            # The caller went away in the same moment: nobody is left to be told.
            raise asyncio.CancelledError from gone

    def _trace_metadata(self, context: _Context) -> dict[str, str]:
        if self._tracer is None:
            return {}
        metadata = context.invocation_metadata() or ()
        return {str(key): value for key, value in metadata if isinstance(value, str)}

    def _report(self, call: _Call) -> None:
        seconds = asyncio.get_running_loop().time() - call.started
        self._metrics.evaluated(
            image=call.canonical_image,
            runtime=call.runtime,
            code=call.code,
            seconds=seconds,
            request_bytes=call.request_bytes,
            response_bytes=call.response_bytes,
        )
        log = _log.info if call.code == "OK" else _log.warning
        log(
            "evaluated",
            image=call.image,
            runtime=call.runtime or "none",
            code=call.code,
            seconds=seconds,
            request_bytes=call.request_bytes,
            response_bytes=call.response_bytes,
            **call.facts,
        )


class _Door(grpc.GenericRpcHandler):
    """Looks at a call's token before anything else, even before its message is received."""

    def __init__(
        self,
        inside: grpc.GenericRpcHandler,
        accepted: Callable[[], BearerTokens],
        turn_away: Callable[[UnauthenticatedError, AsyncIterator[bytes], _Context], Awaitable[NoReturn]],
    ) -> None:
        self._inside = inside
        self._accepted = accepted
        self._turn_away = turn_away

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        found = self._inside.service(handler_call_details)
        if found is None:
            return None
        metadata = handler_call_details.invocation_metadata or ()
        fault = self._accepted().fault([str(value) for key, value in metadata if key == HEADER])
        if not fault:
            return found
        # Of a method that takes a stream nothing is read that it does not ask for.
        return grpc.stream_unary_rpc_method_handler(functools.partial(self._turn_away, UnauthenticatedError(fault)))
