"""The text form of a log line is that of structlog's renderer, for whatever is logged."""

from __future__ import annotations

import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from krm_runner.telemetry.logs import logfmt

_structlog = structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"], bool_as_flag=False)
_values = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.text(alphabet=' ="\\\nab')


@settings(deadline=None)
@given(st.dictionaries(st.sampled_from(["timestamp", "level", "event", "image", "pod", "seconds"]), _values))
def test_a_line_is_as_structlog_writes_it(event: dict[str, object]) -> None:
    assert logfmt(None, "info", dict(event)) == _structlog(None, "info", dict(event))


def test_what_a_line_looks_like() -> None:
    event = {"image": "fn:v1", "why": 'it said "no"', "event": "pod failed", "seconds": 0.5, "timestamp": "T"}
    assert logfmt(None, "info", event) == (
        r'timestamp=T level= event="pod failed" image=fn:v1 why="it said \"no\"" seconds=0.5'
    )
