"""The loop that lets others go first."""

from __future__ import annotations

import asyncio
import os
import time
from typing import cast

import pytest
from structlog.testing import capture_logs

from krm_runner.app.event_loop import give_way

TURNS = 20


@pytest.fixture
def yielded(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """When it gave way."""
    moments: list[float] = []
    niceness: list[int] = []
    monkeypatch.setattr(os, "sched_yield", lambda: moments.append(time.perf_counter()))
    monkeypatch.setattr(os, "nice", niceness.append)
    return moments


async def test_it_gives_way_between_callbacks_of_one_turn(yielded: list[float]) -> None:
    loop = asyncio.get_running_loop()
    done: list[int] = []

    def work(number: int) -> None:
        done.append(number)
        time.sleep(0.001)

    give_way(loop)
    for number in range(TURNS):
        loop.call_soon(work, number)
    await asyncio.sleep(0)
    assert done == list(range(TURNS)), "all of them, in their order, in one turn"
    assert len(yielded) >= TURNS


async def test_what_takes_no_time_is_not_held_up(yielded: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "perf_counter", lambda: 7.0)
    give_way(asyncio.get_running_loop())
    for _ in range(TURNS):
        await asyncio.sleep(0)
    assert len(yielded) == 1


async def test_nothing_that_is_due_is_lost(yielded: list[float]) -> None:
    loop = asyncio.get_running_loop()
    done: list[str] = []
    loop.call_soon(done.append, "before")
    give_way(loop)
    loop.call_soon(done.append, "after")
    await asyncio.sleep(0)
    assert done == ["before", "after"]


def test_another_loop_is_left_alone(yielded: list[float]) -> None:
    class Other:
        """None of asyncio's."""

    with capture_logs() as logs:
        give_way(cast(asyncio.AbstractEventLoop, Other()))
    assert [line["loop"] for line in logs] == ["Other"]
    assert yielded == []
