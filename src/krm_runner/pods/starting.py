"""Starts the pods that the pool wants, and knows those on their way: from its decision until they serve, or do not.

Where there are spares, a function's pod is made of one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Protocol, cast

import structlog

from krm_runner.core.errors import (
    KubernetesError,
    KubernetesForbiddenError,
    KubernetesUnavailableError,
    UnexpectedError,
)
from krm_runner.core.image_metadata import ImageMetadata
from krm_runner.core.pod_facts import PodFacts
from krm_runner.core.pod_failure import Failed, creation_failure, failure, overdue, start_error
from krm_runner.core.pod_template import PodTemplate
from krm_runner.core.pool import Pool
from krm_runner.core.pool_terms import Effects, StartPod
from krm_runner.core.spare import SPARE, PodImage
from krm_runner.pods.attendant import Attendant
from krm_runner.pods.census import Census
from krm_runner.pods.clocks import to_unix
from krm_runner.pods.cold_start import CREATED, ColdStart
from krm_runner.pods.function_limits import FunctionLimits
from krm_runner.pods.launcher import Adopted, Created, Launch, Launcher, NameTaken
from krm_runner.pods.lease import Explain, Ticket, Wanted, WantedSpare
from krm_runner.pods.tasks import Tasks
from krm_runner.telemetry.pod_metrics import PodMetrics

_log = structlog.get_logger("krm_runner.pods")
_LOOK = 1.0


class Watched(Protocol):
    """Who keeps the census up to date."""

    @property
    def connected_since(self) -> float | None:
        """Since when the API server answers without a break, on the event loop's clock."""
        ...

    @property
    def trouble(self) -> KubernetesError | None:
        """Why it does not answer, or what it says instead."""
        ...


class Starting:
    """Of one keeper: tells its pool what becomes of a start, and has it performed what that leads to."""

    def __init__(
        self,
        pool: Pool[Ticket],
        perform: Callable[[Effects[Ticket]], None],
        *,
        census: Census,
        launcher: Launcher,
        functions: FunctionLimits,
        metrics: PodMetrics,
        tasks: Tasks,
        timeout: float,
        clock: Callable[[], float],
    ) -> None:
        self.watched: Watched | None = None
        self.spares: WantedSpare | None = None
        """What spares are now, if they are to be used."""
        self._pool = pool
        self._perform = perform
        self._census = census
        self._launcher = launcher
        self._functions = functions
        self._metrics = metrics
        self._tasks = tasks
        self._timeout = timeout
        self._clock = clock
        self._starts: dict[str, ColdStart] = {}
        self._being_converted: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._starts

    def names(self) -> set[str]:
        """Of the pods on their way."""
        return set(self._starts)

    def find(self, name: str) -> ColdStart | None:
        """The start of the pod of this name."""
        return self._starts.get(name)

    def end(self, name: str) -> ColdStart | None:
        """It serves, or never will."""
        return self._starts.pop(name, None)

    def begin(self, effect: StartPod, wanted: Wanted | WantedSpare) -> None:
        """The pool wants this pod."""
        self._starts[effect.name] = start = ColdStart(effect.function)
        self._tasks.start(self._start(effect, start, wanted), name=f"start of {effect.name}")

    def came(self, attendant: Attendant) -> None:
        """The watch shows a pod, which may be before the answer to its creation."""
        if (start := self._starts.get(attendant.facts.name)) is not None:
            start.milestones.note(CREATED)

    def progress(self, name: str) -> str:
        """How far a pod is that the watch does not show yet, in a line."""
        start = self._starts.get(name)
        return f'pod "{name}": ' + (start.progress if start else "it is not seen yet") + self._blindness

    def launch_of(self, name: str, image: PodImage, template: PodTemplate, reclaim_after: float) -> Launch:
        """The pod as it is to be created."""
        resources = self._functions.of(image.asked_for).resources
        return Launch(name=name, image=image, template=template, reclaim_after=reclaim_after, resources=resources)

    @property
    def _trouble(self) -> KubernetesError | None:
        return self.watched.trouble if self.watched is not None else None

    @property
    def _blindness(self) -> str:
        """Why pods are not seen that are there; for the end of a line."""
        return f"; this runner does not see pods for now: {self._trouble}" if self._trouble else ""

    async def _start(self, effect: StartPod, start: ColdStart, wanted: Wanted | WantedSpare) -> None:
        try:
            await self._bring_up(effect, start, wanted)
        except Exception as error:
            # A defect: whoever waits for the pod need not do so until the deadline.
            self._not_started(effect, partial(UnexpectedError, cause=error))
            raise

    async def _bring_up(self, effect: StartPod, start: ColdStart, wanted: Wanted | WantedSpare) -> None:
        if wanted.image is None:
            self._not_started(effect, wanted.unknown_error)
            return
        deadline = asyncio.get_running_loop().time() + self._timeout
        launch = self.launch_of(effect.name, wanted.image, wanted.template, to_unix(effect.reclaim_after))
        if (spare := await self._spare_for(launch)) is not None:
            await self._go_on_with(spare, effect, start, deadline)
            return
        outcome = await self._launcher.launch(launch, deadline=deadline, trouble=start.note_trouble)
        match outcome:
            case NameTaken():
                self.end(effect.name)
                self._perform(self._pool.taken(effect.name, effect.function, now=self._clock()))
            case Failed():
                self._metrics.start_failed(outcome.reason)
                self._not_started(effect, partial(start_error, pod=effect.name, failed=outcome))
            case Created() | Adopted():
                start.note_created()
                is_gone = outcome.uid in start.gone
                if isinstance(outcome, Adopted) or is_gone:
                    self.end(effect.name)
                if is_gone:
                    deleted = failure("Deleted", "it was deleted", may_pass=True)
                    explain = partial(start_error, pod=effect.name, failed=deleted)
                    self._perform(
                        self._pool.gone(effect.name, outcome.uid, effect.function, explain, now=self._clock())
                    )
                await self._wait_until_seen(effect, deadline)

    async def _spare_for(self, launch: Launch) -> PodFacts | None:
        """One that is the pod of this launch now."""
        spares = self.spares
        if spares is None or not isinstance(launch.image, ImageMetadata):
            return None
        is_like_them = launch.template.version == spares.template.version
        if not is_like_them or launch.resources != self._functions.of(SPARE).resources:
            self._metrics.spare_wanted("unlike")
            return None
        for name in self._pool.ready(SPARE, spares.version):
            attendant = self._census.find(name)
            if attendant is None or name in self._being_converted:
                continue
            self._being_converted.add(name)
            try:
                if await self._launcher.convert(attendant.pod, launch):
                    self._metrics.spare_wanted("used")
                    return attendant.facts
            except KubernetesError as error:
                # After a time-out it may be the function's all the same, which the watch shows.
                _log.warning("spare given up", pod=name, image=launch.image.asked_for, error=str(error))
                is_unanswered = isinstance(error, KubernetesUnavailableError)
                self._metrics.spare_wanted("no answer" if is_unanswered else "refused")
                return None
            finally:
                self._being_converted.discard(name)
        self._metrics.spare_wanted("none left")
        return None

    async def _go_on_with(self, spare: PodFacts, effect: StartPod, start: ColdStart, deadline: float) -> None:
        """The pod is another than the one that was planned."""
        self.end(effect.name)
        start.note_created()
        self._starts[spare.name] = start
        self._pool.left(spare.name, spare.uid, SPARE)
        became = self._pool.became(spare.name, spare.uid, effect.function, instead_of=effect.name, now=self._clock())
        self._perform(became)
        attendant = self._census.find(spare.name, spare.uid)
        if attendant is None or attendant.failure is not None:
            # All of that was faster than the answer.
            self.end(spare.name)
            failed = failure("Deleted", "it was deleted", may_pass=True) if attendant is None else attendant.failure
            explain = partial(start_error, pod=spare.name, failed=cast(Failed, failed))
            self._perform(self._pool.gone(spare.name, spare.uid, effect.function, explain, now=self._clock()))
            return
        await self._wait_until_seen(replace(effect, name=spare.name), deadline)

    async def _wait_until_seen(self, effect: StartPod, deadline: float) -> None:
        """The watch shows a pod within moments; while the API server is away nobody waits for it for ever.

        Where this runner may not look at pods, nobody waits at all.
        """
        loop = asyncio.get_running_loop()
        while loop.time() < deadline:
            if effect.name not in self._pool.pods(effect.function) or self._shows(effect.name, effect.function):
                return
            trouble = self._trouble
            if isinstance(trouble, KubernetesForbiddenError):
                forbidden = creation_failure(trouble)
                self._not_started(effect, partial(start_error, pod=effect.name, failed=forbidden))
                return
            await asyncio.sleep(_LOOK)
        message = f"the API server does not show the pod{self._blindness}"
        unseen = overdue("Unknown", message, after=self._timeout)
        self._not_started(effect, partial(start_error, pod=effect.name, failed=unseen))

    def _shows(self, name: str, function: str) -> bool:
        """Whether the watch shows the pod as this function's."""
        attendant = self._census.find(name)
        return attendant is not None and attendant.facts.asked_for == function

    def _not_started(self, effect: StartPod, explain: Explain) -> None:
        self.end(effect.name)
        self._perform(self._pool.failed(effect.name, "", effect.function, explain, now=self._clock()))
