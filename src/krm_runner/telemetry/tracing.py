"""One span per evaluation, in the trace that the caller started."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager

from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer


def trace_headers() -> tuple[tuple[str, str], ...]:
    """What tells another server that its part belongs to the current span."""
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
        "evaluator.FunctionEvaluator/EvaluateFunction",
        context=extract(metadata),
        kind=SpanKind.SERVER,
        attributes={
            "rpc.system": "grpc",
            "rpc.service": "evaluator.FunctionEvaluator",
            "rpc.method": "EvaluateFunction",
        },
        record_exception=False,
        set_status_on_exception=False,
    ) as span:
        try:
            yield attributes
        finally:
            code = str(attributes.pop("code", "UNKNOWN"))
            span.set_attribute("rpc.grpc.status_code", code)
            span.set_attributes({f"krm_runner.{name}": value for name, value in attributes.items()})
            if code != "OK":
                span.set_status(Status(StatusCode.ERROR, code))
