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
  its way. The function is started again after a while that grows, and calls in that while get the same reason. A pod
  that is held up stays, but nobody waits for it, and no other is started beside it.
- A pod that somebody deletes while it starts is replaced, the first time at once.
- A call that gives up holds nothing; the pod that was being started for it goes on, and serves the next one.
- While nobody waits, it is known before a call comes where it may go: to the least loaded ready pod, as long as that
  has fewer calls than `waitlist`, or when no other pod is on its way or may be started. Who asks for it (`looks_ahead`)
  is told so (promises), and told when that does not hold any more; a call that went to a pod by such a promise is where
  it is, and only counted.
- A function that is kept ready has so many pods with room for a call as its `min_ready` says, or on their way, as far
  as `max_pods` allows: one that is lost, or busy to its limit, is made up for before a call needs it.
- A pod without calls is deleted when its time (`reclaim_after`) is over, one with calls never; using a pod extends its
  time, and that is written at most once per quarter of the TTL.
- Pods are known by name and uid: what is said of a pod that was replaced by another of the same name is not heard.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic

from krm_runner.core.pool_function import Function, Pod
from krm_runner.core.pool_terms import (
    DeletePod,
    Effect,
    Effects,
    ExtendTtl,
    Grant,
    Limits,
    Lost,
    Observed,
    PodState,
    Promise,
    Refuse,
    StartPod,
    Ticket,
    Version,
    Withdraw,
)

_TAKEN_SECONDS = 60.0
"""For how long a name that somebody else has is not tried again."""


class Pool(Generic[Ticket]):
    """See the module's text for the rules."""

    def __init__(
        self,
        pod_name: Callable[[str, Version, int], str],
        *,
        looks_ahead: bool = False,
        is_reserved: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`pod_name` names the pod of a function and version with a number, from 1 on; no reserved name is used."""
        self._pod_name = pod_name
        self._is_reserved = is_reserved
        self._looks_ahead = looks_ahead
        self._functions: dict[str, Function[Ticket]] = {}
        self._calls: dict[Ticket, tuple[Function[Ticket], Pod[Ticket] | None]] = {}
        """Where each call is: with a pod, or waiting for one."""
        self._names: set[str] = set()
        """Of all pods of all functions: two functions may be given the same names."""
        self._taken: dict[str, float] = {}
        """Names that others have, and until when they are not tried."""

    # --- calls ----------------------------------------------------------------------------------------------------

    def acquire(
        self, ticket: Ticket, function: str, version: Version, limits: Limits, *, now: float, promised: str = ""
    ) -> Effects[Ticket]:
        """A call comes: it is granted a pod now or later, or refused. One that is with the pod that it was promised
        stays there, if that is still known."""
        wanted = self._wanted(function, version, limits)
        if (pod := wanted.pods.get(promised)) is not None:
            return [self._give(wanted, pod, ticket), *self._dispatch(wanted, now)]
        if len(wanted.waiting) + wanted.calls_on_pods >= limits.max_calls:
            return [Refuse(ticket, None), *self._look_ahead(wanted)]
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
            return list(self._look_ahead(function))
        function.give_back(pod, ticket)
        return [*self._extend(function, pod, now), *self._dispatch(function, now)]

    def used(self, name: str, uid: str, function: str, *, now: float) -> Effects[Ticket]:
        """A call went to the pod by a promise, and is over; there is nothing left to count."""
        known, pod = self._find(name, uid, function)
        if known is None or pod is None:
            return []
        return [*self._extend(known, pod, now), *self._look_ahead(known)]

    def warm_up(self, function: str, version: Version, limits: Limits, *, now: float) -> Effects[Ticket]:
        """See that the function has a pod, though nobody calls it."""
        wanted = self._wanted(function, version, limits)
        if self._pods_that_count(wanted) or now < wanted.restart_after:
            return list(self._look_ahead(wanted))
        return [self._start(wanted, now), *self._look_ahead(wanted)]

    def keep_ready(self, function: str, version: Version, limits: Limits, *, now: float) -> Effects[Ticket]:
        """From now on the function has its minimum of ready pods at all times."""
        wanted = self._wanted(function, version, limits)
        wanted.is_kept_ready = True
        return list(self._dispatch(wanted, now))

    def release(self, function: str) -> None:
        """Stop keeping the function's minimum of ready pods; those that it has expire like others."""
        if (known := self._functions.get(function)) is not None:
            known.is_kept_ready = False

    def limit(self, function: str, limits: Limits, *, now: float) -> Effects[Ticket]:
        """Other limits from now on."""
        known = self._functions.get(function)
        if known is None:
            return []
        known.limit(limits)
        return list(self._dispatch(known, now))

    def want(self, function: str, version: Version, *, now: float) -> Effects[Ticket]:
        """Another digest or template from now on; calls that wait get pods of it."""
        known = self._functions.get(function)
        if known is None or known.version == version:
            return []
        known.want(version)
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
            pod = Pod[Ticket](seen.name, seen.version, seen.state, seen.reclaim_after or 0.0)
            function.add(pod)
            self._names.add(seen.name)
        pod.uid = seen.uid
        # Whoever extended it last, it lives as long as the later of the two says.
        function.extend(pod, seen.reclaim_after or 0.0)
        if seen.reclaim_after is not None:
            pod.has_no_time = False
        elif not pod.has_no_time:
            pod.has_no_time, pod.reclaim_after = True, 0.0
            effects += self._extend(function, pod, now)
        if pod.state is not PodState.LEAVING:
            pod.why = seen.why
            if (pod.state, pod.version) != (seen.state, seen.version):
                function.change(pod, state=seen.state, version=seen.version)
            if pod.state is PodState.READY and not pod.has_served:
                pod.has_served = True
                if pod.version == function.version:
                    function.started()
        return [*effects, *self._dispatch(function, now)]

    def taken(self, name: str, function: str, *, now: float) -> Effects[Ticket]:
        """The name of a pod that was to be started is somebody else's: the next number."""
        known = self._functions.get(function)
        pod = known.pods.get(name) if known else None
        if known is None or pod is None or pod.uid:
            return []
        effects = self._remove(known, pod, why="its name is taken")
        self._taken[name] = now + _TAKEN_SECONDS
        return [*effects, *self._dispatch(known, now)]

    def left(self, name: str, uid: str, function: str) -> None:
        """A pod without calls has become another function's. What is missing then is made up for when time passes, and
        not at once: whoever needed that pod needs the CPUs."""
        known, pod = self._find(name, uid, function)
        if known is not None and pod is not None and not pod.calls:
            self._remove(known, pod, why="it serves another function")
            if any(name in other.pods for other in self._functions.values()):
                # News of the time before may come late.
                self._names.add(name)

    def became(self, name: str, uid: str, function: str, *, instead_of: str, now: float) -> Effects[Ticket]:
        """A pod of another function is one of this one from now on, instead of the one that was to be started."""
        known = self._functions.get(function)
        planned = known.pods.get(instead_of) if known else None
        if known is None or planned is None or planned.uid:
            return []
        effects = self._remove(known, planned, why="another pod takes its place")
        if name not in known.pods:
            known.add(Pod[Ticket](name, planned.version, PodState.STARTING, planned.reclaim_after, uid))
            self._names.add(name)
        return [*effects, *self._dispatch(known, now)]

    def failed(self, name: str, uid: str, function: str, why: object, *, now: float) -> Effects[Ticket]:
        """A pod cannot start, could not be created, or died: it goes. If it never served, that is held against its
        function, which is started again later."""
        known, pod = self._find(name, uid, function)
        if known is None or pod is None or pod.state is PodState.LEAVING:
            return []
        effects = self._remove(known, pod, why=why)
        if pod.uid:
            effects.append(DeletePod(name, pod.uid, "died" if pod.has_served else "failed to start"))
        if pod.version == known.version and not pod.has_served:
            known.start_failed(why, now=now)
        return [*effects, *self._dispatch(known, now)]

    def gone(self, name: str, uid: str, function: str, why: object, *, now: float) -> Effects[Ticket]:
        """A pod is no more; its calls are told."""
        known, pod = self._find(name, uid, function)
        if known is None or pod is None:
            return []
        effects = self._remove(known, pod, why=why)
        if pod.version == known.version and pod.state in (PodState.STARTING, PodState.HELD_UP):
            known.start_failed(why, now=now, at_once=True)
        return [*effects, *self._dispatch(known, now)]

    def renew(self, *, now: float) -> Effects[Ticket]:
        """Time has passed: pods in use are extended, however long their calls are; what nobody needs is forgotten."""
        effects: Effects[Ticket] = []
        for function in list(self._functions.values()):
            if function.calls_on_pods:
                for pod in function.pods.values():
                    if pod.calls:
                        effects += self._extend(function, pod, now)
            effects += self._replenish(function, now)
            effects += self._look_ahead(function)
            if not function.pods and not function.waiting and now >= function.restart_after:
                del self._functions[function.name]
        for name in [name for name, until in self._taken.items() if until <= now]:
            del self._taken[name]
        return effects

    def collect(self, *, now: float) -> Effects[Ticket]:
        """Pods that nobody used for their time are to go; never one with a call, or that a call waits for."""
        effects: Effects[Ticket] = []
        for function in self._functions.values():
            for pod in function.pods.values():
                is_idle = not pod.calls and not (pod.state is PodState.STARTING and function.waiting)
                if not is_idle or not pod.uid or pod.state is PodState.LEAVING or pod.reclaim_after > now:
                    continue
                if self._is_of_the_minimum(function, pod):
                    effects += self._extend(function, pod, now)
                else:
                    function.change(pod, state=PodState.LEAVING)
                    effects.append(DeletePod(pod.name, pod.uid, "expired"))
            effects += self._look_ahead(function)
        return effects

    def kept(self, name: str, uid: str, function: str, *, state: PodState, now: float) -> Effects[Ticket]:
        """A deletion did not happen, mostly since somebody extended the pod's time meanwhile: it serves on."""
        known, pod = self._find(name, uid, function)
        if known is None or pod is None or pod.state is not PodState.LEAVING:
            return []
        known.change(pod, state=state)
        return list(self._dispatch(known, now))

    # --- what is known --------------------------------------------------------------------------------------------

    def functions(self) -> list[str]:
        """All that have pods or calls."""
        return list(self._functions)

    def pods(self, function: str) -> dict[str, tuple[PodState, int]]:
        """State and calls of every pod of a function."""
        known = self._functions.get(function)
        return {pod.name: (pod.state, len(pod.calls)) for pod in known.pods.values()} if known else {}

    def knows(self, function: str, name: str, uid: str) -> bool:
        """Whether it has that pod, and not one that is only planned under its name."""
        _, pod = self._find(name, uid, function)
        return pod is not None and pod.uid == uid

    def load(self, function: str, name: str) -> int:
        """How many calls a pod has."""
        known = self._functions.get(function)
        pod = known.pods.get(name) if known else None
        return len(pod.calls) if pod else 0

    def waiting(self, function: str) -> int:
        """How many calls wait for a pod."""
        known = self._functions.get(function)
        return len(known.waiting) if known else 0

    def ready(self, function: str, version: Version) -> list[str]:
        """The pods of a function and version that could get a call."""
        known = self._functions.get(function)
        found = known.pods.values() if known else ()
        return [pod.name for pod in found if pod.state is PodState.READY and pod.version == version]

    def serving(self, function: str, template: str) -> Version | None:
        """A version with this template that a ready pod of the function has, for when nobody else can say it."""
        known = self._functions.get(function)
        for pod in known.pods.values() if known else ():
            if pod.state is PodState.READY and pod.version.template == template:
                return pod.version
        return None

    # --- the policy -----------------------------------------------------------------------------------------------

    def _wanted(self, name: str, version: Version, limits: Limits) -> Function[Ticket]:
        function = self._functions.get(name)
        if function is None:
            function = self._functions[name] = Function[Ticket](name, version, limits)
        function.want(version)
        function.limit(limits)
        return function

    def _find(self, name: str, uid: str, function: str) -> tuple[Function[Ticket] | None, Pod[Ticket] | None]:
        known = self._functions.get(function)
        pod = known.pods.get(name) if known else None
        return known, pod if pod is not None and pod.is_same(uid) else None

    def _dispatch(self, function: Function[Ticket], now: float) -> Iterator[Effect[Ticket]]:
        """Give the calls that wait what there is, and start what is missing."""
        yield from self._serve(function, now)
        yield from self._replenish(function, now)
        yield from self._look_ahead(function)

    def _serve(self, function: Function[Ticket], now: float) -> Iterator[Effect[Ticket]]:
        while function.waiting:
            best = function.ready.best()
            if best is not None and len(best.calls) < function.limits.waitlist:
                yield self._grant(function, best)
            elif self._should_start(function, now):
                yield self._start(function, now)
            elif function.current(PodState.STARTING):
                return
            elif best is not None:
                yield self._grant(function, best)
            else:
                # It failed a moment ago, or is held up, and nothing else is there.
                held_up = next(iter(function.current(PodState.HELD_UP).values()), None)
                ticket, _ = function.waiting.popitem(last=False)
                del self._calls[ticket]
                yield Refuse(ticket, held_up.why if held_up else function.failure)

    def _look_ahead(self, function: Function[Ticket]) -> Iterator[Promise | Withdraw]:
        """Say what is known of the next calls, if it is something else than before."""
        if not self._looks_ahead:
            return
        # Who waits has a right to what gets free.
        is_open = not function.waiting and function.limits.waitlist > 0
        if function.is_settled if is_open else not function.promised:
            return
        before, function.promised = function.promised, self._promises(function) if is_open else {}
        function.is_settled = is_open
        yield from (Withdraw(function.name, name) for name in before if name not in function.promised)
        yield from (said for name, (uid, said) in function.promised.items() if before.get(name) != (uid, said))

    def _promises(self, function: Function[Ticket]) -> dict[str, tuple[str, Promise]]:
        limits = function.limits
        # Whoever finds its pod full waits for another one, or is what one is started for.
        is_on_its_way = bool(function.current(PodState.STARTING))
        may_grow = not function.current(PodState.HELD_UP) and self._pods_that_count(function) < limits.max_pods
        calls = min(limits.waitlist, limits.max_calls) if is_on_its_way or may_grow else limits.max_calls
        return {
            pod.name: (pod.uid, Promise(function.name, pod.name, pod.reclaim_after, calls, limits.max_calls))
            for pod in function.current(PodState.READY).values()
        }

    def _should_start(self, function: Function[Ticket], now: float) -> bool:
        on_their_way = len(function.current(PodState.STARTING))
        return len(function.waiting) > on_their_way * function.limits.waitlist and self._may_start(function, now)

    def _may_start(self, function: Function[Ticket], now: float) -> bool:
        if function.current(PodState.HELD_UP) or now < function.restart_after:
            return False
        return self._pods_that_count(function) < function.limits.max_pods

    def _replenish(self, function: Function[Ticket], now: float) -> Iterator[StartPod]:
        """Make up for what is missing of the minimum."""
        if not function.is_kept_ready:
            return
        limits = function.limits
        while function.ready.with_room(limits.waitlist) + len(
            function.current(PodState.STARTING)
        ) < limits.min_ready and self._may_start(function, now):
            yield self._start(function, now)

    def _is_of_the_minimum(self, function: Function[Ticket], pod: Pod[Ticket]) -> bool:
        """Whether there would be too few ready pods without this one."""
        ready = function.current(PodState.READY)
        return function.is_kept_ready and pod.name in ready and len(ready) <= function.limits.min_ready

    def _pods_that_count(self, function: Function[Ticket]) -> int:
        return sum(len(function.current(state)) for state in (PodState.STARTING, PodState.HELD_UP, PodState.READY))

    def _grant(self, function: Function[Ticket], pod: Pod[Ticket]) -> Grant[Ticket]:
        ticket, _ = function.waiting.popitem(last=False)
        return self._give(function, pod, ticket)

    def _give(self, function: Function[Ticket], pod: Pod[Ticket], ticket: Ticket) -> Grant[Ticket]:
        function.take(pod, ticket)
        self._calls[ticket] = function, pod
        return Grant(ticket, pod.name)

    def _start(self, function: Function[Ticket], now: float) -> StartPod:
        number = 1
        while not self._is_free(name := self._pod_name(function.name, function.version, number)):
            number += 1
        self._names.add(name)
        reclaim_after = now + function.limits.ttl
        function.add(Pod[Ticket](name, function.version, PodState.STARTING, reclaim_after))
        return StartPod(name, function.name, function.version, reclaim_after)

    def _is_free(self, name: str) -> bool:
        return not (name in self._names or name in self._taken or self._is_reserved(name))

    def _extend(self, function: Function[Ticket], pod: Pod[Ticket], now: float) -> Effects[Ticket]:
        """Its use counts from now on; written only if that makes a quarter of the TTL."""
        until = now + function.limits.ttl
        if pod.state is PodState.LEAVING or not pod.uid or until - pod.reclaim_after < function.limits.ttl / 4:
            return []
        function.extend(pod, until)
        return [ExtendTtl(pod.name, pod.uid, until)]

    def _remove(self, function: Function[Ticket], pod: Pod[Ticket], *, why: object) -> Effects[Ticket]:
        function.remove(pod)
        self._names.discard(pod.name)
        for ticket in pod.calls:
            del self._calls[ticket]
        return [Lost(ticket, pod.name, why) for ticket in pod.calls]
