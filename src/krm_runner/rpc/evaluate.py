"""The rpc EvaluateFunction: bytes in, bytes out, one log line, and every error as its status."""

from __future__ import annotations

import asyncio
from typing import NoReturn, cast

import grpc
import structlog
from opentelemetry.trace import Tracer

from krm_runner.core.errors import (
    EvaluationError,
    InvalidRequestError,
    MessageTooLargeError,
    OverloadedError,
    ShuttingDownError,
    UnexpectedError,
)
from krm_runner.core.evaluation import EvaluationRequest, EvaluationResult, Evaluator
from krm_runner.core.log_excerpt import shorten
from krm_runner.core.request_budget import RequestBudget
from krm_runner.rpc import wire
from krm_runner.rpc._generated import evaluator_pb2
from krm_runner.rpc.call_record import CallRecord, CallTerms, shown_image
from krm_runner.rpc.status import DETAILS_KEY
from krm_runner.telemetry import internal_errors
from krm_runner.telemetry.metrics import EvaluationMetrics
from krm_runner.telemetry.tracing import evaluation_span, trace_headers

SERVICE_NAME: str = evaluator_pb2.DESCRIPTOR.services_by_name["FunctionEvaluator"].full_name

METHOD = f"/{SERVICE_NAME}/EvaluateFunction"

_log = structlog.get_logger("krm_runner.rpc")
_Context = grpc.aio.ServicerContext[bytes, bytes]


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
    ) -> None:
        self._evaluator = evaluator
        self._metrics = metrics
        self._tracer = tracer
        self._message_limit = message_limit
        self._budget = budget
        self._terms = CallTerms(default_timeout=default_timeout, default_prefix=default_prefix)
        self._log_payloads = log_payloads
        self._under_way: set[asyncio.Task[object]] = set()
        self._stopping = False
        self.calls_arrived = 0
        """How many calls there were, since the start."""

    def handler(self) -> grpc.GenericRpcHandler:
        """What the server needs to serve it: no (de)serializers, so that messages stay bytes."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME, {"EvaluateFunction": grpc.unary_unary_rpc_method_handler(self._serve)}
        )

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
        call = CallRecord(started=asyncio.get_running_loop().time(), request_bytes=len(message))
        try:
            with evaluation_span(self._tracer, metadata=self._trace_metadata(context)) as span:
                try:
                    return await self._answer(call, message, context)
                except EvaluationError as error:
                    await self._refuse(call, error, context)
                except asyncio.CancelledError:
                    if not self._stopping:
                        call.went_away(asyncio.get_running_loop().time())
                        raise
                    task.uncancel()
                    await self._refuse(call, ShuttingDownError(call.image), context)
                except Exception as error:
                    internal_errors.report("call", error, image=call.image)
                    await self._refuse(call, UnexpectedError(call.image, cause=error), context)
                finally:
                    span.update(image=call.image, runtime=call.runtime, code=call.code)
        finally:
            self._under_way.discard(task)
            call.report(self._metrics, asyncio.get_running_loop().time())

    async def _answer(self, call: CallRecord, message: bytes, context: _Context) -> bytes:
        call.request = self._read(call, message, context)
        if not self._budget.enter(len(message)):
            raise OverloadedError(call.image, size=len(message), used=self._budget.used, limit=self._budget.limit)
        try:
            return self._write(call, await self._evaluator.evaluate(call.request))
        finally:
            self._budget.leave(len(message))

    def _read(self, call: CallRecord, message: bytes, context: _Context) -> EvaluationRequest:
        if len(message) > self._message_limit:
            raise MessageTooLargeError(size=len(message), limit=self._message_limit)
        try:
            image, resource_list = wire.decode_request(message)
        except wire.WireError as error:
            raise InvalidRequestError(f"the request is no EvaluateFunctionRequest: {error}") from error
        call.image = shown_image(image)
        remaining = cast(float | None, context.time_remaining())  # the stubs do not know of no deadline
        if self._log_payloads:
            _log.debug("request", image=call.image, resource_list=str(resource_list, "utf-8", "replace"))
        return EvaluationRequest(
            image=image,
            reference=self._terms.reference(image),
            resource_list=resource_list,
            deadline=self._terms.deadline(call.started, remaining),
            trace=trace_headers() if self._tracer is not None else (),
        )

    def _write(self, call: CallRecord, result: EvaluationResult) -> bytes:
        size = len(result.resource_list)
        room = self._message_limit - size - wire.field_overhead(size)
        log = shorten(result.log, max(0, room - wire.field_overhead(room)) if room > 0 else 0)
        response = wire.encode_response(result.resource_list, log)
        call.succeeded(result, response_bytes=len(response), log_bytes=len(result.log))
        if self._log_payloads:
            _log.debug("response", image=call.image, resource_list=str(result.resource_list, "utf-8", "replace"))
        return response

    async def _refuse(self, call: CallRecord, error: EvaluationError, context: _Context) -> NoReturn:
        status = call.refused(error)
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
