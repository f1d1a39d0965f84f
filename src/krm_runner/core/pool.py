"""Which pod serves which call: the whole policy of the pod runtime, without doing any of it.

A pure state machine. Every method takes what happened and the time, changes what is known, and returns what is to be
done about it (effects); whoever calls it does that. Being synchronous it is atomic under an event loop: there are no
locks and no races. It makes no calls to Kubernetes, knows no manifests, and reads no clock.

The rules:
- A call goes to the least loaded ready pod of its function, round-robin among equals.
- When that one has as many calls as `waitlist`, another pod is started, up to `max_pods`; the calls that come meanwhile
  wait for whichever is ready first, or has room first. When no more can be started, nobody waits for one.
- A pod serves calls while it is what the function is wanted to be (digest and template). Others get no new calls, end
  those that they have, and go when their time is over.
- A pod that cannot start fails the calls that wait for it at once, with its reason, unless another one is there or on
  its way. The function is started again after a while that grows, and calls in that while get the same reason.
- A call that gives up holds nothing; the pod that was being started for it goes on, and serves the next one.
- A pod without calls is deleted when its time (`reclaim_after`) is over, one with calls never; using a pod extends its
  time, and that is written at most once per quarter of the TTL.
- Pods are known by name and uid: what is said of a pod that was replaced by another of the same name is not heard.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, TypeVar

Ticket = TypeVar("Ticket", bound=Hashable)

_FIRST_RESTART_DELAY = 1.0
_LAST_RESTART_DELAY = 300.0


@dataclass(frozen=True, slots=True)
class Version:
    """What the pods of a function are wanted to be."""

    digest: str
    template: str


@dataclass(frozen=True, slots=True)
class Limits:
    """How many pods and calls a function may have, and how long its pods live unused."""

    waitlist: int
    max_pods: int
    max_calls: int
    ttl: float


class PodState(Enum):
    """How far a pod is."""

    STARTING = "starting"
    READY = "ready"
    LEAVING = "leaving"
    """Being deleted, by us or by anybody."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A pod as the cluster has it."""

    name: str
    uid: str
    function: str
    version: Version
    state: PodState
    reclaim_after: float


@dataclass(frozen=True, slots=True)
class StartPod:
    """Create it, or adopt the one that has the name already."""

    name: str
    function: str
    version: Version
    reclaim_after: float


@dataclass(frozen=True, slots=True)
class DeletePod:
    """If it is still that one; `why` is for the log."""

    name: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class ExtendTtl:
    """Write the new time, in the background."""

    name: str
    uid: str
    reclaim_after: float


@dataclass(frozen=True, slots=True)
class Grant(Generic[Ticket]):
    """The call may go to this pod."""

    ticket: Ticket
    name: str


@dataclass(frozen=True, slots=True)
class Refuse(Generic[Ticket]):
    """The call cannot be served; why is None when too many wait already."""

    ticket: Ticket
    why: object | None


@dataclass(frozen=True, slots=True)
class Lost(Generic[Ticket]):
    """The pod of a call under way is gone; the call holds nothing any more."""

    ticket: Ticket
    name: str
    why: object


Effect = StartPod | DeletePod | ExtendTtl | Grant[Ticket] | Refuse[Ticket] | Lost[Ticket]
Effects = list[Effect[Ticket]]


@dataclass(slots=True)
class _Pod(Generic[Ticket]):
    name: str
    version: Version
    state: PodState
    reclaim_after: float
    uid: str = ""
    """Empty until the cluster has it."""
    calls: set[Ticket] = field(default_factory=set[Ticket])
    last_granted: int = 0

    def is_same(self, uid: str) -> bool:
        return not self.uid or not uid or self.uid == uid


@dataclass(slots=True)
class _Function(Generic[Ticket]):
    name: str
    version: Version
    limits: Limits
    pods: dict[str, _Pod[Ticket]] = field(default_factory=dict[str, _Pod[Ticket]])
    waiting: OrderedDict[Ticket, None] = field(default_factory=OrderedDict[Ticket, None])
    failures: int = 0
    failure: object = None
    restart_after: float = 0.0

    def current(self, state: PodState) -> list[_Pod[Ticket]]:
        """The pods of the wanted version in a state."""
        return [pod for pod in self.pods.values() if pod.version == self.version and pod.state is state]

    @property
    def calls(self) -> int:
        return len(self.waiting) + sum(len(pod.calls) for pod in self.pods.values())


class Pool(Generic[Ticket]):
    """See the module's text for the rules."""

    def __init__(self, pod_name: Callable[[str, Version, int], str]) -> None:
        """`pod_name` names the pod of a function and version with a number, from 1 on."""
        self._pod_name = pod_name
        self._functions: dict[str, _Function[Ticket]] = {}
        self._calls: dict[Ticket, tuple[_Function[Ticket], _Pod[Ticket] | None]] = {}
        """Where each call is: with a pod, or waiting for one."""
        self._names: set[str] = set()
        """Of all pods of all functions: two functions may be given the same names."""
        self._grants = 0

    # --- calls ----------------------------------------------------------------------------------------------------

    def acquire(
        self, ticket: Ticket, function: str, version: Version, limits: Limits, *, now: float
    ) -> Effects[Ticket]:
        """A call comes: it is granted a pod now or later, or refused."""
        wanted = self._wanted(function, version, limits)
        if wanted.calls >= limits.max_calls:
            return [Refuse(ticket, None)]
        wanted.waiting[ticket] = None
        self._calls[ticket] = wanted, None
        return list(self._dispatch(wanted, now))

    def leave(self, ticket: Ticket, *, now: float) -> Effects[Ticket]:
        """A call is over, or gives up; it may be unknown already."""
        function, pod = self._calls.pop(ticket, (None, None))
        if function is None:
            return []
        if pod is None:
            del function.waiting[ticket]
            return []
        pod.calls.discard(ticket)
        return [*self._extend(function, pod, now), *self._dispatch(function, now)]

    def warm_up(self, function: str, version: Version, limits: Limits, *, now: float) -> Effects[Ticket]:
        """See that the function has a pod, though nobody calls it."""
        wanted = self._wanted(function, version, limits)
        if wanted.current(PodState.READY) or wanted.current(PodState.STARTING) or now < wanted.restart_after:
            return []
        return [self._start(wanted, now)]

    def want(self, function: str, version: Version, *, now: float) -> Effects[Ticket]:
        """Another digest or template from now on; calls that wait get pods of it."""
        known = self._functions.get(function)
        if known is None or known.version == version:
            return []
        self._wanted(function, version, known.limits)
        return list(self._dispatch(known, now))

    # --- pods -----------------------------------------------------------------------------------------------------

    def observed(self, seen: Observed, limits: Limits, *, now: float) -> Effects[Ticket]:
        """The cluster has a pod of ours in this state: one that we started, or that somebody else did."""
        function = self._functions.get(seen.function)
        if function is None:
            function = self._wanted(seen.function, seen.version, limits)
        effects: Effects[Ticket] = []
        pod = function.pods.get(seen.name)
        if pod is not None and not pod.is_same(seen.uid):
            effects += self._remove(function, pod, why="it was replaced by another pod of the same name")
            pod = None
        if pod is None:
            pod = _Pod[Ticket](seen.name, seen.version, seen.state, seen.reclaim_after)
            function.pods[seen.name] = pod
            self._names.add(seen.name)
        pod.uid = seen.uid
        pod.version = seen.version
        # Whoever extended it last, it lives as long as the later of the two says.
        pod.reclaim_after = max(pod.reclaim_after, seen.reclaim_after)
        if pod.state is not PodState.LEAVING:
            has_started = pod.state is PodState.STARTING and seen.state is PodState.READY
            pod.state = seen.state
            if has_started and pod.version == function.version:
                function.failures = 0
        return [*effects, *self._dispatch(function, now)]

    def failed(self, name: str, uid: str, function: str, why: object, *, now: float) -> Effects[Ticket]:
        """A pod cannot start, or could not be created: it goes, and its function is started again later."""
        known = self._functions.get(function)
        pod = known.pods.get(name) if known else None
        if known is None or pod is None or not pod.is_same(uid) or pod.state is PodState.LEAVING:
            return []
        effects = self._remove(known, pod, why=why)
        if pod.uid:
            effects.append(DeletePod(name, pod.uid, "it cannot start"))
        if pod.version == known.version:
            delay = min(_FIRST_RESTART_DELAY * 2**known.failures, _LAST_RESTART_DELAY)
            known.failures, known.failure, known.restart_after = min(known.failures + 1, 30), why, now + delay
        return [*effects, *self._dispatch(known, now)]

    def gone(self, name: str, uid: str, function: str, why: object, *, now: float) -> Effects[Ticket]:
        """A pod is no more, or does not answer any more; its calls are told."""
        known = self._functions.get(function)
        pod = known.pods.get(name) if known else None
        if known is None or pod is None or not pod.is_same(uid):
            return []
        return [*self._remove(known, pod, why=why), *self._dispatch(known, now)]

    def tick(self, *, now: float) -> Effects[Ticket]:
        """Time has passed: pods expire, pods in use are extended, functions that failed are started again."""
        effects: Effects[Ticket] = []
        for function in list(self._functions.values()):
            for pod in function.pods.values():
                if pod.state is PodState.LEAVING or not pod.uid:
                    continue
                if pod.calls:
                    effects += self._extend(function, pod, now)
                elif pod.reclaim_after <= now and not (pod.state is PodState.STARTING and function.waiting):
                    pod.state = PodState.LEAVING
                    effects.append(DeletePod(pod.name, pod.uid, "nobody used it for its time to live"))
            effects += self._dispatch(function, now)
            if not function.pods and not function.waiting and now >= function.restart_after:
                del self._functions[function.name]
        return effects

    def kept(self, name: str, uid: str, function: str, *, reclaim_after: float, now: float) -> Effects[Ticket]:
        """A deletion was refused, since somebody extended the pod's time meanwhile: it serves on."""
        known = self._functions.get(function)
        pod = known.pods.get(name) if known else None
        if known is None or pod is None or not pod.is_same(uid) or pod.state is not PodState.LEAVING:
            return []
        pod.state, pod.reclaim_after = PodState.READY, max(pod.reclaim_after, reclaim_after)
        return list(self._dispatch(known, now))

    # --- what is known, for metrics -------------------------------------------------------------------------------

    def pods(self, function: str) -> dict[str, tuple[PodState, int]]:
        """State and calls of every pod of a function."""
        known = self._functions.get(function)
        return {pod.name: (pod.state, len(pod.calls)) for pod in known.pods.values()} if known else {}

    def waiting(self, function: str) -> int:
        """How many calls wait for a pod."""
        known = self._functions.get(function)
        return len(known.waiting) if known else 0

    # --- the policy -----------------------------------------------------------------------------------------------

    def _wanted(self, name: str, version: Version, limits: Limits) -> _Function[Ticket]:
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = _Function[Ticket](name, version, limits)
        if function.version != version:
            # What failed was another version: this one has not been tried.
            function.version = version
            function.failures, function.failure, function.restart_after = 0, None, 0.0
        function.limits = limits
        return function

    def _dispatch(self, function: _Function[Ticket], now: float) -> Iterator[Effect[Ticket]]:
        """Give the calls that wait what there is, and start what is missing."""
        while function.waiting:
            ready = function.current(PodState.READY)
            starting = function.current(PodState.STARTING)
            best = min(ready, key=lambda pod: (len(pod.calls), pod.last_granted), default=None)
            if best is not None and len(best.calls) < function.limits.waitlist:
                yield self._grant(function, best)
            elif self._should_start(function, len(ready) + len(starting), len(starting), now):
                yield self._start(function, now)
            elif starting:
                return
            elif best is not None:
                yield self._grant(function, best)
            else:
                # It failed a moment ago, and nothing else is there.
                ticket, _ = function.waiting.popitem(last=False)
                del self._calls[ticket]
                yield Refuse(ticket, function.failure)

    def _should_start(self, function: _Function[Ticket], pods: int, starting: int, now: float) -> bool:
        if pods >= function.limits.max_pods or now < function.restart_after:
            return False
        return len(function.waiting) > starting * function.limits.waitlist

    def _grant(self, function: _Function[Ticket], pod: _Pod[Ticket]) -> Grant[Ticket]:
        ticket, _ = function.waiting.popitem(last=False)
        self._grants += 1
        pod.last_granted = self._grants
        pod.calls.add(ticket)
        self._calls[ticket] = function, pod
        return Grant(ticket, pod.name)

    def _start(self, function: _Function[Ticket], now: float) -> StartPod:
        number = 1
        while (name := self._pod_name(function.name, function.version, number)) in self._names:
            number += 1
        self._names.add(name)
        reclaim_after = now + function.limits.ttl
        function.pods[name] = _Pod[Ticket](name, function.version, PodState.STARTING, reclaim_after)
        return StartPod(name, function.name, function.version, reclaim_after)

    def _extend(self, function: _Function[Ticket], pod: _Pod[Ticket], now: float) -> Effects[Ticket]:
        """Its use counts from now on; written only if that makes a quarter of the TTL."""
        until = now + function.limits.ttl
        if pod.state is PodState.LEAVING or not pod.uid or until - pod.reclaim_after < function.limits.ttl / 4:
            return []
        pod.reclaim_after = until
        return [ExtendTtl(pod.name, pod.uid, until)]

    def _remove(self, function: _Function[Ticket], pod: _Pod[Ticket], *, why: object) -> Effects[Ticket]:
        del function.pods[pod.name]
        self._names.discard(pod.name)
        for ticket in pod.calls:
            del self._calls[ticket]
        return [Lost(ticket, pod.name, why) for ticket in pod.calls]
