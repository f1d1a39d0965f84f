"""Keeps the function pods: performs what the pool decides, and tells it what the cluster and the pods say.

One place holds everything: the pool (policy), an attendant for each pod that the watch shows, and the tasks that start,
extend and delete pods. Nothing is kept but what Kubernetes holds: a new process lists the pods and goes on. A call that
finds a ready pod makes no request to the API server and starts no task.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import cast

import structlog

from krm_runner.core.errors import (
    DeadlineExceededError,
    KubernetesError,
    PodLostError,
    QueueFullError,
)
from krm_runner.core.evaluation import EvaluationRequest
from krm_runner.core.held_call import NextCalls
from krm_runner.core.pod_conversion import NOT_STARTED
from krm_runner.core.pod_failure import Failed, failure, start_error
from krm_runner.core.pod_template import PodTemplate
from krm_runner.core.pool import Pool
from krm_runner.core.pool_terms import (
    DeletePod,
    Effects,
    ExtendTtl,
    Grant,
    Lost,
    Observed,
    PodState,
    Promise,
    Refuse,
    StartPod,
    Version,
    Withdraw,
)
from krm_runner.core.spare import SPARE
from krm_runner.pods.addresses import Addresses
from krm_runner.pods.attendant import Attendant
from krm_runner.pods.census import Census
from krm_runner.pods.channels import Channels
from krm_runner.pods.clocks import from_unix, to_unix
from krm_runner.pods.evidence import Evidence
from krm_runner.pods.function_limits import FunctionLimits
from krm_runner.pods.launcher import Launch, Launcher
from krm_runner.pods.lease import Explain, Ticket, Wanted, WantedSpare
from krm_runner.pods.patience import Patience
from krm_runner.pods.pod_tokens import PodTokens
from krm_runner.pods.promises import Promises
from krm_runner.pods.service_care import ServiceCare
from krm_runner.pods.services import Services
from krm_runner.pods.spares import Spares
from krm_runner.pods.starting import Starting, Watched
from krm_runner.pods.tasks import Tasks
from krm_runner.pods.ttl_writer import TtlWriter
from krm_runner.telemetry.pod_metrics import PodMetrics, PoolSize

_log = structlog.get_logger("krm_runner.pods")
_HEARTBEAT = 1.0
_SETTLING = 10.0
"""For how long nothing is collected after the API server was away: every runner first says which pods it uses."""
_CAUSE_TIMEOUT, _CAUSE_LOOKS = 2.0, 20
_EVENT_LOOKS, _EVENT_PAUSE = 28, 0.25
_FOREIGN = ""
"""The function of pods that do not say what they serve: they only expire."""


class Keeper:
    """Must be run (`run`) while it is used; `stop` leaves the pods as they are."""

    def __init__(
        self,
        *,
        launcher: Launcher,
        services: Services,
        evidence: Evidence,
        addresses: Addresses,
        tokens: PodTokens,
        functions: FunctionLimits,
        metrics: PodMetrics,
        channels: Channels,
        start_timeout: float,
        scan_interval: float,
        spares: Spares | None = None,
        next_calls: NextCalls | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`spares` decides about spare pods, if any are to be kept; `next_calls` is who may be told ahead which pods
        calls get."""
        self.census = Census(
            addresses=addresses,
            channels=channels,
            came=self._came,
            changed=self._changed,
            converted=self._converted,
            gone=self._gone,
        )
        """To be kept up to date by a watch of the pods."""
        self._launcher = launcher
        self._services = services
        self._evidence = evidence
        self._tokens = tokens
        self._functions = functions
        self._spares = spares
        self._metrics = metrics
        self._start_timeout = start_timeout
        self._scan_interval = scan_interval
        self._clock = clock
        self._promises = Promises[Attendant](next_calls, clock=clock) if next_calls is not None else None
        if next_calls is not None:
            next_calls.listen(self._served)
        self._pool: Pool[Ticket] = Pool(
            self._pod_name,
            looks_ahead=next_calls is not None,
            # A Service of that name would lead to another runner's pod as well.
            is_reserved=self.census.is_shared,
        )
        self._wanted: dict[str, Wanted | WantedSpare] = {}
        self._ttl = TtlWriter(launcher.extend, written=metrics.ttl_written)
        self._tasks = Tasks()
        self.starting = Starting(
            self._pool,
            self._perform,
            census=self.census,
            launcher=launcher,
            functions=functions,
            metrics=metrics,
            tasks=self._tasks,
            timeout=start_timeout,
            clock=clock,
        )
        """The pods on their way."""
        self._patience = Patience(
            evidence,
            seconds=start_timeout,
            is_on_its_way=self._is_on_its_way,
            is_started_here=lambda attendant: attendant.facts.name in self.starting,
        )
        self._service_care = ServiceCare(
            launcher, services, self._tasks, patience=start_timeout, deleted=metrics.deleted
        )
        self.size = PoolSize()
        """How much there was a moment ago, for metrics: they are read by another thread."""

    # --- calls ----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def lease(self, wanted: Wanted, request: EvaluationRequest) -> AsyncGenerator[Attendant]:
        """A pod for one call; an EvaluationError when there is none before the call's deadline."""
        function = wanted.function
        self._wanted[function] = wanted
        limits = self._functions.of(function).limits
        promised = self._promised_pod(request)
        if promised is not None and not self._pool.knows(function, promised.facts.name, promised.facts.uid):
            # It is gone, with the calls that it has: what became of this one is all that there is to know.
            self._metrics.leased(promised=True)
            yield promised
            return
        ticket = Ticket()
        try:
            acquired = self._pool.acquire(
                ticket,
                function,
                wanted.version,
                limits,
                now=self._clock(),
                promised=promised.facts.name if promised is not None else "",
            )
            self._perform(acquired)
            if self._promises is not None and promised is None and ticket.pod is not None:
                name = ticket.pod.facts.name
                self._promises.asked(wanted, name, self._pool.load(function, name))
            if not ticket.is_answered:
                await self._wait(ticket, function, request)
            if ticket.pod is None:
                raise (
                    ticket.why(request.image) if ticket.why else QueueFullError(request.image, waiting=limits.max_calls)
                )
            self._metrics.leased(promised=promised is not None)
            yield ticket.pod
        finally:
            self._perform(self._pool.leave(ticket, now=self._clock()))

    def _promised_pod(self, request: EvaluationRequest) -> Attendant | None:
        """The one that the call is with already."""
        if self._promises is None or request.held is None:
            return None
        return self._promises.used(request.held)

    def _served(self, connection: int) -> str:
        """A promised call was over before it was heard of; the name of its pod."""
        pod = self._promises.pod_of(connection) if self._promises is not None else None
        if pod is None:
            return ""
        self._metrics.leased(promised=True)
        facts = pod.facts
        self._perform(self._pool.used(facts.name, facts.uid, facts.asked_for, now=self._clock()))
        return facts.name

    async def _wait(self, ticket: Ticket, function: str, request: EvaluationRequest) -> None:
        started = asyncio.get_running_loop().time()
        try:
            async with asyncio.timeout_at(request.deadline):
                await ticket.wait()
        except TimeoutError as error:
            after = asyncio.get_running_loop().time() - started
            raise DeadlineExceededError(request.image, after=after, waiting_for=self._progress(function)) from error

    def _progress(self, function: str) -> str:
        """What a call waits for, in a line."""
        for name, (state, _) in self._pool.pods(function).items():
            if state is PodState.STARTING:
                attendant = self.census.find(name)
                if attendant is not None and _function_of(attendant) == function:
                    reason, message = attendant.waits_for
                    return f'pod "{name}": {reason}' + (f": {message}" if message else "")
                return self.starting.progress(name)
        return "a pod with room for it"

    def lost(self, pod: Attendant, error: PodLostError) -> None:
        """A call lost its pod: it is asked whether it is still there before it gets another."""
        self._metrics.lost("in the call" if error.reached else "before the call")
        if self.census.has(pod):
            pod.doubt(error.why)

    async def cause(self, pod: Attendant, error: PodLostError) -> PodLostError:
        """The same error with what Kubernetes says happened to the pod, which may come a moment later."""
        for _ in range(_CAUSE_LOOKS):
            is_explained = pod.failure is not None and pod.failure.reason != NOT_STARTED
            if is_explained or pod.is_leaving or not self.census.has(pod):
                break
            await asyncio.sleep(_CAUSE_TIMEOUT / _CAUSE_LOOKS)
        failed = pod.failure
        if failed is not None:
            # Such a pod is deleted at once: that is the consequence, and not the cause.
            why = f"{failed.reason}: {failed.message}" + (f"; {failed.advice}" if failed.advice else "")
            return PodLostError(error.image, pod=pod.facts.name, why=why, reached=error.reached)
        if pod.is_leaving:
            return PodLostError(error.image, pod=pod.facts.name, why="the pod was deleted", reached=error.reached)
        return error

    def serving(self, function: str, template: PodTemplate) -> str:
        """The digest that a ready pod of the function has, for when the registry cannot say it; empty: none."""
        version = self._pool.serving(function, template.version)
        return version.digest if version else ""

    async def warm_up(self, wanted: Wanted, *, image: str) -> None:
        """See that the function has a pod, and wait until it serves; the error says why it does not.

        Whether it could or not, from then on the function has its minimum of ready pods.
        """
        function = wanted.function
        self._wanted[function] = wanted
        limits = self._functions.of(function).limits
        self._perform(self._pool.warm_up(function, wanted.version, limits, now=self._clock()))
        try:
            await self._first_pod(wanted, image)
        finally:
            latest = self._wanted.setdefault(function, wanted)
            limits = self._functions.of(function).limits
            self._perform(self._pool.keep_ready(function, latest.version, limits, now=self._clock()))

    async def _first_pod(self, wanted: Wanted, image: str) -> None:
        if self._pool.serving(wanted.function, wanted.template.version) == wanted.version:
            return
        # A lease that nobody uses waits for the pod as a call would, and gets its reason.
        deadline = asyncio.get_running_loop().time() + self._start_timeout + _HEARTBEAT
        request = EvaluationRequest(image=image, reference=wanted.reference, resource_list=b"", deadline=deadline)
        async with self.lease(wanted, request):
            return

    def limits_changed(self) -> None:
        """Functions have other limits than before."""
        for function in self._pool.functions():
            limits = self._functions.of(function).limits
            self._perform(self._pool.limit(function, limits, now=self._clock()))

    def template_changed(self, template: PodTemplate) -> None:
        """Calls that wait for a pod of the old one get one of the new one, and spares are of the new one."""
        for function, wanted in list(self._wanted.items()):
            if isinstance(wanted, Wanted):
                renewed = self._wanted[function] = replace(wanted, template=template)
                self._perform(self._pool.want(function, renewed.version, now=self._clock()))
        self._keep_spares(template)

    def _keep_spares(self, template: PodTemplate) -> None:
        spares = self.starting.spares = self._spares.of(template) if self._spares is not None else None
        if spares is None:
            self._pool.release(SPARE)
            return
        self._wanted[SPARE] = spares
        limits = self._functions.of(SPARE).limits
        self._perform(self._pool.keep_ready(SPARE, spares.version, limits, now=self._clock()))

    def keys_changed(self, template: PodTemplate | None) -> None:
        """Pods are good or not by the keys of their tokens, and those are others now."""
        for attendant in self.census:
            self._changed(attendant)
        if template is not None:
            self.template_changed(template)

    # --- what the census says -------------------------------------------------------------------------------------

    def _came(self, attendant: Attendant) -> None:
        if attendant.facts.asked_for:
            self.starting.came(attendant)
            attendant.attend()
            self._tasks.start(self._give_up_later(attendant), name=f"patience with {attendant.facts.name}")

    def _changed(self, attendant: Attendant) -> None:
        """Tell the pool how far the pod is."""
        if attendant.verdict is not None:
            return
        if isinstance(attendant.status, Failed):
            self._on_failed(attendant, attendant.status)
            return
        facts, function = attendant.facts, _function_of(attendant)
        before, _ = self._pool.pods(function).get(facts.name, (None, 0))
        seen = Observed(
            name=facts.name,
            uid=facts.uid,
            function=function,
            version=self._version_of(attendant),
            state=attendant.state,
            reclaim_after=from_unix(facts.reclaim_after) if facts.reclaim_after is not None else None,
            why=_held_up(attendant),
        )
        self._perform(self._pool.observed(seen, self._functions.of(function).limits, now=self._clock()))
        if attendant.state is PodState.READY and before is not PodState.READY:
            self._note_ready(attendant)
        _, calls = self._pool.pods(function).get(facts.name, (None, 0))
        if attendant.is_leaving and not calls:
            # Before its Service goes: a name that is asked for then is remembered by DNS as one that does not exist.
            # A promised call may be there that is not known yet: it has the time that the pod has.
            self._tasks.start(attendant.retire(), name=f"retirement of {facts.name}")

    def _converted(self, attendant: Attendant) -> None:
        """It was a spare, and is a function's now: by this runner or by another. No other pod should change so."""
        facts, why = attendant.facts, "it serves another function now"
        self._ttl.forget(facts.uid)
        if (start := self.starting.find(facts.name)) is not None and start.function == facts.asked_for:
            self.starting.end(facts.name)
        if facts.asked_for == SPARE:
            self._pool.left(facts.name, facts.uid, SPARE)
        else:
            _log.warning("pod serves another function than before", pod=facts.name, image=facts.asked_for)
            explain = partial(start_error, pod=facts.name, failed=failure("Changed", why, may_pass=True))
            function = _function_of(attendant)
            self._perform(self._pool.gone(facts.name, facts.uid, function, explain, now=self._clock()))
        self._dismiss(attendant, why)

    def _gone(self, attendant: Attendant, why: str) -> None:
        facts = attendant.facts
        _log.info("pod gone", pod=facts.name, image=facts.asked_for, why=why)
        self._ttl.forget(facts.uid)
        start = self.starting.find(facts.name)
        if start is not None and not start.is_launched:
            # The launch may be taking back what it made: then it says why. Or this was a predecessor of the same name.
            start.gone.add(facts.uid)
            self._dismiss(attendant, why)
            return
        self.starting.end(facts.name)
        explain = partial(start_error, pod=facts.name, failed=failure("Deleted", why, may_pass=True))
        # A spare may have become a function's, and the watch not have shown it so.
        functions = {_function_of(attendant), start.function if start is not None else _function_of(attendant)}
        for function in functions:
            self._perform(self._pool.gone(facts.name, facts.uid, function, explain, now=self._clock()))
        self._dismiss(attendant, why)

    def _note_ready(self, attendant: Attendant) -> None:
        facts, start = attendant.facts, self.starting.end(attendant.facts.name)
        if start is None:
            _log.info("pod adopted", pod=facts.name, image=facts.asked_for)
            return
        attendant.milestones.reached.update(start.milestones.reached)
        phases = attendant.milestones.phases()
        self._metrics.pod_ready(phases)
        seconds = {f"{name}_seconds": round(duration, 3) for name, duration in phases.items()}
        _log.info("pod ready", pod=facts.name, image=facts.asked_for, **seconds)

    def _dismiss(self, attendant: Attendant, why: str) -> None:
        self._tasks.start(attendant.dismiss(why), name=f"dismissal of {attendant.facts.name}")

    # --- pods that do not come up ---------------------------------------------------------------------------------

    def _on_failed(self, attendant: Attendant, failed: Failed) -> None:
        failed_in_service = attendant.has_served and failed.reason != NOT_STARTED
        if failed_in_service or not attendant.facts.asked_for:
            self._fail(attendant, failed)
            return
        # Its events and its log may say more than the object.
        attendant.verdict = failed
        self._tasks.start(self._find_out(attendant, failed), name=f"evidence of {attendant.facts.name}")

    async def _find_out(self, attendant: Attendant, failed: Failed) -> None:
        for _ in range(_EVENT_LOOKS):
            status = await self._evidence.status_of(attendant.pod)
            if isinstance(status, Failed):
                failed = status
            if failed.reason != NOT_STARTED:
                break
            # The kubelet's event, which says why, may come a moment after the pod's status.
            await asyncio.sleep(_EVENT_PAUSE)
        self._fail(attendant, failed)

    async def _give_up_later(self, attendant: Attendant) -> None:
        """A pod that does not serve in time goes; one that serves others, and not us, stays."""
        failed = await self._patience.wait(attendant)
        if not self._is_on_its_way(attendant):
            return
        if failed is not None:
            self._fail(attendant, failed)
        else:
            attendant.gave_up = True
            _log.warning("pod of another runner not reached", pod=attendant.facts.name, why=attendant.trouble)
            self._changed(attendant)

    def _is_on_its_way(self, attendant: Attendant) -> bool:
        is_given_up = attendant.verdict is not None or attendant.is_leaving
        return self.census.has(attendant) and not attendant.has_served and not is_given_up

    def _fail(self, attendant: Attendant, failed: Failed) -> None:
        if not self.census.has(attendant):
            return
        facts, function = attendant.facts, _function_of(attendant)
        attendant.verdict = failed
        self.starting.end(facts.name)
        _log.warning("pod failed", pod=facts.name, image=facts.asked_for, reason=failed.reason, message=failed.message)
        self._metrics.start_failed(failed.reason)
        if function == SPARE:
            self._spare_failed(attendant, failed)
        explain = partial(start_error, pod=facts.name, failed=failed)
        effects = self._pool.failed(facts.name, facts.uid, function, explain, now=self._clock())
        if not any(isinstance(effect, DeletePod) for effect in effects):
            # One that had failed before this runner saw it for the first time.
            effects.append(DeletePod(facts.name, facts.uid, "failed"))
        self._perform(effects)
        self._dismiss(attendant, f"{failed.reason}: {failed.message}")

    def _spare_failed(self, attendant: Attendant, failed: Failed) -> None:
        spares = self.starting.spares
        if self._spares is not None and spares is not None and self._version_of(attendant) == spares.version:
            self._spares.failed(attendant, failed, spares.template)
            self._keep_spares(spares.template)

    # --- what the pool decides ------------------------------------------------------------------------------------

    def _perform(self, effects: Effects[Ticket]) -> None:
        for effect in effects:
            match effect:
                case Grant(ticket, name):
                    pod = self.census.find(name)
                    assert pod is not None  # noqa: S101 - only pods of the census are ready
                    ticket.grant(pod)
                case Refuse(ticket, why):
                    ticket.refuse(cast(Explain | None, why))
                case StartPod():
                    self.starting.begin(effect, self._wanted[effect.function])
                case DeletePod():
                    self._tasks.start(self._delete(effect), name=f"deletion of {effect.name}")
                case ExtendTtl(name, uid, reclaim_after):
                    if (attendant := self.census.find(name, uid)) is not None:
                        self._ttl.write(attendant.facts, to_unix(reclaim_after))
                case Promise():
                    self._promise(effect)
                case Withdraw(function, name):
                    if self._promises is not None:
                        self._promises.withdraw(function, name)
                case Lost():
                    # Its call hears of it from the pod's connection, which is closed.
                    pass

    def _promise(self, said: Promise) -> None:
        pod, wanted = self.census.find(said.name), self._wanted.get(said.function)
        if self._promises is not None and pod is not None:
            # Of a function that nobody has called or warmed up, nobody has looked what its image is; and what was
            # wanted last need not be what a pod of another runner is.
            known = wanted if isinstance(wanted, Wanted) and wanted.version == self._version_of(pod) else None
            self._promises.make(said, pod, lambda: pod.channel.way, known)

    def _launch_again(self, attendant: Attendant) -> Launch | None:
        facts, wanted = attendant.facts, self._wanted.get(attendant.facts.asked_for)
        if wanted is None or wanted.image is None:
            return None
        if not facts.serves(wanted.image, template_version=wanted.template.version):
            return None
        return self.starting.launch_of(facts.name, wanted.image, wanted.template, facts.reclaim_after or 0.0)

    async def _delete(self, effect: DeletePod) -> None:
        attendant = self.census.find(effect.name, effect.uid)
        if attendant is None:
            return
        # A failed pod is deleted even if the kubelet has changed it. A failed spare is deleted only if unchanged: it
        # may have been converted for a function.
        ignores_changes = attendant.verdict is not None and attendant.facts.asked_for != SPARE
        facts = replace(attendant.facts, resource_version="") if ignores_changes else attendant.facts
        try:
            is_deleted = await self._launcher.delete(facts, service_uid=self._services.uid(facts.name))
        except KubernetesError as error:
            _log.warning("pod not deleted, tried again later", pod=facts.name, error=str(error))
            is_deleted = False
        if is_deleted:
            _log.info("pod deleted", pod=facts.name, image=facts.asked_for, why=effect.why)
            self._metrics.deleted(effect.why)
        else:
            function, state = _function_of(attendant), attendant.state
            self._perform(self._pool.kept(facts.name, facts.uid, function, state=state, now=self._clock()))

    # --- what goes on all the time --------------------------------------------------------------------------------

    async def run(self, watched: Watched) -> None:
        """Extend what is in use, collect what is not; never returns."""
        self.starting.watched = watched
        loop = asyncio.get_running_loop()
        next_scan = loop.time() + self._scan_interval
        while True:
            await asyncio.sleep(min(_HEARTBEAT, self._scan_interval))
            self._perform(self._pool.renew(now=self._clock()))
            for attendant in self.census:
                self._service_care.look_at(attendant, partial(self._launch_again, attendant))
            self.size = self._count()
            if loop.time() >= next_scan:
                next_scan = loop.time() + self._scan_interval
                self._scan(watched)

    def _scan(self, watched: Watched) -> None:
        now = asyncio.get_running_loop().time()
        since = watched.connected_since
        if since is None or now - since < min(_SETTLING, self._scan_interval):
            return
        for attendant in self.census:
            if attendant.verdict is not None and not attendant.is_leaving:
                self._perform([DeletePod(attendant.facts.name, attendant.facts.uid, "failed")])
        self._perform(self._pool.collect(now=self._clock()))
        self._service_care.delete_orphans(self.census.names() | self.starting.names())
        functions = set(self._pool.functions())
        for function in [function for function in self._wanted if function not in functions]:
            del self._wanted[function]

    def _count(self) -> PoolSize:
        pods: dict[str, dict[str, int]] = {}
        for function in self._pool.functions():
            states = [state.value for state, _ in self._pool.pods(function).values()]
            pods[function] = {state: states.count(state) for state in states}
        return PoolSize(pods, {function: self._pool.waiting(function) for function in pods})

    async def stop(self) -> None:
        """End everything here; the pods stay, and the next process finds them."""
        await self._tasks.stop()
        await self._ttl.stop()
        for attendant in self.census:
            await attendant.dismiss("the runner stops")

    def _version_of(self, attendant: Attendant) -> Version:
        return Version(attendant.facts.digest, self._tokens.version_of(attendant.facts))

    def _pod_name(self, function: str, version: Version, number: int) -> str:
        return self._wanted[function].pod_name(version, number)


def _function_of(attendant: Attendant) -> str:
    return attendant.facts.asked_for or _FOREIGN


def _held_up(attendant: Attendant) -> Explain | None:
    """Why nobody is to wait for it."""
    if attendant.state is not PodState.HELD_UP:
        return None
    reason, message = attendant.waits_for
    return partial(start_error, pod=attendant.facts.name, failed=failure(reason, message, may_pass=True))
