"""Waiting before trying again."""

from __future__ import annotations

import pytest

from krm_runner.core.backoff import Backoff, parse_retry_after


def test_delays_double_up_to_the_longest_with_jitter() -> None:
    backoff = Backoff(first=1, longest=10)
    assert [backoff.delay(attempt, chance=1) for attempt in (1, 2, 3, 4, 5, 1000)] == [1, 2, 4, 8, 10, 10]
    assert backoff.delay(3, chance=0) == 2


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("0", 0), (" 120 ", 120), ("Thu, 01 Jan 1970 00:01:40 GMT", 90), ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
        ("", None), ("soon", None), ("-1", None), ("1.5", None), ("9" * 30, None),
        ("Thu, 99 Jan 1970 00:00:00 GMT", None),
    ],
)  # fmt: skip
def test_retry_after(header: str, seconds: float | None) -> None:
    assert parse_retry_after(header, unix_now=10) == seconds
