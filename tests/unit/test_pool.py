"""The pool's policy, by example; `test_pool_model` has it as a model."""

from __future__ import annotations

from typing import Any

import pytest

from krm_runner.core.pool import Pool
from krm_runner.core.pool_terms import (
    DeletePod,
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
    Version,
    Withdraw,
)

FUNCTION = "example.com/set-namespace:v1"
OLD, NEW = Version("sha256:old", "1"), Version("sha256:new", "1")
LIMITS = Limits(waitlist=2, max_pods=3, max_calls=8, ttl=100.0)


COUNTED = (PodState.STARTING, PodState.HELD_UP, PodState.READY)


def pod_name(function: str, version: Version, number: int) -> str:
    return f"{version.digest[7:]}-{number}"


class Scene:
    """A pool with one function, and the calls and pods of an example."""

    def __init__(self, limits: Limits = LIMITS, *, looks_ahead: bool = False) -> None:
        self.pool: Pool[str] = Pool(pod_name, looks_ahead=looks_ahead)
        self.limits = limits
        self.now = 0.0

    def acquire(self, ticket: str, version: Version = OLD, promised: str = "") -> Effects[str]:
        return self.pool.acquire(ticket, FUNCTION, version, self.limits, now=self.now, promised=promised)

    def see(self, name: str, state: PodState, version: Version = OLD, uid: str = "", reclaim_after: float = 0) -> Any:
        seen = Observed(name, uid or f"uid-{name}", FUNCTION, version, state, reclaim_after or self.now + 100)
        return self.pool.observed(seen, self.limits, now=self.now)


def test_the_first_call_starts_a_pod_and_gets_it() -> None:
    scene = Scene()
    assert scene.acquire("a") == [StartPod("old-1", FUNCTION, OLD, 100.0)]
    assert scene.see("old-1", PodState.STARTING) == []
    assert scene.see("old-1", PodState.READY) == [Grant("a", "old-1")]
    assert scene.acquire("b") == [Grant("b", "old-1")]


def test_a_full_pod_starts_another_and_the_call_goes_where_there_is_room_first() -> None:
    scene = Scene()
    scene.see("old-1", PodState.READY)
    assert scene.acquire("a") == [Grant("a", "old-1")]
    assert scene.acquire("b") == [Grant("b", "old-1")]
    assert scene.acquire("c") == [StartPod("old-2", FUNCTION, OLD, 100.0)]
    assert scene.pool.leave("a", now=1) == [Grant("c", "old-1")]
    assert scene.acquire("d") == []
    assert scene.see("old-2", PodState.READY) == [Grant("d", "old-2")]


def test_when_no_more_pods_may_be_started_nobody_waits_for_one() -> None:
    scene = Scene(Limits(waitlist=1, max_pods=1, max_calls=3, ttl=100))
    scene.see("old-1", PodState.READY)
    assert [scene.acquire(ticket) for ticket in "abc"] == [[Grant(ticket, "old-1")] for ticket in "abc"]
    assert scene.acquire("d") == [Refuse("d", None)]


def test_equals_take_turns() -> None:
    scene = Scene()
    scene.see("old-1", PodState.READY)
    scene.see("old-2", PodState.READY)
    assert [scene.acquire(ticket) for ticket in "abcd"] == [
        [Grant("a", "old-1")],
        [Grant("b", "old-2")],
        [Grant("c", "old-1")],
        [Grant("d", "old-2")],
    ]


def test_many_calls_at_once_start_as_many_pods_as_they_need() -> None:
    scene = Scene()
    started = [effect for ticket in "abcdefg" for effect in scene.acquire(ticket)]
    assert started == [StartPod(f"old-{number}", FUNCTION, OLD, 100.0) for number in (1, 2, 3)]


def test_a_pod_that_cannot_start_fails_its_calls_at_once_and_is_tried_again_later() -> None:
    scene = Scene()
    scene.acquire("a")
    scene.see("old-1", PodState.STARTING, uid="u1")
    assert scene.pool.failed("old-1", "u1", FUNCTION, "ErrImagePull", now=0) == [
        DeletePod("old-1", "u1", "failed to start"),
        Refuse("a", "ErrImagePull"),
    ]
    assert scene.acquire("b") == [Refuse("b", "ErrImagePull")]
    scene.now = 1.0
    assert scene.acquire("c") == [StartPod("old-1", FUNCTION, OLD, 101.0)]
    scene.pool.failed("old-1", "", FUNCTION, "quota", now=1.0)
    scene.now = 2.9
    assert scene.acquire("d") == [Refuse("d", "quota")]
    scene.now = 3.0
    assert scene.acquire("e") == [StartPod("old-1", FUNCTION, OLD, 103.0)]


def test_a_call_does_not_fail_while_another_pod_is_there() -> None:
    scene = Scene()
    for ticket in "abc":
        scene.acquire(ticket)
    assert scene.pool.failed("old-2", "", FUNCTION, "quota", now=0) == []
    assert scene.see("old-1", PodState.READY) == [Grant("a", "old-1"), Grant("b", "old-1"), Grant("c", "old-1")]


def test_a_call_that_gives_up_leaves_the_pod_to_the_next() -> None:
    scene = Scene()
    scene.acquire("a")
    assert scene.pool.leave("a", now=1) == []
    assert scene.pool.leave("a", now=1) == []
    assert scene.see("old-1", PodState.READY) == []
    assert scene.acquire("b") == [Grant("b", "old-1")]


def test_a_moved_tag_gets_new_pods_while_the_old_ones_finish() -> None:
    scene = Scene()
    scene.see("old-1", PodState.READY, reclaim_after=50)
    scene.acquire("a")
    assert scene.acquire("b", NEW) == [StartPod("new-1", FUNCTION, NEW, 100.0)]
    scene.now = 60
    assert scene.see("new-1", PodState.READY, NEW) == [Grant("b", "new-1")]
    assert scene.pool.collect(now=60) == [], "it has a call"
    assert scene.pool.renew(now=60) == [ExtendTtl("old-1", "uid-old-1", 160.0)]
    scene.pool.leave("a", now=60)
    scene.pool.leave("b", now=160)
    assert scene.pool.collect(now=161) == [DeletePod("old-1", "uid-old-1", "expired")]


def test_lost_pods_tell_their_calls() -> None:
    scene = Scene()
    scene.see("old-1", PodState.READY)
    scene.acquire("a")
    assert scene.pool.gone("old-1", "another-uid", FUNCTION, "evicted", now=0) == []
    assert scene.pool.gone("old-1", "uid-old-1", FUNCTION, "evicted", now=0) == [Lost("a", "old-1", "evicted")]
    assert scene.pool.leave("a", now=0) == []


def test_a_pod_of_the_same_name_is_another_pod() -> None:
    scene = Scene()
    scene.see("old-1", PodState.READY, uid="u1")
    scene.acquire("a")
    effects = scene.see("old-1", PodState.STARTING, uid="u2")
    assert [type(effect) for effect in effects] == [Lost]
    assert scene.pool.pods(FUNCTION) == {"old-1": (PodState.STARTING, 0)}


def test_a_pod_that_another_runner_extended_is_kept() -> None:
    scene = Scene()
    scene.see("old-1", PodState.READY, reclaim_after=10)
    assert scene.pool.collect(now=10) == [DeletePod("old-1", "uid-old-1", "expired")]
    scene.now = 10
    assert scene.acquire("a") == [StartPod("old-2", FUNCTION, OLD, 110.0)], "one that leaves gets no call"
    kept = scene.pool.kept("old-1", "uid-old-1", FUNCTION, state=PodState.READY, now=10)
    assert kept == [Grant("a", "old-1")]


def test_use_is_written_once_per_quarter_of_the_ttl() -> None:
    scene = Scene()
    scene.see("old-1", PodState.READY, reclaim_after=100)
    written: list[float] = []
    for step in range(200):
        scene.now = float(step)
        scene.acquire("a")
        written += [
            effect.reclaim_after for effect in scene.pool.leave("a", now=scene.now) if isinstance(effect, ExtendTtl)
        ]
    assert written == [125.0, 150.0, 175.0, 200.0, 225.0, 250.0, 275.0]


def test_two_functions_with_the_same_names_do_not_meet() -> None:
    scene = Scene()
    scene.acquire("a")
    other = scene.pool.acquire("b", "mirror.example/set-namespace:v1", OLD, LIMITS, now=0)
    assert other == [StartPod("old-2", "mirror.example/set-namespace:v1", OLD, 100.0)]


def test_warm_up_starts_one_pod_and_no_second() -> None:
    scene = Scene()
    assert scene.pool.warm_up(FUNCTION, OLD, LIMITS, now=0) == [StartPod("old-1", FUNCTION, OLD, 100.0)]
    assert scene.pool.warm_up(FUNCTION, OLD, LIMITS, now=0) == []


def test_a_function_without_pods_and_calls_is_forgotten() -> None:
    scene = Scene()
    scene.see("old-1", PodState.READY)
    scene.pool.gone("old-1", "uid-old-1", FUNCTION, "deleted", now=0)
    scene.pool.renew(now=1)
    assert scene.pool.functions() == []


def test_nobody_waits_for_a_pod_that_is_held_up_and_no_other_is_started_beside_it() -> None:
    scene = Scene()
    for ticket in "ab":
        scene.acquire(ticket)
    held_up = Observed("old-1", "u1", FUNCTION, OLD, PodState.HELD_UP, 100.0, why="Unschedulable")
    assert scene.pool.observed(held_up, LIMITS, now=0) == [Refuse("a", "Unschedulable"), Refuse("b", "Unschedulable")]
    assert scene.acquire("c") == [Refuse("c", "Unschedulable")]
    assert scene.pool.pods(FUNCTION) == {"old-1": (PodState.HELD_UP, 0)}
    assert scene.see("old-1", PodState.STARTING, uid="u1") == [], "a node has room now"
    assert scene.acquire("d") == []
    assert scene.see("old-1", PodState.READY, uid="u1") == [Grant("d", "old-1")]


def test_a_pod_that_is_not_reached_is_left_aside_until_it_answers_again() -> None:
    scene = Scene()
    scene.see("old-1", PodState.READY)
    assert scene.acquire("a") == [Grant("a", "old-1")]
    assert scene.see("old-1", PodState.UNREACHABLE) == []
    assert scene.acquire("b") == [StartPod("old-2", FUNCTION, OLD, 100.0)]
    assert scene.see("old-1", PodState.READY) == [Grant("b", "old-1")]
    assert scene.pool.leave("a", now=0) == []


def test_a_pod_that_died_is_replaced_at_once() -> None:
    scene = Scene()
    scene.see("old-1", PodState.READY)
    scene.acquire("a")
    assert scene.pool.failed("old-1", "uid-old-1", FUNCTION, "OOMKilled", now=0) == [
        Lost("a", "old-1", "OOMKilled"),
        DeletePod("old-1", "uid-old-1", "died"),
    ]
    assert scene.acquire("a") == [StartPod("old-1", FUNCTION, OLD, 100.0)]


def test_a_pod_that_is_deleted_while_it_starts_is_replaced_once_and_then_its_calls_are_told() -> None:
    scene = Scene()
    scene.acquire("a")
    scene.see("old-1", PodState.STARTING, uid="u1")
    assert scene.pool.gone("old-1", "u1", FUNCTION, "deleted", now=0) == [StartPod("old-1", FUNCTION, OLD, 100.0)]
    scene.see("old-1", PodState.STARTING, uid="u2")
    assert scene.pool.gone("old-1", "u2", FUNCTION, "deleted", now=0) == [Refuse("a", "deleted")]


def test_a_name_that_is_taken_is_left_to_whoever_has_it() -> None:
    scene = Scene()
    scene.acquire("a")
    assert scene.pool.taken("old-1", FUNCTION, now=0) == [StartPod("old-2", FUNCTION, OLD, 100.0)]
    assert scene.pool.taken("old-1", FUNCTION, now=0) == []
    scene.pool.failed("old-2", "", FUNCTION, "quota", now=0)
    scene.now = 100
    scene.pool.renew(now=100)
    assert scene.acquire("b") == [StartPod("old-1", FUNCTION, OLD, 200.0)], "it may be free by now"


def test_a_pod_that_does_not_say_how_long_it_may_stay_is_given_a_new_time_once() -> None:
    scene = Scene()
    silent = Observed("old-1", "u1", FUNCTION, OLD, PodState.READY, None)
    assert scene.pool.observed(silent, LIMITS, now=10) == [ExtendTtl("old-1", "u1", 110.0)]
    assert scene.pool.observed(silent, LIMITS, now=11) == []
    assert scene.pool.collect(now=100) == []
    scene.see("old-1", PodState.READY, uid="u1", reclaim_after=110)
    assert scene.pool.observed(silent, LIMITS, now=12) == [ExtendTtl("old-1", "u1", 112.0)], "it was taken away again"


def test_a_version_that_serves_is_known_when_nobody_else_can_say_it() -> None:
    scene = Scene()
    assert scene.pool.serving(FUNCTION, "1") is None
    scene.see("old-1", PodState.STARTING)
    assert scene.pool.serving(FUNCTION, "1") is None
    scene.see("old-1", PodState.READY)
    assert scene.pool.serving(FUNCTION, "1") == OLD
    assert scene.pool.serving(FUNCTION, "2") is None


def test_the_least_loaded_of_many_is_found_whatever_came_and_went() -> None:
    limits = Limits(waitlist=1000, max_pods=50, max_calls=10_000, ttl=100)
    scene = Scene(limits)
    for number in range(50):
        scene.see(f"old-{number}", PodState.READY)
    under_way: list[str] = []
    for step in range(3000):
        if step % 3 == 2:
            scene.pool.leave(under_way.pop(step * 7919 % len(under_way)), now=0)
        loads = [calls for _, calls in scene.pool.pods(FUNCTION).values()]
        (grant,) = scene.acquire(ticket := f"t{step}")
        assert isinstance(grant, Grant)
        _, load = scene.pool.pods(FUNCTION)[grant.name]
        assert load == min(loads) + 1
        under_way.append(ticket)


KEPT = Limits(waitlist=2, max_pods=3, max_calls=8, ttl=100.0, min_ready=1)


def test_a_function_that_is_kept_ready_gets_its_next_pod_before_a_call_needs_it() -> None:
    scene = Scene(KEPT)
    assert scene.pool.keep_ready(FUNCTION, OLD, KEPT, now=0) == [StartPod("old-1", FUNCTION, OLD, 100.0)]
    assert scene.see("old-1", PodState.READY) == []
    assert scene.acquire("a") == [Grant("a", "old-1")]
    assert scene.acquire("b") == [Grant("b", "old-1"), StartPod("old-2", FUNCTION, OLD, 100.0)]
    assert scene.pool.failed("old-2", "", FUNCTION, "why", now=1) == [], "started again after a while"
    assert scene.pool.renew(now=1.5) == []
    assert scene.pool.renew(now=2.5) == [StartPod("old-2", FUNCTION, OLD, 102.5)]


def test_a_pod_that_is_lost_is_made_up_for_at_once() -> None:
    scene = Scene(KEPT)
    scene.pool.keep_ready(FUNCTION, OLD, KEPT, now=0)
    scene.see("old-1", PodState.READY)
    assert scene.pool.gone("old-1", "uid-old-1", FUNCTION, "gone", now=5) == [StartPod("old-1", FUNCTION, OLD, 105.0)]


def test_another_version_is_made_ready_before_a_call_wants_it() -> None:
    scene = Scene(KEPT)
    scene.pool.keep_ready(FUNCTION, OLD, KEPT, now=0)
    scene.see("old-1", PodState.READY)
    assert scene.pool.want(FUNCTION, NEW, now=5) == [StartPod("new-1", FUNCTION, NEW, 105.0)]


def test_the_last_ready_pods_are_not_collected() -> None:
    scene = Scene(KEPT)
    scene.pool.keep_ready(FUNCTION, OLD, KEPT, now=0)
    scene.see("old-1", PodState.READY, reclaim_after=100)
    scene.see("old-2", PodState.READY, reclaim_after=100)
    assert scene.pool.collect(now=200) == [
        DeletePod("old-1", "uid-old-1", "expired"),
        ExtendTtl("old-2", "uid-old-2", 300.0),
    ]
    assert scene.pool.limit(FUNCTION, LIMITS, now=250) == []
    assert scene.pool.collect(now=300) == [DeletePod("old-2", "uid-old-2", "expired")], "its file wants none any more"


def test_a_minimum_counts_from_when_it_is_asked_for() -> None:
    """A pod that is only seen may be of a version that nobody wants any more."""
    scene = Scene(KEPT)
    scene.see("old-1", PodState.STARTING)
    assert scene.pool.gone("old-1", "uid-old-1", FUNCTION, "gone", now=5) == []


# --- decided ahead ------------------------------------------------------------------------------------------------


def promise(name: str, until: float = 100.0, calls: int = LIMITS.waitlist) -> Promise:
    return Promise(FUNCTION, name, until, calls, LIMITS.max_calls)


def withdrawn(name: str) -> Withdraw:
    return Withdraw(FUNCTION, name)


def ahead(limits: Limits = LIMITS, *pods: str) -> Scene:
    scene = Scene(limits, looks_ahead=True)
    for name in pods:
        scene.see(name, PodState.READY)
    return scene


def test_calls_are_promised_every_ready_pod_and_counted_where_they_went() -> None:
    scene = ahead()
    assert scene.see("old-1", PodState.STARTING) == []
    assert scene.see("old-1", PodState.READY) == [promise("old-1")]
    assert scene.see("old-2", PodState.READY) == [promise("old-2")]
    assert scene.acquire("a", promised="old-1") == [Grant("a", "old-1")]
    assert scene.pool.pods(FUNCTION)["old-1"] == (PodState.READY, 1)
    assert scene.acquire("b") == [Grant("b", "old-2")], "who asks is told where there are fewest"
    assert scene.acquire("c", promised="old-1") == [Grant("c", "old-1")], "it holds for more than one"
    assert [scene.pool.leave(ticket, now=1) for ticket in "abc"] == [[], [], []]


def test_a_pod_may_have_any_number_of_calls_unasked_only_when_no_other_comes() -> None:
    first = [f"old-{number}" for number in range(1, LIMITS.max_pods)]
    last = f"old-{LIMITS.max_pods}"
    scene = ahead(LIMITS, *first)
    assert scene.see(last, PodState.STARTING) == [], "calls beyond their waitlists would wait for it"
    assert scene.see(last, PodState.READY) == [promise(name, calls=LIMITS.max_calls) for name in (*first, last)]
    # There is room for another one: then it must be heard of when it is needed.
    gone = scene.pool.gone(last, f"uid-{last}", FUNCTION, "gone", now=1)
    assert gone == [withdrawn(last), *map(promise, first)]
    assert scene.see(last, PodState.HELD_UP) == [promise(name, calls=LIMITS.max_calls) for name in first]


def test_while_a_call_waits_nothing_is_promised() -> None:
    scene = ahead(LIMITS, "old-1")
    for ticket in ("a", "b"):
        assert scene.acquire(ticket, promised="old-1") == [Grant(ticket, "old-1")]
    assert scene.acquire("c") == [StartPod("old-2", FUNCTION, OLD, 100.0), withdrawn("old-1")]
    granted = scene.pool.leave("a", now=1)
    assert granted == [Grant("c", "old-1"), promise("old-1")], "what gets free is for who waits"
    assert scene.acquire("d") == [withdrawn("old-1")]
    assert scene.pool.leave("d", now=1) == [promise("old-1")], "it gave up"


def test_a_pod_is_promised_for_as_long_as_it_stays() -> None:
    scene = ahead(LIMITS, "old-1")
    scene.acquire("a", promised="old-1")
    assert scene.pool.leave("a", now=10) == []
    scene.acquire("b", promised="old-1")
    extended = scene.pool.leave("b", now=50)
    assert extended == [ExtendTtl("old-1", "uid-old-1", 150.0), promise("old-1", until=150.0)]


def test_a_call_that_was_over_before_it_was_heard_of_extends_its_pod() -> None:
    scene = ahead(LIMITS, "old-1")
    assert scene.pool.used("old-1", "uid-old-1", FUNCTION, now=10) == []
    extended = scene.pool.used("old-1", "uid-old-1", FUNCTION, now=50)
    assert extended == [ExtendTtl("old-1", "uid-old-1", 150.0), promise("old-1", until=150.0)]
    assert scene.pool.pods(FUNCTION) == {"old-1": (PodState.READY, 0)}
    assert scene.pool.used("old-1", "uid-of-another", FUNCTION, now=90) == [], "its pod is gone"


@pytest.mark.parametrize("state", [PodState.UNREACHABLE, PodState.LEAVING])
def test_a_pod_that_is_not_ready_any_more_is_not_promised(state: PodState) -> None:
    scene = ahead(LIMITS, "old-1")
    assert scene.see("old-1", state) == [withdrawn("old-1")]
    # A call that was quicker is where it is.
    assert scene.acquire("a", promised="old-1") == [Grant("a", "old-1")]
    assert scene.pool.pods(FUNCTION)["old-1"] == (state, 1)


def test_another_pod_of_the_same_name_is_promised_anew() -> None:
    scene = ahead(LIMITS, "old-1")
    assert scene.see("old-1", PodState.READY, uid="another") == [promise("old-1")]


def test_a_pod_that_fails_or_goes_is_withdrawn_and_forgotten_by_its_call() -> None:
    scene = ahead(LIMITS, "old-1", "old-2")
    failed = scene.pool.failed("old-1", "uid-old-1", FUNCTION, "died", now=1)
    assert failed == [DeletePod("old-1", "uid-old-1", "died"), withdrawn("old-1")]
    assert scene.pool.gone("old-2", "uid-old-2", FUNCTION, "gone", now=1) == [withdrawn("old-2")]
    # Its pod is not known any more: it is a call like any other.
    assert scene.acquire("a", promised="old-2") == [StartPod("old-1", FUNCTION, OLD, 100.0)]


def test_a_pod_that_is_planned_under_the_name_of_one_that_is_gone_is_not_that_one() -> None:
    scene = ahead(LIMITS, "old-1")
    assert scene.pool.knows(FUNCTION, "old-1", "uid-old-1")
    scene.pool.gone("old-1", "uid-old-1", FUNCTION, "gone", now=1)
    assert scene.acquire("a") == [StartPod("old-1", FUNCTION, OLD, 100.0)]
    assert not scene.pool.knows(FUNCTION, "old-1", "uid-old-1")
    assert scene.pool.used("old-1", "uid-old-1", FUNCTION, now=90) == []


def test_another_version_takes_the_promise_back_however_it_is_heard_of() -> None:
    scene = ahead(LIMITS, "old-1")
    assert scene.pool.want(FUNCTION, NEW, now=1) == [withdrawn("old-1")]
    assert scene.pool.want(FUNCTION, OLD, now=1) == [promise("old-1")]
    warmed = scene.pool.warm_up(FUNCTION, NEW, LIMITS, now=1)
    assert warmed == [StartPod("new-1", FUNCTION, NEW, 101.0), withdrawn("old-1")]


def test_what_is_collected_is_promised_to_nobody() -> None:
    scene = ahead(LIMITS, "old-1")
    assert scene.pool.collect(now=101) == [DeletePod("old-1", "uid-old-1", "expired"), withdrawn("old-1")]
    kept = scene.pool.kept("old-1", "uid-old-1", FUNCTION, state=PodState.READY, now=102)
    assert kept == [promise("old-1")]


def test_a_promised_call_is_not_refused_and_a_pod_without_room_is_not_promised() -> None:
    scene = ahead(Limits(waitlist=1, max_pods=1, max_calls=1, ttl=100), "old-1")
    assert scene.acquire("a", promised="old-1") == [Grant("a", "old-1")]
    assert scene.acquire("b") == [Refuse("b", None)]
    scene.pool.leave("a", now=1)
    full = Limits(waitlist=0, max_pods=1, max_calls=1, ttl=100)
    assert scene.pool.limit(FUNCTION, full, now=1) == [withdrawn("old-1")]


def test_nobody_is_told_who_does_not_ask() -> None:
    scene = Scene()
    assert scene.see("old-1", PodState.READY) == []
    assert scene.acquire("a") == [Grant("a", "old-1")]


SPARE = "spare"


def with_spares(scene: Scene, count: int) -> Limits:
    """Ready ones."""
    limits = Limits(waitlist=2, max_pods=count, max_calls=8, ttl=100.0, min_ready=count)
    for effect in scene.pool.keep_ready(SPARE, NEW, limits, now=scene.now):
        assert isinstance(effect, StartPod)
        seen = Observed(effect.name, f"uid-{effect.name}", SPARE, NEW, PodState.READY, scene.now + 100)
        assert scene.pool.observed(seen, limits, now=scene.now) == []
    return limits


def test_a_spare_takes_the_place_of_the_pod_that_was_to_be_started() -> None:
    scene = Scene()
    with_spares(scene, 1)
    assert scene.acquire("a") == [StartPod("old-1", FUNCTION, OLD, 100.0)]
    assert scene.pool.ready(SPARE, NEW) == ["new-1"]
    scene.pool.left("new-1", "uid-new-1", SPARE)
    assert scene.pool.became("new-1", "uid-new-1", FUNCTION, instead_of="old-1", now=0.0) == []
    assert scene.pool.pods(FUNCTION) == {"new-1": (PodState.STARTING, 0)}
    assert scene.see("new-1", PodState.READY) == [Grant("a", "new-1")]
    # Its name is not given to the next spare, which is started when time passes.
    assert scene.pool.renew(now=1.0) == [StartPod("new-2", SPARE, NEW, 101.0)]


def test_a_spare_that_the_watch_shows_first_is_one_pod_all_the_same() -> None:
    scene = Scene()
    with_spares(scene, 1)
    scene.acquire("a")
    scene.pool.left("new-1", "uid-new-1", SPARE)
    assert scene.see("new-1", PodState.STARTING) == []
    scene.pool.left("new-1", "uid-new-1", SPARE)
    assert scene.pool.became("new-1", "uid-new-1", FUNCTION, instead_of="old-1", now=0.0) == []
    assert scene.pool.pods(FUNCTION) == {"new-1": (PodState.STARTING, 0)}


def test_a_spare_serves_though_nobody_waits_for_the_planned_pod_any_more() -> None:
    scene = Scene()
    with_spares(scene, 1)
    scene.acquire("a")
    scene.pool.taken("old-1", FUNCTION, now=0.0)
    scene.pool.left("new-1", "uid-new-1", SPARE)
    assert scene.pool.became("new-1", "uid-new-1", FUNCTION, instead_of="old-1", now=0.0) == []
    assert scene.see("new-1", PodState.READY) == [Grant("a", "new-1")]


def test_old_news_of_a_spare_do_not_give_its_name_away() -> None:
    scene = Scene()
    limits = with_spares(scene, 1)
    scene.acquire("a")
    scene.pool.left("new-1", "uid-new-1", SPARE)
    scene.pool.became("new-1", "uid-new-1", FUNCTION, instead_of="old-1", now=0.0)
    late = Observed("new-1", "uid-new-1", SPARE, NEW, PodState.READY, 100.0)
    assert scene.pool.observed(late, limits, now=0.0) == []
    scene.pool.left("new-1", "uid-new-1", SPARE)
    assert scene.pool.renew(now=1.0) == [StartPod("new-2", SPARE, NEW, 101.0)]


def test_spares_that_are_not_kept_any_more_expire_and_are_not_replaced() -> None:
    scene = Scene()
    with_spares(scene, 1)
    scene.pool.release(SPARE)
    assert scene.pool.collect(now=101.0) == [DeletePod("new-1", "uid-new-1", "expired")]
    scene.pool.gone("new-1", "uid-new-1", SPARE, None, now=101.0)
    assert scene.pool.renew(now=102.0) == []
    assert scene.pool.functions() == []


def test_another_pod_of_the_name_has_not_left() -> None:
    scene = Scene()
    with_spares(scene, 1)
    scene.pool.left("new-1", "uid-of-long-ago", SPARE)
    assert scene.pool.ready(SPARE, NEW) == ["new-1"]
    assert scene.pool.ready(SPARE, OLD) == []
