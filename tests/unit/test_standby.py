"""Processes in standby as a model: wanted, bounded, never given twice, and only ever started when a CPU is free."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from krm_runner.core.standby import Identity, StandbyLimits, StandbyPolicy, Start, Taken

OLD, NEW = (1,), (2,)
NAMES = "ab"


def policy(
    *, cpus: int = 2, max_age: float = 100, idle: float = 1000, total: int = 8, settling: float = 0
) -> StandbyPolicy[str]:
    return StandbyPolicy(StandbyLimits(cpus=cpus, max_age=max_age, idle=idle, total=total, settling=settling))


def start(standby: StandbyPolicy[str], process: str, *, now: float = 0, identity: Identity = OLD) -> str:
    """The function of the one process that is started now."""
    order = standby.next_start(busy=0, queued=0, now=now)
    assert order is not None
    assert standby.started(order.function, process, identity=identity, now=now)
    return order.function


def test_a_function_gets_its_processes_after_its_first_call() -> None:
    standby = policy()
    assert standby.next_start(busy=0, queued=0, now=0) is None
    standby.called("f", wanted=2, identity=OLD, now=0)
    assert start(standby, "p1") == "f"
    assert start(standby, "p2") == "f"
    assert standby.next_start(busy=0, queued=0, now=0) is None
    assert standby.waiting == 2
    assert (standby.has_waiting("f"), standby.has_waiting("g")) == (True, False)


def test_none_is_started_for_a_function_that_wants_none() -> None:
    standby = policy()
    standby.called("f", wanted=0, identity=OLD, now=0)
    assert standby.next_start(busy=0, queued=0, now=0) is None
    assert standby.functions() == ()


def test_none_is_started_while_calls_wait_or_every_cpu_is_busy() -> None:
    standby = policy(cpus=2)
    standby.called("f", wanted=1, identity=OLD, now=0)
    assert standby.next_start(busy=0, queued=1, now=0) is None
    assert standby.next_start(busy=2, queued=0, now=0) is None
    assert standby.next_start(busy=1, queued=0, now=0) == Start("f")


def test_one_is_started_at_a_time_and_a_start_lasts_until_the_process_has_settled() -> None:
    standby = policy(settling=5)
    standby.called("f", wanted=3, identity=OLD, now=0)
    assert standby.next_start(busy=0, queued=0, now=0) == Start("f")
    assert standby.next_start(busy=0, queued=0, now=1) is None
    assert standby.started("f", "p1", identity=OLD, now=1)
    assert standby.next_start(busy=0, queued=0, now=5) is None
    assert standby.next_event(5) == 6
    assert standby.next_start(busy=0, queued=0, now=6) == Start("f")
    assert standby.started("f", "p2", identity=OLD, now=7)
    assert standby.take("f", identity=OLD).process == "p1"
    assert standby.next_start(busy=0, queued=0, now=8) is None
    assert standby.take("f", identity=OLD).process == "p2"
    assert standby.next_start(busy=0, queued=0, now=8) == Start("f"), "a call has it, so its start is over"


def test_the_function_that_was_called_last_comes_first() -> None:
    standby = policy()
    standby.called("f", wanted=1, identity=OLD, now=2)
    standby.called("g", wanted=1, identity=OLD, now=3)
    standby.called("h", wanted=1, identity=OLD, now=1)
    assert [start(standby, process, now=3) for process in "abc"] == ["g", "f", "h"]


def test_a_call_gets_the_oldest_that_is_still_good() -> None:
    standby = policy()
    standby.called("f", wanted=3, identity=OLD, now=0)
    for process in ("p1", "p2", "p3"):
        start(standby, process)
    assert standby.take("f", identity=OLD) == Taken("p1")
    assert standby.take("g", identity=OLD) == Taken(None)
    assert standby.take("f", identity=NEW) == Taken(None, ("p2", "p3"))
    assert standby.take("f", identity=NEW) == Taken(None)


def test_a_file_that_is_gone_makes_its_processes_useless() -> None:
    standby = policy()
    standby.called("f", wanted=1, identity=OLD, now=0)
    start(standby, "p1")
    assert standby.take("f", identity=None) == Taken(None, ("p1",))


def test_a_marked_file_is_never_started_again_and_another_one_is() -> None:
    standby = policy()
    standby.called("f", wanted=3, identity=OLD, now=0)
    for process in ("p1", "p2"):
        start(standby, process)
    assert standby.mark("f", OLD) == ("p1", "p2")
    assert standby.marked("f") == OLD
    assert standby.marked("g") is None
    standby.called("f", wanted=3, identity=OLD, now=1)
    assert standby.next_start(busy=0, queued=0, now=1) is None
    standby.expire(now=5000)
    standby.called("f", wanted=3, identity=OLD, now=5000)
    assert standby.next_start(busy=0, queued=0, now=5000) is None, "remembered beyond its idle time"
    standby.called("f", wanted=3, identity=NEW, now=5001)
    assert standby.next_start(busy=0, queued=0, now=5001) == Start("f")


def test_a_process_that_was_on_its_way_when_its_file_was_marked_is_not_kept() -> None:
    standby = policy()
    standby.called("f", wanted=1, identity=OLD, now=0)
    assert standby.next_start(busy=0, queued=0, now=0) == Start("f")
    assert standby.mark("f", OLD) == ()
    assert not standby.started("f", "p1", identity=OLD, now=0)
    assert standby.waiting == 0


def test_retired_by_age_and_started_anew() -> None:
    standby = policy(max_age=100, idle=1000)
    standby.called("f", wanted=1, identity=OLD, now=0)
    start(standby, "p1", now=1)
    assert standby.next_event(1) == 101
    assert standby.expire(100.5) == ()
    assert standby.expire(101) == ("p1",)
    assert start(standby, "p2", now=101) == "f"
    assert standby.next_event(101) == 201


def test_gone_when_the_function_was_idle_for_long() -> None:
    standby = policy(max_age=900, idle=1000)
    standby.called("f", wanted=1, identity=OLD, now=0)
    start(standby, "p1", now=500)
    assert standby.next_event(500) == 1000
    assert standby.expire(1000) == ("p1",)
    assert standby.next_start(busy=0, queued=0, now=1000) is None
    assert standby.functions() == ()
    assert standby.next_event(1000) is None


def test_the_longest_idle_function_gives_way_to_one_that_was_called_later() -> None:
    standby = policy(total=2)
    for number, name in enumerate("fgh"):
        standby.called(name, wanted=1, identity=OLD, now=number)
    assert [start(standby, f"of {name}", now=3) for name in "hg"] == ["h", "g"]
    assert standby.next_start(busy=0, queued=0, now=3) is None, "f was called before those that have one"
    standby.called("f", wanted=1, identity=OLD, now=4)
    assert standby.next_start(busy=0, queued=0, now=4) == Start("f", ("of g",))
    assert standby.started("f", "of f", identity=OLD, now=4)
    assert standby.next_start(busy=0, queued=0, now=5) is None, "g does not take it back"


def test_a_failed_start_is_tried_again_after_the_next_call() -> None:
    standby = policy()
    standby.called("f", wanted=1, identity=OLD, now=0)
    assert standby.next_start(busy=0, queued=0, now=0) == Start("f")
    standby.start_failed("f")
    assert standby.next_start(busy=0, queued=0, now=1) is None
    standby.called("f", wanted=1, identity=OLD, now=2)
    assert standby.next_start(busy=0, queued=0, now=2) == Start("f")


def test_fewer_are_wanted() -> None:
    standby = policy()
    standby.called("f", wanted=3, identity=OLD, now=0)
    for process in ("p1", "p2", "p3"):
        start(standby, process)
    assert standby.want("f", 1) == ("p1", "p2")
    assert standby.called("f", wanted=0, identity=OLD, now=1) == ("p3",)
    assert standby.want("g", 1) == ()


def test_all_give_way_until_the_next_call() -> None:
    standby = policy()
    standby.called("f", wanted=1, identity=OLD, now=0)
    start(standby, "p1")
    assert standby.give_way() == ("p1",)
    assert standby.next_start(busy=0, queued=0, now=1) is None
    standby.called("f", wanted=1, identity=OLD, now=1)
    assert standby.next_start(busy=0, queued=0, now=1) == Start("f")


def test_after_the_end_none_is_kept() -> None:
    standby = policy()
    standby.called("f", wanted=2, identity=OLD, now=0)
    start(standby, "p1")
    assert standby.next_start(busy=0, queued=0, now=1) == Start("f")
    assert standby.end() == ("p1",)
    assert not standby.started("f", "p2", identity=OLD, now=1)
    standby.called("f", wanted=2, identity=OLD, now=2)
    assert standby.next_start(busy=0, queued=0, now=2) is None


class StandbyModel(RuleBasedStateMachine):
    """Compares the policy with a list of what waits, whatever happens in whatever order."""

    CPUS, MAX_AGE, IDLE, TOTAL, SETTLING = 2, 7, 15, 4, 1

    def __init__(self) -> None:
        super().__init__()
        limits = StandbyLimits(
            cpus=self.CPUS, max_age=self.MAX_AGE, idle=self.IDLE, total=self.TOTAL, settling=self.SETTLING
        )
        self.policy: StandbyPolicy[int] = StandbyPolicy(limits)
        self.now = 0.0
        self.next_process = 0
        self.files: dict[str, Identity] = dict.fromkeys(NAMES, (0,))
        self.wanted: dict[str, int] = {}
        self.called_at: dict[str, float] = {}
        self.waiting: dict[int, tuple[str, Identity, float]] = {}
        self.marked: set[tuple[str, Identity]] = set()
        self.starting: tuple[str, Identity] | None = None

    def end(self, processes: tuple[int, ...]) -> None:
        for process in processes:
            del self.waiting[process]

    @rule(name=st.sampled_from(NAMES), wanted=st.sampled_from([0, 1, 2, 3, 3, 3]))
    def call_ends(self, name: str, wanted: int) -> None:
        ended = self.policy.called(name, wanted=wanted, identity=self.files[name], now=self.now)
        assert all(self.waiting[process][0] == name for process in ended)
        self.end(ended)
        self.wanted[name] = wanted
        self.called_at[name] = self.now
        self.marked = {(other, file) for other, file in self.marked if other != name or file == self.files[name]}

    @precondition(lambda self: not self.starting)
    @rule()
    def one_is_started(self) -> None:
        self.look_for_a_start(busy=0, queued=0)
        if self.starting:
            self.start_succeeds()
            self.time_passes(self.SETTLING)

    @rule(name=st.sampled_from(NAMES), wanted=st.integers(min_value=0, max_value=3))
    def configured(self, name: str, wanted: int) -> None:
        self.end(self.policy.want(name, wanted))
        if name in self.policy.functions():
            self.wanted[name] = wanted

    @rule(busy=st.integers(min_value=0, max_value=3), queued=st.integers(min_value=0, max_value=1))
    def look_for_a_start(self, busy: int, queued: int) -> None:
        order = self.policy.next_start(busy=busy, queued=queued, now=self.now)
        if order is None:
            return
        name = order.function
        assert (queued, self.starting) == (0, None)
        assert busy < self.CPUS
        assert all(since + self.SETTLING <= self.now for _, _, since in self.waiting.values())
        assert sum(1 for other, _, _ in self.waiting.values() if other == name) < self.wanted[name]
        assert self.now < self.called_at[name] + self.IDLE
        assert name not in {other for other, _ in self.marked}
        for process in order.ended:
            assert len(self.waiting) == self.TOTAL
            assert self.called_at[self.waiting[process][0]] < self.called_at[name]
        self.end(order.ended)
        self.starting = (name, self.files[name])

    @precondition(lambda self: self.starting)
    @rule()
    def start_succeeds(self) -> None:
        assert self.starting is not None
        name, identity = self.starting
        self.starting = None
        self.next_process += 1
        if self.policy.started(name, self.next_process, identity=identity, now=self.now):
            assert (name, identity) not in self.marked
            self.waiting[self.next_process] = (name, identity, self.now)

    @precondition(lambda self: self.starting)
    @rule()
    def start_fails(self) -> None:
        assert self.starting is not None
        self.policy.start_failed(self.starting[0])
        self.starting = None

    @rule(name=st.sampled_from(NAMES))
    def call_takes(self, name: str) -> None:
        taken = self.policy.take(name, identity=self.files[name])
        assert all(self.waiting[process][:2] != (name, self.files[name]) for process in taken.ended)
        self.end(taken.ended)
        good = [process for process, facts in self.waiting.items() if facts[:2] == (name, self.files[name])]
        assert taken.process == min(good, default=None)
        if taken.process is not None:
            del self.waiting[taken.process]

    @rule(name=st.sampled_from(NAMES))
    def file_changes(self, name: str) -> None:
        self.files[name] = (self.files[name][0] + 1,)

    @precondition(lambda self: self.waiting)
    @rule(name=st.sampled_from(NAMES))
    def acts_early(self, name: str) -> None:
        identity = self.files[name]
        self.end(self.policy.mark(name, identity))
        self.marked = {(other, file) for other, file in self.marked if other != name} | {(name, identity)}

    @precondition(lambda self: len(self.waiting) > 2)
    @rule()
    def gives_way(self) -> None:
        self.end(self.policy.give_way())
        assert not self.waiting

    @rule(step=st.integers(min_value=1, max_value=4))
    def time_passes(self, step: int) -> None:
        """As in the service: one looks when the policy says so, and not before."""
        until = self.now + step
        while (when := self.policy.next_event(self.now)) is not None and when <= until:
            self.now = max(self.now, when)
            ended = self.policy.expire(self.now)
            for process in ended:
                name, _, since = self.waiting[process]
                assert since + self.MAX_AGE <= self.now or self.called_at[name] + self.IDLE <= self.now
            self.end(ended)
            following = self.policy.next_event(self.now)
            assert following is None or following > self.now, "a timer that never sleeps"
        self.now = until

    @invariant()
    def counts_agree(self) -> None:
        assert self.policy.waiting == len(self.waiting) <= self.TOTAL
        for name in NAMES:
            of_it = [facts for facts in self.waiting.values() if facts[0] == name]
            assert len(of_it) <= self.wanted.get(name, 0)
            assert not [facts for facts in of_it if (name, facts[1]) in self.marked]

    @invariant()
    def nothing_is_overdue(self) -> None:
        for name, _, since in self.waiting.values():
            due = min(since + self.MAX_AGE, self.called_at[name] + self.IDLE)
            assert due > self.now
            event = self.policy.next_event(self.now)
            assert event is not None
            assert event <= due


TestStandbyModel = StandbyModel.TestCase
