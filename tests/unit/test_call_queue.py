"""The queue as a model: bounded, fair, and nobody is lost or served twice."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from krm_runner.core.call_queue import Admission, CallQueue, NextTurn

FOREVER = 1e9


def test_calls_run_up_to_the_limit_then_wait_then_are_refused() -> None:
    queue: CallQueue[str] = CallQueue(limit=1, max_waiting=1)
    assert queue.enter("a", function="f", deadline=FOREVER, now=0) is Admission.RUN
    assert queue.enter("b", function="f", deadline=FOREVER, now=0) is Admission.WAIT
    assert queue.enter("c", function="f", deadline=FOREVER, now=0) is Admission.FULL
    assert queue.enter("d", function="g", deadline=FOREVER, now=0) is Admission.WAIT


def test_a_flood_of_one_function_delays_another_by_one_turn() -> None:
    queue: CallQueue[str] = CallQueue(limit=1, max_waiting=100)
    queue.enter("running", function="f", deadline=FOREVER, now=0)
    for number in range(50):
        queue.enter(f"f{number}", function="f", deadline=FOREVER, now=0)
    queue.enter("g0", function="g", deadline=FOREVER, now=0)
    order = ["running"]
    for _ in range(4):
        order += queue.finish(order[-1], now=0).granted
    assert order == ["running", "f0", "g0", "f1", "f2"]


def test_calls_past_their_deadline_are_dropped_and_the_next_one_runs() -> None:
    queue: CallQueue[str] = CallQueue(limit=1, max_waiting=10)
    queue.enter("running", function="f", deadline=FOREVER, now=0)
    queue.enter("late", function="f", deadline=5, now=0)
    queue.enter("on-time", function="f", deadline=50, now=0)
    turn = queue.finish("running", now=10)
    assert (turn.granted, turn.expired) == (("on-time",), ("late",))


def test_no_room_to_wait_at_all() -> None:
    queue: CallQueue[str] = CallQueue(limit=1, max_waiting=0)
    assert queue.enter("a", function="f", deadline=FOREVER, now=0) is Admission.RUN
    assert queue.enter("b", function="f", deadline=FOREVER, now=0) is Admission.FULL


def test_a_call_whose_turn_would_come_too_late_is_refused_at_once() -> None:
    queue: CallQueue[str] = CallQueue(limit=2, max_waiting=100)
    for _ in range(50):
        queue.learn("slow", 4.0)
        queue.learn("quick", 0.1)
    for ticket in ("running", "too"):
        assert queue.enter(ticket, function="slow", deadline=1, now=0) is Admission.RUN, "a free place is never refused"
    until_one_ends = queue.expected_wait("slow")
    assert 0.05 < until_one_ends < 2.0, "half of what calls of any function take"
    assert queue.enter("a", function="slow", deadline=4, now=0) is Admission.LATE, "its own run takes all its time"
    assert queue.enter("b", function="slow", deadline=2 * until_one_ends + 4.1, now=0) is Admission.WAIT
    assert queue.expected_wait("slow") == pytest.approx(2.0 + until_one_ends)
    assert queue.enter("c", function="slow", deadline=2 * (2.0 + until_one_ends) + 3.9, now=0) is Admission.LATE
    assert queue.enter("d", function="slow", deadline=2 * (2.0 + until_one_ends) + 4.1, now=0) is Admission.WAIT
    assert queue.expected_wait("quick") == pytest.approx(2.0 + until_one_ends), "one turn of the other, not both"


def test_the_newest_count_most_and_strangers_are_forgotten() -> None:
    queue: CallQueue[str] = CallQueue(limit=1, max_waiting=9)
    for seconds in (10.0, 0.0, 0.0, 0.0):
        queue.learn("f", seconds)
    queue.enter("running", function="f", deadline=FOREVER, now=0)
    assert queue.expected_wait("f") == pytest.approx(10 * 0.8**3)
    queue.enter("waits", function="f", deadline=FOREVER, now=0)
    assert queue.expected_wait("f") == pytest.approx(2 * 10 * 0.8**3)
    for number in range(2000):
        queue.learn(f"other-{number}", 1.0)
    assert queue.expected_wait("f") == pytest.approx(1.0), "of f nothing is known, but somebody has to end"


def test_a_call_that_was_cut_off_never_makes_the_others_look_quicker() -> None:
    queue: CallQueue[str] = CallQueue(limit=1, max_waiting=9)
    for seconds, expected in ((2.0, 2.0), (1.0, 2.0), (7.0, 3.0)):
        queue.learn_at_least("f", seconds)
        assert queue.expected_wait("f") == pytest.approx(expected)


def test_calls_wait_for_memory_and_nobody_passes_the_one_whose_turn_it_is() -> None:
    queue: CallQueue[str] = CallQueue(limit=4, max_waiting=9, memory_limit=100)

    def enter(ticket: str, memory: int) -> Admission:
        return queue.enter(ticket, function=ticket[0], deadline=FOREVER, now=0, memory=lambda: memory)

    assert [enter("a", 40), enter("b", 40)] == [Admission.RUN] * 2
    assert [enter("large", 70), enter("small", 5), enter("tiny", 1)] == [Admission.WAIT] * 3, "in turn"
    assert queue.finish("a", now=0).granted == ()
    assert queue.finish("b", now=0).granted == ("large", "small", "tiny")
    assert (queue.memory, queue.running) == (76, 3)


def test_a_call_that_takes_more_than_all_memory_runs_alone() -> None:
    queue: CallQueue[str] = CallQueue(limit=4, max_waiting=9, memory_limit=100)
    assert queue.enter("huge", function="f", deadline=FOREVER, now=0, memory=lambda: 1000) is Admission.RUN
    assert queue.enter("small", function="g", deadline=FOREVER, now=0, memory=lambda: 1) is Admission.WAIT
    assert queue.enter("next", function="f", deadline=FOREVER, now=0, memory=lambda: 1000) is Admission.WAIT
    assert queue.finish("huge", now=0).granted == ("small",)
    assert queue.finish("small", now=0).granted == ("next",)


def test_a_call_that_gives_up_lets_those_pass_who_waited_behind_it() -> None:
    queue: CallQueue[str] = CallQueue(limit=4, max_waiting=9, memory_limit=100)
    for ticket, memory in (("a", 60), ("large", 70), ("b", 10), ("c", 30)):
        queue.enter(ticket, function=ticket, deadline=FOREVER, now=0, memory=partial(int, memory))
    assert queue.leave("large", function="large", now=0).granted == ("b", "c")


def test_what_is_learnt_while_a_call_waits_counts_at_its_turn() -> None:
    queue: CallQueue[str] = CallQueue(limit=4, max_waiting=9, memory_limit=100)
    expected = [30]
    for ticket in "abcdef":
        queue.enter(ticket, function="f", deadline=FOREVER, now=0, memory=lambda: expected[0])
    assert queue.running == 3
    expected[0] = 90
    assert [queue.finish(ticket, now=0).granted for ticket in "abc"] == [(), (), ("d",)]
    expected[0] = 1
    assert queue.finish("d", now=0).granted == ("e", "f")


def test_the_expected_wait_knows_how_many_fit_into_the_memory() -> None:
    queue: CallQueue[str] = CallQueue(limit=4, max_waiting=9, memory_limit=100)
    queue.learn("f", 6.0)
    for number in range(3):
        queue.enter(str(number), function="f", deadline=FOREVER, now=0, memory=lambda: 50)
    assert queue.expected_wait("f") == pytest.approx((6.0 + 6.0) / 2)


class QueueModel(RuleBasedStateMachine):
    """Compares the queue with sets: who runs, who waits, and how much memory they take."""

    LIMIT, MAX_WAITING, MEMORY = 3, 3, 10

    def __init__(self) -> None:
        super().__init__()
        self.queue: CallQueue[int] = CallQueue(limit=self.LIMIT, max_waiting=self.MAX_WAITING, memory_limit=self.MEMORY)
        self.now = 0.0
        self.next_ticket = 0
        self.memory: dict[int, int] = {}
        self.running: set[int] = set()
        self.waiting: dict[int, tuple[str, float]] = {}

    def room(self, memory: int) -> bool:
        taken = sum(self.memory[ticket] for ticket in self.running)
        return len(self.running) < self.LIMIT and (not self.running or taken + memory <= self.MEMORY)

    @rule(
        function=st.sampled_from("abc"),
        patience=st.integers(min_value=1, max_value=5),
        memory=st.integers(min_value=0, max_value=12),
    )
    def enter(self, function: str, patience: int, memory: int) -> None:
        self.next_ticket += 1
        ticket, deadline = self.next_ticket, self.now + patience
        self.memory[ticket] = memory
        in_line = sum(1 for other, _ in self.waiting.values() if other == function)
        match self.queue.enter(ticket, function=function, deadline=deadline, now=self.now, memory=lambda: memory):
            case Admission.RUN:
                assert self.room(memory)
                assert not self.waiting
                self.running.add(ticket)
            case Admission.WAIT:
                assert in_line < self.MAX_WAITING
                self.waiting[ticket] = (function, deadline)
            case Admission.FULL:
                assert in_line == self.MAX_WAITING
            case Admission.LATE:
                assert self.waiting or not self.room(memory)
                assert self.queue.expected_wait(function) > 0

    @rule(function=st.sampled_from("abc"), seconds=st.floats(0, 10))
    def learn(self, function: str, seconds: float) -> None:
        self.queue.learn(function, seconds)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.running)))
        self.running.remove(ticket)
        self.note(self.queue.finish(ticket, now=self.now))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.waiting)))
        function, _ = self.waiting.pop(ticket)
        self.note(self.queue.leave(ticket, function=function, now=self.now))

    def note(self, turn: NextTurn[int]) -> None:
        for ticket in turn.expired:
            assert self.waiting.pop(ticket)[1] <= self.now
        for ticket in turn.granted:
            function, deadline = self.waiting.pop(ticket)
            assert deadline > self.now
            older = [t for t, (f, d) in self.waiting.items() if f == function and t < ticket and d > self.now]
            assert not older
            assert self.room(self.memory[ticket])
            self.running.add(ticket)
        if self.waiting:
            assert not all(self.room(self.memory[ticket]) for ticket in self.waiting), "it is somebody's turn"

    @rule(step=st.integers(min_value=1, max_value=3))
    def time_passes(self, step: int) -> None:
        self.now += step

    @invariant()
    def counts_agree(self) -> None:
        assert self.queue.running == len(self.running) <= self.LIMIT
        assert self.queue.waiting() == len(self.waiting)
        assert self.queue.memory == sum(self.memory[ticket] for ticket in self.running)
        assert self.queue.memory <= self.MEMORY or len(self.running) == 1
        assert self.running or not self.waiting


TestQueueModel = QueueModel.TestCase
