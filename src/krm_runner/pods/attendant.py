"""One pod of ours in the cluster, attended from when it is first seen until it is gone.

Kubernetes says how far the pod is, by the watch; whether it serves, its wrapper says itself: it is asked as soon as the
pod has an address, again and again until it answers, and again when a call lost its connection. So a pod serves the
moment it can, not when a probe of the kubelet has noticed, and nobody polls the API server. Pods that other runners or
an earlier process started are adopted in the same way: they are used once their wrapper answers.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

import structlog

from krm_runner.core.json_object import JsonObject, as_list, as_object, as_text
from krm_runner.core.pod_facts import PodFacts
from krm_runner.core.pod_failure import Failed
from krm_runner.core.pod_status import PodStatus, Ready, Starting, Terminating, pod_status
from krm_runner.core.pool_terms import PodState
from krm_runner.core.spare import SPARE
from krm_runner.pods.addresses import Addresses
from krm_runner.pods.channels import Channels
from krm_runner.pods.cold_start import HEALTHY, INITIALIZED, RUNNING, SCHEDULED, Milestones, waits_for
from krm_runner.rpc.wrapper_channel import NOT_SERVING, UNKNOWN_SERVICE, Target, WrapperChannel
from krm_runner.telemetry import internal_errors

_log = structlog.get_logger("krm_runner.pods")
_QUESTION_TIMEOUT = 1.0
_SOON = 0.02
"""Between questions to a wrapper whose container runs."""
_NOT_YET = 0.05
"""Between questions to one whose container is not known to run."""
_LATER = 2.0
_PATIENCE = 10.0
"""For how long a running wrapper is asked at the quick pace."""
_CONTAINER_STARTS = 1.0
"""How long a container takes at most that needs nothing but to be started; others have an image to pull."""
_PATIENCE_WITH_A_WAY = 2.0
"""For how long one way to the pod is tried before the next."""
_UNSCHEDULABLE = "Unschedulable"
CANNOT_WAIT = "its wrapper server cannot wait for a function"
"""The trouble of a spare whose wrapper server is of a different make or version."""


class Attendant:
    """Knows one pod; `changed` hears whenever its state may be another."""

    def __init__(
        self,
        facts: PodFacts,
        pod: JsonObject,
        *,
        addresses: Addresses,
        channels: Channels,
        changed: Callable[[Attendant], None],
    ) -> None:
        self.facts = facts
        self.pod = pod
        self.status: PodStatus = pod_status(pod)
        self.trouble = ""
        """Why the wrapper did not answer when it was asked last."""
        self.milestones = Milestones()
        self.has_served = False
        self.gave_up = False
        """Whether it was not ready in time; it may still come."""
        self.alone_since: float | None = None
        """Since when it has no Service, on the event loop's clock."""
        self.verdict: Failed | None = None
        """Why it is given up, once that is known: it is to be deleted."""
        self._addresses = addresses
        self._channels = channels
        self._changed = changed
        self._channel: WrapperChannel | None = None
        self._target: Target | None = None
        self._answers = False
        self._doubt = asyncio.Event()
        self._news = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._note_progress()

    @property
    def channel(self) -> WrapperChannel:
        """To the pod's wrapper; only of a pod that serves."""
        assert self._channel is not None  # noqa: S101 - a pod is ready only when its wrapper answered
        return self._channel

    @property
    def state(self) -> PodState:
        """As the pool wants to know it; a pod that failed is not asked for its state."""
        if self.is_leaving:
            return PodState.LEAVING
        if self._answers:
            return PodState.READY
        if self.has_served or self.gave_up:
            return PodState.UNREACHABLE
        if isinstance(self.status, Starting) and self.status.reason == _UNSCHEDULABLE:
            return PodState.HELD_UP
        return PodState.STARTING

    @property
    def is_leaving(self) -> bool:
        """Whether somebody deleted it."""
        return isinstance(self.status, Terminating)

    @property
    def failure(self) -> Failed | None:
        """Why it is no good any more, if that is known."""
        return self.verdict or (self.status if isinstance(self.status, Failed) else None)

    @property
    def waits_for(self) -> tuple[str, str]:
        """Reason and message of why it does not serve yet."""
        return waits_for(self.status, is_running=RUNNING in self.milestones.reached, trouble=self.trouble)

    @property
    def is_ready_for_kubernetes(self) -> bool:
        """Whether the kubelet's own probe succeeds."""
        return isinstance(self.status, Ready)

    @property
    def is_waiting(self) -> bool:
        """Whether it has a node, and its function's container does not run yet."""
        return self.state is PodState.STARTING and isinstance(self.status, Starting) and not self.status.address

    def update(self, facts: PodFacts, pod: JsonObject) -> None:
        """The watch has news of it."""
        self.facts, self.pod, self.status = facts, pod, pod_status(pod)
        self._note_progress()
        self._news.set()

    def attend(self) -> None:
        """Ask its wrapper from now on, until it is dismissed."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._attend(), name=f"attend {self.facts.name}")

    def doubt(self, why: str) -> None:
        """A call lost its connection: the pod gets no calls until its wrapper answers again."""
        if self._answers:
            self._answers = False
            self.trouble = why
            self._doubt.set()
            self._changed(self)

    async def retire(self) -> None:
        """It is not asked any more; calls that are on it, also those that nobody has heard of yet, end there."""
        self._rest()
        if self._channel is not None:
            await self._channel.retire()

    async def dismiss(self, why: str) -> None:
        """It is not attended any more; calls on it end with that reason."""
        self._rest()
        if self._channel is not None:
            await self._channel.close(why)

    def _rest(self) -> None:
        task, self._task = self._task, None
        self._answers = False
        if task is not None:
            task.cancel()

    async def _attend(self) -> None:
        try:
            while True:
                await self._wait_for_an_answer()
                self._doubt.clear()
                self._answers = self.has_served = True
                self.gave_up, self.trouble = False, ""
                self.milestones.note(HEALTHY)
                self._changed(self)
                await self._doubt.wait()
                _log.warning("pod does not answer", pod=self.facts.name, why=self.trouble)
        except Exception as error:
            internal_errors.report("pod", error, pod=self.facts.name)

    async def _wait_for_an_answer(self) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        while True:
            self._news.clear()
            elapsed = loop.time() - started
            targets = self._ways
            is_lost = self._target is not None and self._target not in targets
            if targets and (is_lost or not self.has_served or elapsed > _PATIENCE):
                # Every way has its turn, until one led to an answer; that one stays as long as it does.
                await self._use(targets[int(elapsed / _PATIENCE_WITH_A_WAY) % len(targets)])
            if self._channel is not None:
                self.trouble = await self._ask(self._channel, is_new=elapsed < _CONTAINER_STARTS)
                if not self.trouble:
                    return
            elif self._pod_ips:
                self.trouble = "its Service is not there"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pace(loop.time())):
                    await self._news.wait()

    async def _ask(self, channel: WrapperChannel, *, is_new: bool) -> str:
        """Return why the pod cannot be used; empty if it can."""
        facts = self.facts
        is_spare = facts.asked_for == SPARE
        problem = await channel.ask_health(
            timeout=_QUESTION_TIMEOUT,
            # Until the converted container has started, the spare's container may still answer.
            of_function=is_spare or facts.is_converted,
            hurried=is_new and facts.is_converted,
        )
        if not is_spare:
            return problem
        if problem == NOT_SERVING:
            return ""
        # If it serves a function, another runner may have just converted the pod.
        return CANNOT_WAIT if problem in ("", UNKNOWN_SERVICE) else problem

    async def _use(self, target: Target) -> None:
        if self._channel is not None and self._target == target:
            return
        channel, self._target = self._channel, target
        self._channel = self._channels.open(target, pod=self.facts.name, facts=lambda: self.facts)
        if channel is not None:
            await channel.close("another way to it is tried")

    def _pace(self, now: float) -> float:
        """How long to wait for news of the pod before its wrapper is asked again."""
        if not self._pod_ips:
            return _LATER
        running_since = self.milestones.reached.get(RUNNING)
        if running_since is None:
            return _NOT_YET
        return _SOON if now - running_since < _PATIENCE else _LATER

    @property
    def _ways(self) -> list[Target]:
        """To its wrapper, best first."""
        return self._addresses.of(self.facts.name, pod_ip=next(iter(self._pod_ips), ""))

    @property
    def _pod_ips(self) -> list[str]:
        """As Kubernetes says; the first is the one to use."""
        status = as_object(self.pod.get("status"))
        found = [status.get("podIP"), *(as_object(each).get("ip") for each in as_list(status.get("podIPs")))]
        return [as_text(ip) for ip in found if as_text(ip)]

    def _note_progress(self) -> None:
        conditions = map(as_object, as_list(as_object(self.pod.get("status")).get("conditions")))
        reached = {condition.get("type") for condition in conditions if condition.get("status") == "True"}
        if "PodScheduled" in reached:
            self.milestones.note(SCHEDULED)
        if "Initialized" in reached:
            self.milestones.note(INITIALIZED)
        if isinstance(self.status, Ready) or (isinstance(self.status, Starting) and self.status.address):
            self.milestones.note(RUNNING)
