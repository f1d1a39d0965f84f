"""What requests may take together."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from krm_runner.core.request_budget import RequestBudget


def test_one_alone_fits_and_the_next_waits_for_room() -> None:
    budget = RequestBudget(100)
    assert budget.enter(250)
    assert not budget.enter(1)
    budget.leave(250)
    assert budget.enter(60)
    assert budget.enter(40)
    assert not budget.enter(1)


@given(st.lists(st.integers(0, 60)))
def test_it_is_never_over_its_limit_but_for_one(sizes: list[int]) -> None:
    budget, held = RequestBudget(100), list[int]()
    for size in sizes:
        if budget.enter(size):
            held.append(size)
        elif held:
            budget.leave(held.pop(0))
        assert budget.used == sum(held)
        assert budget.used <= 100
