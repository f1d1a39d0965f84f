"""What calls are expected to take, by what others took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krm_runner.core.memory_forecast import MemoryForecast

MB = 1_000_000


def test_of_a_stranger_there_is_a_cautious_guess() -> None:
    forecast = MemoryForecast()
    assert 10 * MB < forecast.expected("f", 2000) < 50 * MB, "several fit into a small container"
    assert forecast.expected("f", 5 * MB) > 300 * MB, "few do with so much input"


def test_what_was_seen_counts_for_inputs_of_that_size() -> None:
    forecast = MemoryForecast()
    forecast.learn("f", 4_500_000, 680 * MB)
    assert forecast.expected("f", 4_400_000) == 680 * MB
    assert forecast.expected("f", 8_000_000) == pytest.approx(680 * MB * 8 / 4.5)
    assert forecast.expected("g", 4_500_000) != 680 * MB


def test_a_guess_lies_between_what_was_seen_of_smaller_and_larger_inputs() -> None:
    forecast = MemoryForecast()
    forecast.learn("f", 5 * MB, 4 * MB)
    assert forecast.expected("f", 100_000) == 4 * MB, "no more than with more input"
    forecast.learn("g", 20 * MB, 4 * MB)
    forecast.learn("g", 1000, 900 * MB)
    assert forecast.expected("g", 5 * MB) == 900 * MB, "no less than with less input"


def test_more_counts_at_once_and_less_slowly() -> None:
    forecast = MemoryForecast()
    forecast.learn("f", 1000, 10 * MB)
    forecast.learn("f", 1000, 60 * MB)
    assert forecast.expected("f", 1000) == 60 * MB
    forecast.learn("f", 1000, 10 * MB)
    assert forecast.expected("f", 1000) == 50 * MB
    for _ in range(100):
        forecast.learn("f", 1000, 10 * MB)
    assert forecast.expected("f", 1000) < 11 * MB


def test_who_was_killed_is_expected_to_take_twice_as_much_up_to_all() -> None:
    forecast = MemoryForecast()
    guess = forecast.expected("f", 1000)
    for expected in (2 * guess, 100 * MB, 100 * MB):
        forecast.was_killed("f", 1000, 100 * MB)
        assert forecast.expected("f", 1000) == expected
    forecast.learn("f", 5 * MB, 500 * MB)
    forecast.was_killed("f", 5 * MB, 100 * MB)
    assert forecast.expected("f", 5 * MB) == 500 * MB


def test_strangers_are_forgotten() -> None:
    forecast = MemoryForecast()
    guess = forecast.expected("f", 1000)
    forecast.learn("f", 1000, 500 * MB)
    for number in range(1000):
        forecast.learn(f"other-{number}", 1000, MB)
    assert forecast.expected("f", 1000) == guess


@given(st.lists(st.tuples(st.integers(0, 1 << 26), st.integers(0, 1 << 33))), st.integers(0, 1 << 26))
def test_it_is_never_negative_and_never_less_than_what_was_just_seen(seen: list[tuple[int, int]], size: int) -> None:
    forecast = MemoryForecast()
    for seen_size, peak in seen:
        forecast.learn("f", seen_size, peak)
        assert forecast.expected("f", seen_size) >= peak
        assert forecast.expected("f", seen_size) <= 2 * max(peak for _, peak in seen)
    assert forecast.expected("f", size) >= 0


def test_inputs_of_different_sizes_in_one_class_do_not_add_up() -> None:
    forecast = MemoryForecast()
    for _ in range(1000):
        forecast.learn("f", 4_300_000, 550 * MB)
        forecast.learn("f", 8_000_000, 1040 * MB)
    assert 1040 * MB <= forecast.expected("f", 8_000_000) <= 1100 * MB
    assert 550 * MB <= forecast.expected("f", 4_300_000) <= 1040 * MB
