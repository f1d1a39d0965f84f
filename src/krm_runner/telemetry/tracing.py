"""One span per evaluation, in the trace that the caller started."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from opentelemetry.trace import SpanContext, SpanKind, Status, StatusCode, TraceFlags, Tracer, TraceState

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

_NAME = "evaluator.FunctionEvaluator/EvaluateFunction"
_RPC = {"rpc.system": "grpc", "rpc.service": "evaluator.FunctionEvaluator", "rpc.method": "EvaluateFunction"}


@dataclass(frozen=True, slots=True)
class CallSpan:
    """The identity of a sampled call's span, which krm-front decided when the call arrived."""

    trace_id: bytes
    span_id: bytes
    parent_id: bytes
    """Empty if the call started the trace."""
    trace_state: str
    started_at: int
    """In nanoseconds since 1970."""


class CallSpans:
    """Exports the spans of calls after they have ended."""

    def __init__(self, export: Callable[[ReadableSpan], None], resource: Resource, *, scope: tuple[str, str]) -> None:
        """`export` must not block; `scope` is a name and a version."""
        from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415 - as in exporters
        from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

        self._export = export
        self._resource = resource
        self._scope = InstrumentationScope(*scope)
        self._make = ReadableSpan

    def export(self, span: CallSpan, *, seconds: float, code: str, image: str, runtime: str) -> None:
        """Export one span."""
        state = TraceState.from_header([span.trace_state]) if span.trace_state else TraceState()

        def context(span_id: bytes, *, is_remote: bool) -> SpanContext:
            trace_id, flags = int.from_bytes(span.trace_id), TraceFlags(TraceFlags.SAMPLED)
            return SpanContext(trace_id, int.from_bytes(span_id), is_remote, flags, state)

        attributes = {**_RPC, **_own(image=image, runtime=runtime), "rpc.grpc.status_code": code}
        self._export(
            self._make(
                _NAME,
                context=context(span.span_id, is_remote=False),
                parent=context(span.parent_id, is_remote=True) if span.parent_id else None,
                resource=self._resource,
                attributes=attributes,
                kind=SpanKind.SERVER,
                instrumentation_scope=self._scope,
                status=Status(StatusCode.UNSET) if code == "OK" else Status(StatusCode.ERROR, code),
                start_time=span.started_at,
                end_time=span.started_at + int(seconds * 1e9),
            )
        )


def trace_headers() -> tuple[tuple[str, str], ...]:
    """Return the headers that tell another server that its part belongs to the current span."""
    from opentelemetry.propagate import inject  # noqa: PLC0415 - as below

    headers: dict[str, str] = {}
    inject(headers)
    return tuple(headers.items())


@contextmanager
def evaluation_span(tracer: Tracer | None, *, metadata: Mapping[str, str]) -> Generator[dict[str, str | int]]:
    """Span around one call; what is put into the mapping becomes its attributes, `code` its status."""
    attributes: dict[str, str | int] = {}
    if tracer is None:
        yield attributes
        return
    from opentelemetry.propagate import extract  # noqa: PLC0415 - reads OTEL_PROPAGATORS, which only tracing needs

    with tracer.start_as_current_span(
        _NAME,
        context=extract(metadata),
        kind=SpanKind.SERVER,
        attributes=_RPC,
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield attributes
        finally:
            code = str(attributes.pop("code", "UNKNOWN"))
            span.set_attribute("rpc.grpc.status_code", code)
            span.set_attributes(_own(**attributes))
            if code != "OK":
                span.set_status(Status(StatusCode.ERROR, code))


def _own(**attributes: str | int) -> dict[str, str | int]:
    return {f"krm_runner.{name}": value for name, value in attributes.items()}
