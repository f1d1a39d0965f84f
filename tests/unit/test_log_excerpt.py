"""A function's stderr, bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from krm_runner.core.log_excerpt import LogExcerpt, shorten


@given(st.lists(st.binary(max_size=50), max_size=20), st.integers(min_value=2, max_value=64))
def test_short_logs_are_kept_whole_and_long_ones_from_both_ends(chunks: list[bytes], limit: int) -> None:
    excerpt = LogExcerpt(limit)
    for chunk in chunks:
        excerpt.add(chunk)
    whole, value = b"".join(chunks), excerpt.value()
    if len(whole) <= limit:
        assert value == whole
    else:
        head, tail = limit // 2, limit - limit // 2
        assert value == whole[:head] + f"\n... [{len(whole) - limit} bytes cut] ...\n".encode() + whole[-tail:]


@given(st.binary(max_size=300), st.integers(min_value=0, max_value=300))
def test_a_shortened_log_fits(log: bytes, limit: int) -> None:
    short = shorten(log, limit)
    assert len(short) <= limit
    if len(log) <= limit:
        assert short == log
    elif short:
        assert b"bytes cut" in short
        assert short[:1] == log[:1] or limit < 40
