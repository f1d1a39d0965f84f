"""Limits of functions: the flags', and the file's over them, as the file changes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from krm_runner.core.errors import ConfigurationError
from krm_runner.core.pool_terms import Limits
from krm_runner.core.resources import NO_RESOURCES, Resources
from krm_runner.files import watched_file
from krm_runner.pods.function_limits import FunctionLimits, FunctionRules

PREFIX = "ghcr.io/kptdev/krm-functions-catalog"
DEFAULT = FunctionRules(Limits(waitlist=2, max_pods=1, max_calls=1001, ttl=1800.0), NO_RESOURCES)


def limits_of(path: Path, *, max_queue_length: int = 1000) -> FunctionLimits:
    return FunctionLimits(
        path,
        default_prefix=PREFIX,
        ttl=1800.0,
        max_waitlist_length=2,
        max_parallel_pods=1,
        max_queue_length=max_queue_length,
    )


def replace(path: Path, text: str) -> None:
    """As editors and ConfigMaps do it: never half a file."""
    new = path.with_suffix(".new")
    new.write_text(text)
    os.replace(new, path)


class Watching:
    """A watch under way, and the changes that it told of."""

    def __init__(self, functions: FunctionLimits) -> None:
        self.functions = functions
        self.changes: asyncio.Queue[list[str]] = asyncio.Queue()

    async def next(self) -> list[str]:
        async with asyncio.timeout(10):
            return await self.changes.get()

    def on_change(self) -> None:
        self.changes.put_nowait([function.name for function in self.functions.configured])


@asynccontextmanager
async def watching(functions: FunctionLimits, monkeypatch: pytest.MonkeyPatch) -> AsyncGenerator[Watching]:
    monkeypatch.setattr(watched_file, "_LOOK_INTERVAL", 0.01)
    watch = Watching(functions)
    task = asyncio.create_task(functions.watch(watch.on_change))
    try:
        yield watch
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def test_the_files_limits_count_over_those_of_the_flags(tmp_path: Path) -> None:
    path = tmp_path / "cache.yaml"
    path.write_text(
        "- {name: all, timeToLive: 1m, maxWaitlistLength: 5, maxParallelPodsPerFunction: 3,"
        " resources: {limits: {memory: 1Gi}}}\n- {name: 'some:v1', timeToLive: 2m}\n- {name: none}\n"
    )
    functions = limits_of(path)
    functions.load()
    assert functions.of(f"{PREFIX}/all:latest") == FunctionRules(
        Limits(waitlist=5, max_pods=3, max_calls=1003, ttl=60.0), Resources({}, {"memory": "1Gi"})
    )
    assert functions.of(f"{PREFIX}/some:v1").limits == Limits(waitlist=2, max_pods=1, max_calls=1001, ttl=120.0)
    assert functions.of(f"{PREFIX}/none:latest") == DEFAULT
    assert functions.of(f"{PREFIX}/some:v2") == DEFAULT
    assert [function.name for function in functions.configured] == ["all", "some:v1", "none"]


def test_whoever_wants_pods_ready_allows_as_many(tmp_path: Path) -> None:
    path = tmp_path / "cache.yaml"
    path.write_text("- {name: three, minReadyPods: 3}\n- {name: one, minReadyPods: 1, maxParallelPodsPerFunction: 4}")
    functions = limits_of(path)
    functions.load()
    three, one = (functions.of(f"{PREFIX}/{name}:latest").limits for name in ("three", "one"))
    assert (three.min_ready, three.max_pods, one.min_ready, one.max_pods) == (3, 3, 1, 4)


def test_a_queue_of_nobody_still_serves_one_call_per_pod(tmp_path: Path) -> None:
    assert limits_of(tmp_path / "none", max_queue_length=0).of("any").limits.max_calls == 1


def test_a_missing_file_is_one_warning(tmp_path: Path) -> None:
    functions = limits_of(tmp_path / "none.yaml")
    with structlog.testing.capture_logs() as logs:
        functions.load()
    (line,) = logs
    assert (line["log_level"], line["path"]) == ("warning", str(tmp_path / "none.yaml"))
    assert (functions.configured, functions.of("any")) == ((), DEFAULT)


@pytest.mark.parametrize("text", ["", "# later\n", "[]"])
def test_an_empty_file_is_fine_at_the_start(tmp_path: Path, text: str) -> None:
    path = tmp_path / "cache.yaml"
    path.write_text(text)
    functions = limits_of(path)
    functions.load()
    assert functions.configured == ()


@pytest.mark.parametrize(
    ("text", "why"), [("text", "must be a list of functions"), ("- {name: X/Y}\n- 7", "no valid repository name")]
)
def test_a_broken_file_refuses_to_start_with_one_line(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "cache.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError) as refusal:
        limits_of(path).load()
    assert str(path) in str(refusal.value)
    assert why in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_file_that_cannot_be_read_refuses_to_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*: Is a directory"):
        limits_of(tmp_path).load()


def test_what_is_odd_is_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "cache.yaml"
    path.write_text("- {name: a}\n- {name: a}\n")
    with structlog.testing.capture_logs() as logs:
        limits_of(path).load()
    assert [line["event"] for line in logs] == [f'{path}: [1]: "a" stands twice; it keeps its first entry']


async def test_a_changed_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache.yaml"
    path.write_text("- {name: a, timeToLive: 1m}")
    functions = limits_of(path)
    functions.load()
    async with watching(functions, monkeypatch) as watch:
        replace(path, "- {name: b, timeToLive: 2m}")
        assert await watch.next() == ["b"]
        assert functions.of(f"{PREFIX}/a:latest") == DEFAULT
        assert functions.of(f"{PREFIX}/b:latest").limits.ttl == 120.0
        replace(path, "[]")
        assert await watch.next() == []


async def test_another_file_that_says_the_same_is_no_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache.yaml"
    path.write_text("- {name: a, timeToLive: 1m}")
    functions = limits_of(path)
    functions.load()
    with structlog.testing.capture_logs() as logs:
        async with watching(functions, monkeypatch) as watch:
            replace(path, "- {name: a, timeToLive: 60s}  # one minute")
            await logged(logs, "info")
            replace(path, "- {name: b}")
            assert await watch.next() == ["b"]
    assert watch.changes.empty()


async def test_a_file_that_appears_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache.yaml"
    functions = limits_of(path)
    functions.load()
    async with watching(functions, monkeypatch) as watch:
        replace(path, "- {name: a}")
        assert await watch.next() == ["a"]


async def test_swapped_links_of_a_configmap_are_a_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "ab":
        (tmp_path / name).mkdir()
        (tmp_path / name / "cache.yaml").write_text(f"- {{name: {name}}}")
    (tmp_path / "data").symlink_to("a")
    (tmp_path / "cache.yaml").symlink_to("data/cache.yaml")
    functions = limits_of(tmp_path / "cache.yaml")
    functions.load()
    async with watching(functions, monkeypatch) as watch:
        (tmp_path / "data.new").symlink_to("b")
        os.replace(tmp_path / "data.new", tmp_path / "data")
        assert await watch.next() == ["b"]


@pytest.mark.parametrize(
    ("text", "why"),
    [("- {name: X/Y}", "no valid repository name"), ("\n", "is empty; a file without functions is written as []")],
)
async def test_a_broken_new_file_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, why: str
) -> None:
    path = tmp_path / "cache.yaml"
    path.write_text("- {name: a, timeToLive: 1m}")
    functions = limits_of(path)
    functions.load()
    with structlog.testing.capture_logs() as logs:
        async with watching(functions, monkeypatch) as watch:
            replace(path, text)
            await logged(logs, "error")
            assert functions.of(f"{PREFIX}/a:latest").limits.ttl == 60.0
            replace(path, "- {name: b}")
            assert await watch.next() == ["b"]
    (line,) = [line for line in logs if line["log_level"] == "error"]
    assert line["event"] == "file not read again, the old version stays"
    assert why in line["error"]


async def test_a_file_that_is_gone_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "cache.yaml"
    path.write_text("- {name: a, timeToLive: 1m}")
    functions = limits_of(path)
    functions.load()
    with structlog.testing.capture_logs() as logs:
        async with watching(functions, monkeypatch) as watch:
            path.unlink()
            await logged(logs, "error")
            assert functions.of(f"{PREFIX}/a:latest").limits.ttl == 60.0
            replace(path, "- {name: b}")
            assert await watch.next() == ["b"]
    assert [line["error"] for line in logs if line["log_level"] == "error"] == [
        f"cannot read {path}: No such file or directory"
    ]


async def logged(logs: list[structlog.typing.EventDict], level: str) -> None:
    async with asyncio.timeout(10):
        while not any(line["log_level"] == level for line in logs):
            await asyncio.sleep(0.01)
