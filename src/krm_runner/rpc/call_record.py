"""What every call has, whoever received it: its image and its deadline, what became of it, one log line, its metrics.

Nothing here sends or receives anything: `rpc.evaluate` does that for calls of this process's own port, `front` for
those of its front.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from krm_runner.core import image_ref
from krm_runner.core.errors import EvaluationError, InvalidRequestError
from krm_runner.core.evaluation import EvaluationRequest, EvaluationResult
from krm_runner.core.image_ref import ImageRef
from krm_runner.core.log_excerpt import shorten
from krm_runner.rpc.status import Status, status_of
from krm_runner.telemetry.metrics import EvaluationMetrics
from krm_runner.telemetry.tracing import CallSpan, CallSpans

_MAX_SHOWN_IMAGE = 256
_MAX_LOGGED_ERROR = 4096
_MAX_KNOWN_IMAGES = 1024
_DEADLINE_MARGIN = 0.02

_log = structlog.get_logger("krm_runner.rpc")


@dataclass(slots=True)
class CallRecord:
    """What is known of one call, for its log line, its metrics and its span."""

    started: float
    request_bytes: int
    image: str = ""
    """As it is shown."""
    request: EvaluationRequest | None = None
    code: str = "OK"
    response_bytes: int = 0
    seconds: float | None = None
    """Where somebody else has answered it, and knows."""
    is_unseen: bool = False
    """Whether it was over when it was heard of."""
    facts: dict[str, object] = field(default_factory=dict[str, object])
    span: CallSpan | None = None
    """Of a sampled call whose span is exported from its record."""

    @property
    def runtime(self) -> str:
        """The runtime that has the call, or had it last."""
        return self.request.runtime if self.request else ""

    @property
    def canonical_image(self) -> str:
        """One spelling of the image."""
        return self.request.reference.canonical if self.request else ""

    def succeeded(self, result: EvaluationResult, *, response_bytes: int, log_bytes: int) -> None:
        """It was answered."""
        self.response_bytes = response_bytes
        self.facts["queue_seconds"] = result.queue_wait
        if result.pod:
            self.facts["pod"] = result.pod
        self.facts |= {"exit": 0, "log_bytes": log_bytes}
        warn_of_failed_results(self.image, result.failed_results)

    def refused(self, error: EvaluationError) -> Status:
        """It is answered with this status."""
        status = status_of(error, runtime=self.runtime)
        self.code = status.code.name
        self.facts |= {name: value for name, value in error.facts.items() if name != "exit_code"}
        if "exit_code" in error.facts:
            self.facts["exit"] = int(error.facts["exit_code"])
        self.facts["error"] = shortened_error(str(error))
        return status

    def went_away(self, now: float) -> None:
        """A caller whose deadline passed goes away as well; whose timer was faster does not matter."""
        if self.request and now >= self.request.deadline:
            self.code = "DEADLINE_EXCEEDED"
            self.facts["error"] = "the deadline of the call passed; the function was stopped"
        else:
            self.code = "CANCELLED"
            self.facts["error"] = "the caller went away; the function was stopped"

    def report(self, metrics: EvaluationMetrics, now: float, spans: CallSpans | None = None) -> None:
        """Count, trace and log the call, which is over."""
        seconds = now - self.started if self.seconds is None else self.seconds
        metrics.evaluated(
            image=self.canonical_image,
            runtime=self.runtime,
            code=self.code,
            seconds=seconds,
            request_bytes=self.request_bytes,
            response_bytes=self.response_bytes,
            unseen=self.is_unseen,
        )
        if spans is not None and self.span is not None:
            spans.export(self.span, seconds=seconds, code=self.code, image=self.image, runtime=self.runtime)
        log_evaluation(
            image=self.image,
            runtime=self.runtime,
            code=self.code,
            seconds=seconds,
            request_bytes=self.request_bytes,
            response_bytes=self.response_bytes,
            facts=self.facts,
        )


class CallTerms:
    """How calls name images, and how long they may take."""

    def __init__(self, *, default_timeout: float, default_prefix: str) -> None:
        self._default_timeout = default_timeout
        self._parse = functools.lru_cache(maxsize=_MAX_KNOWN_IMAGES)(
            functools.partial(image_ref.parse, default_prefix=default_prefix)
        )

    def reference(self, image: str) -> ImageRef:
        """What an image stands for; InvalidRequestError when it is none."""
        try:
            return self._parse(image)
        except image_ref.ImageRefError as error:
            shown = shown_image(image)
            raise InvalidRequestError(f'"{shown}" is no valid image: {error}', image=shown) from error

    def deadline(self, started: float, remaining: float | None) -> float:
        """On the event loop's clock; `remaining` is what the caller allows, None when it sets no deadline."""
        if remaining is None:
            return started + self._default_timeout
        # A little earlier than the caller's own timer, so that it is our message that a person sees.
        return started + remaining - min(_DEADLINE_MARGIN, remaining / 20)


def shown_image(image: str) -> str:
    """As messages and logs have it."""
    return image if len(image) <= _MAX_SHOWN_IMAGE else image[:_MAX_SHOWN_IMAGE] + "..."


def shortened_error(text: str) -> str:
    """For a log line."""
    return shorten(text.encode(errors="replace"), _MAX_LOGGED_ERROR).decode(errors="replace")


def warn_of_failed_results(image: str, failed_results: tuple[str, ...]) -> None:
    """A function that succeeded has something to say all the same."""
    for failed in failed_results:
        _log.warning("the function succeeded with a result of severity error", image=image, result=failed)


def log_evaluation(
    *,
    image: str,
    runtime: str,
    code: str,
    seconds: float,
    request_bytes: int,
    response_bytes: int,
    facts: Mapping[str, object],
) -> None:
    """The one line of a call."""
    log = _log.info if code == "OK" else _log.warning
    log(
        "evaluated",
        image=image,
        runtime=runtime or "none",
        code=code,
        seconds=seconds,
        request_bytes=request_bytes,
        response_bytes=response_bytes,
        **facts,
    )
