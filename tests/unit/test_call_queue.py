"""The queue as a model: bounded, fair, and nobody is lost or served twice."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from krm_runner.core.call_queue import Admission, CallQueue

FOREVER = 1e9


def test_calls_run_up_to_the_limit_then_wait_then_are_refused() -> None:
    queue: CallQueue[str] = CallQueue(limit=1, max_waiting=1)
    assert queue.enter("a", function="f", deadline=FOREVER) is Admission.RUN
    assert queue.enter("b", function="f", deadline=FOREVER) is Admission.WAIT
    assert queue.enter("c", function="f", deadline=FOREVER) is Admission.FULL
    assert queue.enter("d", function="g", deadline=FOREVER) is Admission.WAIT


def test_a_flood_of_one_function_delays_another_by_one_turn() -> None:
    queue: CallQueue[str] = CallQueue(limit=1, max_waiting=100)
    queue.enter("running", function="f", deadline=FOREVER)
    for number in range(50):
        queue.enter(f"f{number}", function="f", deadline=FOREVER)
    queue.enter("g0", function="g", deadline=FOREVER)
    assert [queue.finish(now=0).granted for _ in range(4)] == ["f0", "g0", "f1", "f2"]


def test_calls_past_their_deadline_are_dropped_and_the_next_one_runs() -> None:
    queue: CallQueue[str] = CallQueue(limit=1, max_waiting=10)
    queue.enter("running", function="f", deadline=FOREVER)
    queue.enter("late", function="f", deadline=5)
    queue.enter("on-time", function="f", deadline=50)
    turn = queue.finish(now=10)
    assert (turn.granted, turn.expired) == ("on-time", ("late",))


def test_no_room_to_wait_at_all() -> None:
    queue: CallQueue[str] = CallQueue(limit=1, max_waiting=0)
    assert queue.enter("a", function="f", deadline=FOREVER) is Admission.RUN
    assert queue.enter("b", function="f", deadline=FOREVER) is Admission.FULL


class QueueModel(RuleBasedStateMachine):
    """Compares the queue with sets: who runs, who waits."""

    LIMIT, MAX_WAITING = 2, 3

    def __init__(self) -> None:
        super().__init__()
        self.queue: CallQueue[int] = CallQueue(limit=self.LIMIT, max_waiting=self.MAX_WAITING)
        self.now = 0.0
        self.next_ticket = 0
        self.running: set[int] = set()
        self.waiting: dict[int, tuple[str, float]] = {}

    @rule(function=st.sampled_from("abc"), patience=st.integers(min_value=1, max_value=5))
    def enter(self, function: str, patience: int) -> None:
        self.next_ticket += 1
        ticket, deadline = self.next_ticket, self.now + patience
        in_line = sum(1 for other, _ in self.waiting.values() if other == function)
        match self.queue.enter(ticket, function=function, deadline=deadline):
            case Admission.RUN:
                assert len(self.running) < self.LIMIT
                assert not self.waiting
                self.running.add(ticket)
            case Admission.WAIT:
                assert in_line < self.MAX_WAITING
                self.waiting[ticket] = (function, deadline)
            case Admission.FULL:
                assert in_line == self.MAX_WAITING

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        self.running.remove(data.draw(st.sampled_from(sorted(self.running))))
        turn = self.queue.finish(now=self.now)
        for ticket in turn.expired:
            assert self.waiting.pop(ticket)[1] <= self.now
        if turn.granted is None:
            assert not self.waiting
        else:
            function, deadline = self.waiting.pop(turn.granted)
            assert deadline > self.now
            older = [t for t, (f, d) in self.waiting.items() if f == function and t < turn.granted and d > self.now]
            assert not older
            self.running.add(turn.granted)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def give_up(self, data: st.DataObject) -> None:
        ticket = data.draw(st.sampled_from(sorted(self.waiting)))
        function, _ = self.waiting.pop(ticket)
        self.queue.leave(ticket, function=function)

    @rule(step=st.integers(min_value=1, max_value=3))
    def time_passes(self, step: int) -> None:
        self.now += step

    @invariant()
    def counts_agree(self) -> None:
        assert self.queue.running == len(self.running) <= self.LIMIT
        assert self.queue.waiting() == len(self.waiting)


TestQueueModel = QueueModel.TestCase
