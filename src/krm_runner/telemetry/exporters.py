"""Turning OpenTelemetry's environment variables into exporters.

Each signal's exporter is chosen by OTEL_METRICS_EXPORTER and OTEL_TRACES_EXPORTER (none by default); everything else
(endpoints, headers, sampling, resource attributes) is read by OpenTelemetry's own SDK with its standard meaning. The
SDK is only imported when a signal is on.
"""

from __future__ import annotations

import importlib
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from opentelemetry.metrics import Meter, NoOpMeterProvider
from opentelemetry.trace import Tracer

from krm_runner import __version__
from krm_runner.core.errors import ConfigurationError, ServeError
from krm_runner.telemetry.tracing import CallSpans

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

    from opentelemetry.sdk.metrics.export import MetricReader
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import SpanExporter

METRICS_EXPORTERS = ("none", "prometheus", "otlp", "console")
TRACES_EXPORTERS = ("none", "otlp", "console")
OTLP_PROTOCOLS = ("grpc", "http/protobuf")

_SCOPE = "krm_runner"
_METRICS_PATH = "/metrics"
_CLOSE_SECONDS = 2.0


@dataclass(frozen=True, slots=True)
class Sampler:
    """Which calls are traced."""

    follows_caller: bool = True
    """Whether the decision of a caller that sends a trace stands."""
    share: float = 1.0
    """Of all other traces, from 0 to 1."""


@dataclass(frozen=True, slots=True)
class ExporterChoice:
    """Which exporters are on."""

    metrics: str = "none"
    traces: str = "none"
    prometheus_host: str = "localhost"
    prometheus_port: int = 9464
    metrics_protocol: str = OTLP_PROTOCOLS[0]
    traces_protocol: str = OTLP_PROTOCOLS[0]
    sampler: Sampler = field(default_factory=Sampler)


@dataclass(slots=True)
class Telemetry:
    """The meter, the tracer and the exporter of recorded spans if tracing is on, and how to flush and close them."""

    meter: Meter
    tracer: Tracer | None
    spans: CallSpans | None
    _closers: list[Callable[[], object]] = field(default_factory=list[Callable[[], object]])

    def close(self) -> None:
        """Flush what is pending and stop the exporters. Blocks for a moment at most: a collector that does not answer
        must not keep the process from ending."""
        closing = [threading.Thread(target=closer, daemon=True) for closer in reversed(self._closers)]
        for thread in closing:
            thread.start()
        end = time.monotonic() + _CLOSE_SECONDS
        for thread in closing:
            thread.join(max(0.0, end - time.monotonic()))


def start(choice: ExporterChoice) -> Telemetry:
    """Start the exporters; ServeError when the metrics port is taken, ConfigurationError for bad OTEL_ variables."""
    closers: list[Callable[[], object]] = []
    try:
        meter = _start_metrics(choice, closers)
        tracer, spans = _start_traces(choice, closers)
    except ServeError:
        raise
    except Exception as error:
        # The SDK reads dozens of variables, each with an exception of its own.
        raise ConfigurationError(f"OpenTelemetry does not start, check the OTEL_ variables: {error}") from error
    return Telemetry(meter, tracer, spans, closers)


def _start_metrics(choice: ExporterChoice, closers: list[Callable[[], object]]) -> Meter:
    if choice.metrics == "none":
        return NoOpMeterProvider().get_meter(_SCOPE)
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415 - 100 ms that only its users pay

    provider = MeterProvider(
        metric_readers=[_metric_reader(choice, closers)], resource=_resource(), shutdown_on_exit=False
    )
    closers.append(provider.shutdown)
    return provider.get_meter(_SCOPE, __version__)


def _metric_reader(choice: ExporterChoice, closers: list[Callable[[], object]]) -> MetricReader:
    from opentelemetry.sdk.metrics.export import (  # noqa: PLC0415
        ConsoleMetricExporter,
        MetricExporter,
        PeriodicExportingMetricReader,
    )

    if choice.metrics == "prometheus":
        from opentelemetry.exporter.prometheus import PrometheusMetricReader  # noqa: PLC0415
        from prometheus_client import start_http_server  # noqa: PLC0415

        host, port = choice.prometheus_host, choice.prometheus_port
        try:
            server, thread = start_http_server(port, addr=host)
        except OSError as error:
            raise ServeError(f"cannot serve metrics on {host}:{port}: {error.strerror or error}") from error
        server.set_app(_only_metrics(cast("WSGIApplication", server.get_app())))

        def stop() -> None:
            server.shutdown()
            server.server_close()
            thread.join(timeout=3)

        closers.append(stop)
        return PrometheusMetricReader()
    exporter: MetricExporter
    if choice.metrics == "console":
        exporter = ConsoleMetricExporter()
    elif choice.metrics_protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import (  # noqa: PLC0415
            OTLPMetricExporter as HttpExporter,
        )

        exporter = HttpExporter()
    else:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (  # noqa: PLC0415
            OTLPMetricExporter as GrpcExporter,
        )

        exporter = GrpcExporter()
    return PeriodicExportingMetricReader(exporter)


def _only_metrics(serve: WSGIApplication) -> WSGIApplication:
    """Wrap the library's server, which answers on every path with metrics."""

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        if environ["PATH_INFO"] == _METRICS_PATH:
            return serve(environ, start_response)
        start_response("404 Not Found", [("Content-Type", "text/plain")])
        return [f"not found; metrics are at {_METRICS_PATH}\n".encode()]

    return answer


def _start_traces(
    choice: ExporterChoice, closers: list[Callable[[], object]]
) -> tuple[Tracer, CallSpans] | tuple[None, None]:
    if choice.traces == "none":
        return None, None
    importlib.import_module("opentelemetry.propagate")  # reads OTEL_PROPAGATORS, which may be wrong
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
    processor = BatchSpanProcessor(_span_exporter(choice))
    provider.add_span_processor(processor)
    closers.append(provider.shutdown)
    tracer = provider.get_tracer(_SCOPE, __version__)
    return tracer, CallSpans(processor.on_end, provider.resource, scope=(_SCOPE, __version__))


def _span_exporter(choice: ExporterChoice) -> SpanExporter:
    if choice.traces == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter  # noqa: PLC0415

        return ConsoleSpanExporter()
    if choice.traces_protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import (  # noqa: PLC0415
            OTLPSpanExporter as HttpExporter,
        )

        return HttpExporter()
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import (  # noqa: PLC0415
        OTLPSpanExporter as GrpcExporter,
    )

    return GrpcExporter()


def _resource() -> Resource:
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415

    named = "OTEL_SERVICE_NAME" in os.environ or "service.name=" in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    attributes = {"service.version": __version__}
    return Resource.create(attributes if named else {"service.name": "krm-runner", **attributes})
