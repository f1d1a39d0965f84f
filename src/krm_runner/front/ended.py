"""The report of a call that the front answered by itself: the same log line and the same metrics as of any other."""

from __future__ import annotations

from collections.abc import Mapping

from krm_runner.core.errors import InvalidRequestError
from krm_runner.front.local_functions import LocalFunctions
from krm_runner.rpc._generated.front_pb2 import Call, Ended, Served
from krm_runner.rpc.call_record import CallTerms, log_evaluation, shortened_error, shown_image, warn_of_failed_results
from krm_runner.telemetry.metrics import EvaluationMetrics
from krm_runner.telemetry.tracing import CallSpan, CallSpans

_NUMBERS = ("exit", "log_bytes")
"""Facts that are numbers, and stand behind the others."""


class EndedCalls:
    """Reports them."""

    def __init__(self, metrics: EvaluationMetrics, terms: CallTerms, spans: CallSpans | None) -> None:
        self._metrics = metrics
        self._terms = terms
        self._spans = spans

    def report(self, ended: Ended, *, unseen: bool) -> None:
        """One call, `unseen` if its arrival was not."""
        image = shown_image(ended.image)
        runtime = LocalFunctions.runtime if ended.function else ""
        if ended.HasField("queue_seconds"):
            self._metrics.waited(ended.queue_seconds, runtime=runtime)
        if ended.process:
            self._metrics.executed(function=ended.function, process=ended.process, seconds=ended.execution_seconds)
        if ended.failed_results:
            warn_of_failed_results(image, tuple(ended.failed_results))
        self._metrics.evaluated(
            image=self._canonical(ended.image) if runtime else "",
            runtime=runtime,
            code=ended.code,
            seconds=ended.seconds,
            request_bytes=ended.request_bytes,
            response_bytes=ended.response_bytes,
            unseen=unseen,
        )
        if self._spans is not None and (span := span_of(ended)) is not None:
            self._spans.export(span, seconds=ended.seconds, code=ended.code, image=image, runtime=runtime)
        log_evaluation(
            image=image,
            runtime=runtime,
            code=ended.code,
            seconds=ended.seconds,
            request_bytes=ended.request_bytes,
            response_bytes=ended.response_bytes,
            facts=facts_of(ended),
        )

    def _canonical(self, image: str) -> str:
        try:
            return self._terms.reference(image).canonical
        except InvalidRequestError:
            # The front executes no image that was not looked up here.
            return ""


def span_of(message: Call | Ended | Served) -> CallSpan | None:
    """Return the span of a sampled call."""
    if not message.HasField("span"):
        return None
    span = message.span
    return CallSpan(span.trace_id, span.span_id, span.parent_id, span.trace_state, span.started_at)


def facts_of(ended: Ended) -> Mapping[str, object]:
    """For its log line, in the order that the line has for every call."""
    told = ended.facts
    facts: dict[str, object] = {}
    if ended.code == "OK":
        facts["queue_seconds"] = ended.queue_seconds
    facts |= {name: told[name] for name in sorted(told) if name not in _NUMBERS}
    facts |= {name: _number(told[name]) for name in _NUMBERS if name in told}
    if ended.error:
        facts["error"] = shortened_error(ended.error)
    return facts


def _number(text: str) -> object:
    try:
        return int(text)
    except ValueError:
        return text
