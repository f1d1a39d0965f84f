"""One function in the pool: its pods, the calls that wait for one, and how often starting one has failed.

Pods of the wanted version are kept by state, the ready ones also by load, so that a call finds its pod in the same time
however many there are.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Generic

from krm_runner.core.pool_terms import Limits, PodState, Promise, Ticket, Version

_FIRST_RESTART_DELAY = 1.0
_LAST_RESTART_DELAY = 300.0


@dataclass(slots=True)
class Pod(Generic[Ticket]):
    """What the pool knows of one."""

    name: str
    version: Version
    state: PodState
    reclaim_after: float
    uid: str = ""
    """Empty until the cluster has it."""
    calls: set[Ticket] = field(default_factory=set[Ticket])
    has_served: bool = False
    has_no_time: bool = False
    """Whether the cluster does not show until when it may stay: that is being written."""
    why: object = None
    """Why it is held up."""

    def is_same(self, uid: str) -> bool:
        """Whether news of a pod with this uid are news of this one."""
        return not self.uid or not uid or self.uid == uid


class ReadyPods(Generic[Ticket]):
    """Pods in the order in which they are to be used: by load, and the one that rests longest first."""

    def __init__(self) -> None:
        self._by_load: dict[int, OrderedDict[str, Pod[Ticket]]] = {}
        self._least = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, pod: Pod[Ticket]) -> None:
        """It comes last among its equals."""
        load = len(pod.calls)
        self._by_load.setdefault(load, OrderedDict())[pod.name] = pod
        self._least = min(self._least, load) if self._count else load
        self._count += 1

    def remove(self, pod: Pod[Ticket]) -> None:
        """Before its calls change."""
        load = len(pod.calls)
        equals = self._by_load[load]
        del equals[pod.name]
        if not equals:
            del self._by_load[load]
        self._count -= 1

    def with_room(self, waitlist: int) -> int:
        """How many have fewer calls than this."""
        return sum(len(equals) for load, equals in self._by_load.items() if load < waitlist)

    def best(self) -> Pod[Ticket] | None:
        """The least loaded one."""
        if not self._count:
            return None
        while self._least not in self._by_load:
            self._least += 1
        return next(iter(self._by_load[self._least].values()))


class Function(Generic[Ticket]):
    """What the pool knows of one."""

    def __init__(self, name: str, version: Version, limits: Limits) -> None:
        self.name = name
        self.version = version
        self.limits = limits
        self.pods: dict[str, Pod[Ticket]] = {}
        self.waiting: OrderedDict[Ticket, None] = OrderedDict()
        self.calls_on_pods = 0
        self.failures = 0
        self.failure: object = None
        self.restart_after = 0.0
        self.is_kept_ready = False
        """Whether its minimum of ready pods counts."""
        self.promised: dict[str, tuple[str, Promise]] = {}
        """The pods that its calls may go to unasked, by name: which they are (uid), and what was said of them."""
        self.is_settled = False
        """Whether what was promised is what is to be promised, as far as pods and limits go."""
        self.ready = ReadyPods[Ticket]()
        self._current: dict[PodState, dict[str, Pod[Ticket]]] = {state: {} for state in PodState}

    def current(self, state: PodState) -> dict[str, Pod[Ticket]]:
        """The pods of the wanted version in a state."""
        return self._current[state]

    def want(self, version: Version) -> None:
        """From now on only pods of this version are current."""
        if version == self.version:
            return
        for pod in self.pods.values():
            self._leave_index(pod)
        self.version = version
        self.is_settled = False
        for pod in self.pods.values():
            self._enter_index(pod)
        # What failed was another version: this one has not been tried.
        self.failures, self.failure, self.restart_after = 0, None, 0.0

    def limit(self, limits: Limits) -> None:
        """Others, or the same."""
        if limits is not self.limits:
            self.limits, self.is_settled = limits, False

    def extend(self, pod: Pod[Ticket], until: float) -> None:
        """A pod stays until then, or later."""
        if until > pod.reclaim_after:
            pod.reclaim_after, self.is_settled = until, False

    def add(self, pod: Pod[Ticket]) -> None:
        """A pod that was not known."""
        self.is_settled = False
        self.pods[pod.name] = pod
        self._enter_index(pod)

    def remove(self, pod: Pod[Ticket]) -> None:
        """With its calls."""
        self.is_settled = False
        self._leave_index(pod)
        del self.pods[pod.name]
        self.calls_on_pods -= len(pod.calls)

    def change(self, pod: Pod[Ticket], *, state: PodState, version: Version | None = None) -> None:
        """A pod is another now than it was."""
        self.is_settled = False
        self._leave_index(pod)
        pod.state = state
        pod.version = version or pod.version
        self._enter_index(pod)

    def take(self, pod: Pod[Ticket], ticket: Ticket) -> None:
        """A call goes to a pod."""
        self._leave_index(pod)
        pod.calls.add(ticket)
        self.calls_on_pods += 1
        self._enter_index(pod)

    def give_back(self, pod: Pod[Ticket], ticket: Ticket) -> None:
        """A call is over."""
        self._leave_index(pod)
        pod.calls.discard(ticket)
        self.calls_on_pods -= 1
        self._enter_index(pod)

    def started(self) -> None:
        """A pod of it serves: the next failure is the first one again. A delay that was given stays."""
        self.failures = 0

    def start_failed(self, why: object, *, now: float, at_once: bool = False) -> None:
        """It is started again after a while that grows; `at_once` spares the first failure its delay."""
        count = self.failures - 1 if at_once else self.failures
        delay = min(_FIRST_RESTART_DELAY * 2.0**count, _LAST_RESTART_DELAY) if count >= 0 else 0.0
        self.failures, self.failure, self.restart_after = min(self.failures + 1, 30), why, now + delay

    def _enter_index(self, pod: Pod[Ticket]) -> None:
        if pod.version == self.version:
            self._current[pod.state][pod.name] = pod
            if pod.state is PodState.READY:
                self.ready.add(pod)

    def _leave_index(self, pod: Pod[Ticket]) -> None:
        if pod.version == self.version:
            del self._current[pod.state][pod.name]
            if pod.state is PodState.READY:
                self.ready.remove(pod)
