"""The pod runtime: every image that a registry has is a function; it is executed in a pod of that image."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

import structlog

from krm_runner.core.errors import (
    DeadlineExceededError,
    NoPodTemplateError,
    PodLostError,
    RegistryUnavailableError,
)
from krm_runner.core.evaluation import EvaluationRequest, EvaluationResult
from krm_runner.core.image_ref import ImageRef
from krm_runner.core.pod_template import PodTemplate
from krm_runner.pods.keeper import Keeper
from krm_runner.pods.lease import Wanted
from krm_runner.registry.resolver import Resolution
from krm_runner.telemetry.pod_metrics import PodMetrics

_log = structlog.get_logger("krm_runner.pods")
_MAX_PODS_PER_CALL = 5
"""How many pods a call may lose before it reaches its function."""


class Images(Protocol):
    """Who resolves images."""

    async def look_up(self, reference: ImageRef, *, image: str, deadline: float | None) -> Resolution:
        """What the image is; an EvaluationError says why that cannot be had, TimeoutError that it is not yet known."""
        ...


class Templates(Protocol):
    """Who knows what pods are made from."""

    @property
    def current(self) -> PodTemplate | None:
        """None while there is none."""
        ...

    @property
    def problem(self) -> str:
        """Why there is none."""
        ...


class PodEvaluator:
    """See `core.evaluation.Evaluator`."""

    runtime = "pod"

    def __init__(
        self,
        images: Images,
        templates: Templates,
        keeper: Keeper,
        *,
        metrics: PodMetrics,
        waited: Callable[[float], None],
        retry_lost_calls: bool,
    ) -> None:
        """`waited` hears how long each call waited for its pod."""
        self._images = images
        self._templates = templates
        self._keeper = keeper
        self._metrics = metrics
        self._waited = waited
        self._retry_lost_calls = retry_lost_calls

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        """Execute the function in one of its pods, in another if that one is lost."""
        loop = asyncio.get_running_loop()
        may_run_again = self._retry_lost_calls
        waited = 0.0
        for attempt in range(1, _MAX_PODS_PER_CALL + 1):
            # Each time anew: a template may be another meanwhile.
            wanted = await self._in_time(request)
            asked = loop.time()
            async with self._keeper.lease(wanted, request) as pod:
                waited += loop.time() - asked
                self._waited(waited)
                try:
                    result = await pod.channel.evaluate(request)
                    return replace(result, queue_wait=waited, pod=pod.facts.name)
                except PodLostError as error:
                    self._keeper.lost(pod, error)
                    if attempt == _MAX_PODS_PER_CALL or (error.reached and not may_run_again):
                        raise await self._keeper.cause(pod, error) from error
                    may_run_again = may_run_again and not error.reached
                    self._metrics.retried("in the call" if error.reached else "before the call")
                    _log.warning("call goes to another pod", image=request.image, pod=pod.facts.name, why=error.why)
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _in_time(self, request: EvaluationRequest) -> Wanted:
        started = asyncio.get_running_loop().time()
        try:
            return await self.wanted(request.reference, image=request.image, deadline=request.deadline)
        except TimeoutError as error:
            after = asyncio.get_running_loop().time() - started
            raise DeadlineExceededError(request.image, after=after, waiting_for="the image's registry") from error

    async def wanted(self, reference: ImageRef, *, image: str, deadline: float | None = None) -> Wanted:
        """What a pod for this image must be; TimeoutError when that is not known in time."""
        self._template(image)
        try:
            found = await self._images.look_up(reference, image=image, deadline=deadline)
            template = self._template(image)
        except RegistryUnavailableError as error:
            template = self._template(image)
            # A pod that says that it serves this image does so whether or not the registry is there.
            digest = self._keeper.serving(reference.canonical, template)
            if not digest:
                raise
            return Wanted(reference, digest, template, None, why_unknown=error.why)
        image_is = found.metadata
        return Wanted(reference, image_is.digest, template, image_is, spelling=image, fresh_until=found.fresh_until)

    def _template(self, image: str) -> PodTemplate:
        template = self._templates.current
        if template is None:
            raise NoPodTemplateError(image, why=self._templates.problem)
        return template
