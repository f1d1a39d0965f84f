"""Warm-up: all functions, a few at a time, failures reported, one run at a time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from krm_runner.core.backoff import Backoff
from krm_runner.core.errors import FunctionNotFoundError
from krm_runner.core.pod_cache_config import FunctionConfig
from krm_runner.files import watched_file
from krm_runner.pods.function_limits import FunctionLimits
from krm_runner.pods.warm_up import WarmUp
from unit.test_function_limits import limits_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.yaml"


@pytest.fixture
def logs() -> Iterator[list[structlog.typing.EventDict]]:
    with structlog.testing.capture_logs() as lines:
        yield lines


def functions_in(path: Path, *names: str, extra: str = "") -> FunctionLimits:
    path.write_text((listed(*names) + extra) or "[]")
    functions = limits_of(path)
    functions.load()
    return functions


def listed(*names: str) -> str:
    return "\n".join(f"- {{name: {name}}}" for name in names)


class Starts:
    """Starts functions when it is told to."""

    def __init__(self, *failing: Exception) -> None:
        self.begun: list[str] = []
        self.ended: list[str] = []
        self.cancelled: list[str] = []
        self.under_way = 0
        self._failing = {str(error.args[0]): error for error in failing}
        self._may_end = asyncio.Semaphore(0)
        self._moved = asyncio.Condition()

    async def __call__(self, function: FunctionConfig) -> None:
        self.begun.append(function.name)
        self.under_way += 1
        await self._tell()
        try:
            await self._may_end.acquire()
        except asyncio.CancelledError:
            self.cancelled.append(function.name)
            raise
        finally:
            self.under_way -= 1
        self.ended.append(function.name)
        await self._tell()
        if function.name in self._failing:
            raise self._failing[function.name]

    def let(self, count: int) -> None:
        for _ in range(count):
            self._may_end.release()

    async def until_begun(self, count: int) -> None:
        async with asyncio.timeout(10), self._moved:
            await self._moved.wait_for(lambda: len(self.begun) >= count)

    async def _tell(self) -> None:
        async with self._moved:
            self._moved.notify_all()


async def test_all_functions_a_few_at_a_time(path: Path, logs: list[structlog.typing.EventDict]) -> None:
    starts = Starts()
    warm_up = WarmUp(functions_in(path, *"abcdefg"), starts, at_once=3)
    run = asyncio.create_task(warm_up.run())
    for done in range(5):
        await starts.until_begun(3 + done)
        assert (starts.under_way, len(starts.begun)) == (3, 3 + done)
        assert not warm_up.done.is_set()
        starts.let(1)
    starts.let(2)
    await run
    assert warm_up.done.is_set()
    assert starts.begun == list("abcdefg")
    (line,) = logs
    assert (line["event"], line["functions"], line["failed"]) == ("warm-up done", 7, 0)
    assert line["seconds"] >= 0


async def test_failures_are_logged_and_hold_up_nobody(path: Path, logs: list[structlog.typing.EventDict]) -> None:
    missing = FunctionNotFoundError("b")
    missing.args = ("b", str(missing))
    starts = Starts(missing, ValueError("c"))
    starts.let(4)
    warm_up = WarmUp(functions_in(path, *"abcd"), starts, at_once=1)
    await warm_up.run()
    assert starts.ended == list("abcd")
    assert warm_up.done.is_set()
    known, unknown, end = logs
    assert (known["log_level"], known["image"], known["reason"]) == ("warning", "b", "FUNCTION_NOT_FOUND")
    assert "not found" in known["error"]
    assert (unknown["log_level"], unknown["image"], repr(unknown["exc_info"])) == ("error", "c", "ValueError('c')")
    assert (end["functions"], end["failed"]) == (2, 2)


async def test_what_must_be_ready_is_tried_again_until_it_is(
    path: Path, logs: list[structlog.typing.EventDict]
) -> None:
    tried: list[str] = []

    async def start(function: FunctionConfig) -> None:
        tried.append(function.name)
        if function.name == "b" or tried.count("c") < 3:
            raise FunctionNotFoundError(function.name)

    functions = functions_in(path, *"b", extra="\n- {name: c, minReadyPods: 1}")
    async with asyncio.timeout(10):
        await WarmUp(functions, start, again=Backoff(0.001, 0.01)).run()
    assert tried == ["b", "c", "c", "c"], "nobody insists on the other one"
    assert [line["failed"] for line in logs if line["event"] == "warm-up done"] == [2, 1, 0]


async def test_a_new_run_ends_the_wait_for_another_try(path: Path) -> None:
    tried: list[str] = []
    failed = asyncio.Event()

    async def start(function: FunctionConfig) -> None:
        tried.append(function.name)
        if len(tried) == 1:
            failed.set()
            raise FunctionNotFoundError(function.name)

    warm_up = WarmUp(functions_in(path, extra="- {name: c, minReadyPods: 1}"), start, again=Backoff(3600, 3600))
    run = asyncio.create_task(warm_up.run())
    async with asyncio.timeout(10):
        await failed.wait()
        await warm_up.done.wait()
        await warm_up.run()
        await run
    assert tried == ["c", "c"]


async def test_nothing_to_do(path: Path, logs: list[structlog.typing.EventDict]) -> None:
    warm_up = WarmUp(functions_in(path), Starts())
    await warm_up.run()
    assert (warm_up.done.is_set(), logs) == (True, [])


async def test_asked_during_a_run_makes_one_more_with_what_is_new(
    path: Path, monkeypatch: pytest.MonkeyPatch, logs: list[structlog.typing.EventDict]
) -> None:
    monkeypatch.setattr(watched_file, "_LOOK_INTERVAL", 0.01)
    functions, starts = functions_in(path, "a"), Starts()
    warm_up = WarmUp(functions, starts)
    changed = asyncio.Event()
    watch = asyncio.create_task(functions.watch(changed.set))
    run = asyncio.create_task(warm_up.run())
    await starts.until_begun(1)
    new = path.with_suffix(".new")
    new.write_text(listed("a", "b"))
    os.replace(new, path)
    async with asyncio.timeout(10):
        await changed.wait()
    for _ in range(3):
        await warm_up.run()
    assert starts.begun == ["a"]
    starts.let(3)
    await run
    assert starts.begun == ["a", "a", "b"]
    assert [line["functions"] for line in logs if line["event"] == "warm-up done"] == [1, 2]
    watch.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watch


async def test_asked_after_a_run_runs_again(path: Path) -> None:
    starts = Starts()
    starts.let(2)
    warm_up = WarmUp(functions_in(path, "a"), starts)
    await warm_up.run()
    await warm_up.run()
    assert starts.ended == ["a", "a"]


async def test_cancelled_it_leaves_nothing_behind_and_can_run_again(
    path: Path, logs: list[structlog.typing.EventDict]
) -> None:
    starts = Starts()
    warm_up = WarmUp(functions_in(path, *"abc"), starts, at_once=2)
    run = asyncio.create_task(warm_up.run())
    await starts.until_begun(2)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (sorted(starts.cancelled), starts.under_way, logs) == (["a", "b"], 0, [])
    assert not warm_up.done.is_set()
    starts.let(3)
    await warm_up.run()
    assert starts.ended == ["a", "b", "c"]
    assert warm_up.done.is_set()
