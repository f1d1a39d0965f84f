"""The pool as a model: calls, pods and time in any order must not break what it promises."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from krm_runner.core.pool import Pool
from krm_runner.core.pool_terms import (
    MOVES,
    DeletePod,
    Effect,
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
from unit.test_pool import COUNTED, FUNCTION, LIMITS, NEW, OLD, pod_name


class PoolModel(RuleBasedStateMachine):
    """Calls, pods and time in any order; the model holds what the effects promised."""

    tickets = Bundle("tickets")

    def __init__(self) -> None:
        super().__init__()
        self.pool: Pool[int] = Pool(pod_name, looks_ahead=True)
        self.now = 0.0
        self.version = OLD
        self.wanted = OLD
        """What the pool takes for wanted: before anybody calls, that is the first pod that it sees."""
        self.last_ticket = 0
        self.last_uid = 0
        self.waiting: set[int] = set()
        self.granted: dict[int, str] = {}
        self.pods: dict[str, tuple[str, Version, PodState]] = {}
        """By name: uid ("" before it is created), version, state."""
        self.written: dict[str, float] = {}
        self.limits = LIMITS
        self.is_kept_ready = False
        self.states: dict[str, tuple[str, PodState]] = {}
        self.promised: dict[str, Promise] = {}
        """What somebody has who was told."""

    def perform(self, effects: Effects[int]) -> None:
        for effect in effects:
            self.perform_one(effect)

    def perform_one(self, effect: Effect[int]) -> None:
        match effect:
            case Grant(ticket, name):
                assert ticket in self.waiting, "granted once, and only to whoever waits"
                _, version, state = self.pods[name]
                assert (version, state) == (self.version, PodState.READY)
                self.waiting.discard(ticket)
                self.granted[ticket] = name
            case Refuse(ticket, why):
                assert ticket in self.waiting
                assert why is not None or len(self.waiting) + len(self.granted) > LIMITS.max_calls
                self.waiting.discard(ticket)
            case Lost(ticket, name):
                assert self.granted.pop(ticket) == name
            case StartPod(name, _, version):
                assert name not in self.pods
                assert version == self.version
                self.pods[name] = ("", version, PodState.STARTING)
                ours = [pod for pod in self.pods.values() if pod[1] == version and pod[2] in COUNTED]
                assert len(ours) <= LIMITS.max_pods
                assert not [pod for pod in ours if pod[2] is PodState.HELD_UP]
            case DeletePod(name, uid):
                assert name not in self.granted.values(), "never under a call"
                known = self.pods.get(name)
                if known is not None and known[0] == uid:
                    self.pods[name] = (uid, known[1], PodState.LEAVING)
            case ExtendTtl(name, uid, until):
                assert self.pods[name][0] == uid
                assert until - self.written.get(uid, 0.0) >= LIMITS.ttl / 4
                self.written[uid] = until
            case Promise(function, name):
                assert function == FUNCTION
                self.promised[name] = effect
            case Withdraw(function, name):
                assert function == FUNCTION
                del self.promised[name]

    def see(self, name: str) -> None:
        uid, version, state = self.pods[name]
        seen = Observed(name, uid, FUNCTION, version, state, self.now + LIMITS.ttl, why="held up")
        self.written[uid] = self.now + LIMITS.ttl
        if FUNCTION not in self.pool.functions():
            self.wanted = version
        self.perform(self.pool.observed(seen, self.limits, now=self.now))

    def new_uid(self) -> str:
        self.last_uid += 1
        return f"uid-{self.last_uid}"

    def named(self, index: int, *states: PodState) -> str | None:
        names = sorted(name for name, pod in self.pods.items() if pod[2] in states)
        return names[index % len(names)] if names else None

    @rule(target=tickets)
    def a_call_comes(self) -> int:
        self.last_ticket += 1
        self.wanted = self.version
        self.waiting.add(self.last_ticket)
        self.perform(self.pool.acquire(self.last_ticket, FUNCTION, self.version, self.limits, now=self.now))
        return self.last_ticket

    @rule(target=tickets, index=st.integers(0, 9))
    def a_call_comes_from_where_it_was_promised_to_go(self, index: int) -> int:
        self.last_ticket += 1
        ticket, names = self.last_ticket, sorted(self.promised)
        self.wanted = self.version
        name = names[index % len(names)] if names else ""
        effects = self.pool.acquire(ticket, FUNCTION, self.version, self.limits, now=self.now, promised=name)
        if name:
            # It is there already, and only counted.
            assert effects.pop(0) == Grant(ticket, name)
            self.granted[ticket] = name
        else:
            self.waiting.add(ticket)
        self.perform(effects)
        return ticket

    @rule(index=st.integers(0, 9))
    def a_promised_call_was_over_before_it_was_heard_of(self, index: int) -> None:
        if name := self.named(index, PodState.READY):
            self.perform(self.pool.used(name, self.pods[name][0], FUNCTION, now=self.now))

    @rule(ticket=consumes(tickets))
    def a_call_ends_or_gives_up(self, ticket: int) -> None:
        self.waiting.discard(ticket)
        self.granted.pop(ticket, None)
        self.perform(self.pool.leave(ticket, now=self.now))

    @rule(index=st.integers(0, 9), state=st.sampled_from(list(PodState)))
    def a_pod_is_seen(self, index: int, state: PodState) -> None:
        if name := self.named(index, PodState.STARTING, PodState.HELD_UP, PodState.READY, PodState.UNREACHABLE):
            uid, version, before = self.pods[name]
            if (before, state) in MOVES or before is state:
                self.pods[name] = (uid or self.new_uid(), version, state)
                self.see(name)

    @rule(index=st.integers(0, 9))
    def a_name_is_taken(self, index: int) -> None:
        names = sorted(name for name, (uid, _, _) in self.pods.items() if not uid)
        if names:
            name = names[index % len(names)]
            del self.pods[name]
            self.perform(self.pool.taken(name, FUNCTION, now=self.now))

    @rule(index=st.integers(0, 9), is_seen_first=st.booleans())
    def a_spare_takes_a_place(self, index: int, is_seen_first: bool) -> None:
        planned = sorted(name for name, (uid, _, _) in self.pods.items() if not uid)
        if planned:
            name, version = planned[index % len(planned)], self.pods[planned[index % len(planned)]][1]
            uid = self.new_uid()
            spare = f"spare-{uid}"
            if is_seen_first:
                self.pods[spare] = (uid, version, PodState.STARTING)
                self.see(spare)
            if name in self.pods and not self.pods[name][0]:
                del self.pods[name]
                self.pods[spare] = (uid, version, PodState.STARTING)
                self.perform(self.pool.became(spare, uid, FUNCTION, instead_of=name, now=self.now))

    @rule(index=st.integers(0, 9), state=st.sampled_from([PodState.READY, PodState.STARTING, PodState.UNREACHABLE]))
    def a_deletion_does_not_happen(self, index: int, state: PodState) -> None:
        if name := self.named(index, PodState.LEAVING):
            uid, version, _ = self.pods[name]
            self.pods[name] = (uid, version, state)
            self.perform(self.pool.kept(name, uid, FUNCTION, state=state, now=self.now))

    @rule(number=st.integers(1, 5), version=st.sampled_from([OLD, NEW]))
    def another_runner_starts_a_pod(self, number: int, version: Version) -> None:
        name = pod_name(FUNCTION, version, number)
        if name not in self.pods:
            self.pods[name] = (self.new_uid(), version, PodState.READY)
            self.see(name)

    @rule(index=st.integers(0, 9))
    def a_pod_fails(self, index: int) -> None:
        if name := self.named(index, PodState.STARTING, PodState.HELD_UP, PodState.READY, PodState.UNREACHABLE):
            uid, _, _ = self.pods.pop(name)
            self.perform(self.pool.failed(name, uid, FUNCTION, "reason", now=self.now))

    @rule(index=st.integers(0, 9))
    def a_pod_goes(self, index: int) -> None:
        if name := self.named(index, *PodState):
            uid, _, _ = self.pods.pop(name)
            self.perform(self.pool.gone(name, uid, FUNCTION, "gone", now=self.now))

    @rule(index=st.integers(0, 9))
    def old_news_are_not_heard(self, index: int) -> None:
        if (name := self.named(index, PodState.READY)) is not None:
            assert self.pool.gone(name, "uid-of-long-ago", FUNCTION, "gone", now=self.now) == []

    @rule(version=st.sampled_from([OLD, NEW]))
    def the_tag_moves(self, version: Version) -> None:
        self.version = version
        if FUNCTION in self.pool.functions():
            self.wanted = version
        self.perform(self.pool.want(FUNCTION, version, now=self.now))

    @rule(min_ready=st.integers(0, 4))
    def it_is_kept_ready(self, min_ready: int) -> None:
        self.limits = replace(LIMITS, min_ready=min_ready)
        self.is_kept_ready, self.wanted = True, self.version
        self.perform(self.pool.keep_ready(FUNCTION, self.version, self.limits, now=self.now))

    @rule()
    def it_is_released(self) -> None:
        self.is_kept_ready = False
        self.pool.release(FUNCTION)

    @rule(seconds=st.sampled_from([0.5, 10.0, 60.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.perform(self.pool.renew(now=self.now))
        self.perform(self.pool.collect(now=self.now))

    @invariant()
    def the_pool_knows_what_the_model_knows(self) -> None:
        assert self.pool.waiting(FUNCTION) == len(self.waiting)
        held = sum(calls for _, calls in self.pool.pods(FUNCTION).values())
        assert held == len(self.granted)

    @invariant()
    def who_is_told_knows_where_the_next_call_may_go(self) -> None:
        ours = {name: state for name, (_, version, state) in self.pods.items() if version == self.wanted}
        ready = {name for name, state in ours.items() if state is PodState.READY}
        assert set(self.promised) == (set() if self.waiting else ready)
        counted = [state for state in ours.values() if state in COUNTED]
        may_grow = len(counted) < LIMITS.max_pods and PodState.HELD_UP not in counted
        most = LIMITS.waitlist if may_grow or PodState.STARTING in counted else LIMITS.max_calls
        assert all(said.calls == most for said in self.promised.values())

    @invariant()
    def pods_move_as_the_table_says(self) -> None:
        now = {name: (uid, self.pool.pods(FUNCTION)[name][0]) for name, (uid, _, _) in self.pods.items()}
        for name in now.keys() | self.states.keys():
            (uid, state), (old_uid, before) = now.get(name, ("", None)), self.states.get(name, ("", None))
            if state is not before and (uid == old_uid or not old_uid):
                assert (before, state) in MOVES
        self.states = now

    @rule()
    def what_is_missing_of_the_minimum_is_on_its_way(self) -> None:
        """Later than any delay after a failure, and unless the cluster has no room."""
        self.now += 301.0
        self.perform(self.pool.renew(now=self.now))
        ours = {name: state for name, (_, version, state) in self.pods.items() if version == self.version}
        if not self.is_kept_ready or PodState.HELD_UP in ours.values():
            return
        busy = [name for name in ours if list(self.granted.values()).count(name) >= LIMITS.waitlist]
        spare = [name for name, state in ours.items() if state in COUNTED and name not in busy]
        counted = [state for state in ours.values() if state in COUNTED]
        assert len(spare) >= self.limits.min_ready or len(counted) >= LIMITS.max_pods

    @invariant()
    def nobody_waits_for_nothing(self) -> None:
        if self.waiting:
            states = [pod[2] for pod in self.pods.values() if pod[1] == self.version]
            assert PodState.STARTING in states
            room = [
                name
                for name, (_, version, state) in self.pods.items()
                if version == self.version
                and state is PodState.READY
                and list(self.granted.values()).count(name) < LIMITS.waitlist
            ]
            assert not room


PoolModel.TestCase.settings = settings(max_examples=300, stateful_step_count=40, deadline=None)
TestPoolModel = PoolModel.TestCase
