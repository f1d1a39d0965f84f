"""All of tests/vectors against the exec runtime and the wrapper server, over real gRPC, with real processes."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import yaml

from support.client import Answer, Client, answer_of
from support.front import built_front
from support.metrics import Metrics
from support.processes import children, command_lines, eventually, pipes
from support.runner import RunnerProcess, write_config, write_function
from support.server import ServerProcess
from support.wrapper import MeteredWrapper, WrapperProcess

VECTORS = Path(__file__).parent.parent / "vectors"
DEFAULT_LIMIT = 6291456

FIELDS = {
    "description", "runtimes", "image", "function", "input", "max_message_bytes", "deadline_seconds",
    "cancel_after_seconds", "expect",
}  # fmt: skip
EXPECTATIONS = {
    "code", "resource_list", "log", "log_bytes", "log_contains", "message", "message_contains", "message_excludes",
    "reason", "gone",
}  # fmt: skip


@dataclass(frozen=True)
class Vector:
    name: str
    data: dict[str, Any]

    @property
    def image(self) -> str:
        return cast(str, self.data.get("image", self.own_image))

    @property
    def own_image(self) -> str:
        return f"example.com/vectors/{self.name}:v1"

    @property
    def limit(self) -> int:
        return cast(int, self.data.get("max_message_bytes", DEFAULT_LIMIT))

    def input(self) -> bytes:
        source = self.data.get("input")
        if source is None:
            return (VECTORS / "inputs" / "small.yaml").read_bytes()
        if "text" in source:
            return cast(str, source["text"]).encode()
        head, item = ((VECTORS / "inputs" / f"{part}.yaml").read_bytes() for part in ("head", "item"))
        size = cast(int, source["size"])
        return head + item * -(-(size - len(head)) // len(item))

    def install(self, directory: Path) -> None:
        function = self.data["function"]
        if function.get("missing"):
            return
        if function.get("directory"):
            (directory / self.name).mkdir(parents=True)
            return
        content = function["script"] if "script" in function else base64.b64decode(function["bytes"])
        write_function(directory, self.name, content, int(function.get("mode", "0755"), 8))


def load_vectors() -> list[Vector]:
    return [Vector(path.stem, yaml.safe_load(path.read_text())) for path in sorted(VECTORS.glob("*.yaml"))]


ALL = load_vectors()


def of(runtime: str) -> list[Vector]:
    return [vector for vector in ALL if runtime in vector.data.get("runtimes", ["exec", "wrapper"])]


class Runners:
    """One runner for each size limit that the vectors ask for, with all their functions, and with these flags."""

    def __init__(self, directory: Path, *flags: str) -> None:
        self._directory = directory
        self._flags = flags
        for vector in of("exec"):
            vector.install(directory / "functions")
        write_config(directory / "config.yaml", {vector.name: [vector.own_image] for vector in of("exec")})
        self.started: dict[int, RunnerProcess] = {}
        self.metrics: dict[int, Metrics] = {}

    def for_vector(self, vector: Vector) -> RunnerProcess:
        if vector.limit not in self.started:
            metrics = self.metrics[vector.limit] = Metrics()
            self.started[vector.limit] = RunnerProcess(
                f"--max-request-body-size={vector.limit}",
                f"--functions={self._directory / 'functions'}",
                f"--config={self._directory / 'config.yaml'}",
                *self._flags,
                environment=metrics.environment,
            )
        return self.started[vector.limit]

    def stop(self) -> None:
        for runner in self.started.values():
            runner.__exit__(None)


@pytest.fixture(scope="module", params=["python", "front"])
def runners(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runners]:
    """Python has their port, and then the front has it."""
    flags = [f"--front={built_front()}"] if request.param == "front" else []
    pool = Runners(tmp_path_factory.mktemp("vectors"), *flags)
    yield pool
    pool.stop()


@pytest.mark.parametrize("vector", of("exec"), ids=lambda vector: vector.name)
async def test_vector(vector: Vector, runners: Runners) -> None:
    await try_vector(vector, runners.for_vector(vector))


@pytest.mark.parametrize("vector", of("wrapper"), ids=lambda vector: vector.name)
async def test_vector_in_the_wrapper(vector: Vector, tmp_path: Path, wrapper_server: Path) -> None:
    vector.install(tmp_path)
    flags = (f"--max-request-body-size={vector.limit}", "--standby=0")
    with WrapperProcess(*flags, "--", str(tmp_path / vector.name), program=str(wrapper_server)) as wrapper:
        await try_vector(vector, wrapper)
        await has_nothing_left(wrapper)


@pytest.mark.parametrize("vector", of("wrapper"), ids=lambda vector: vector.name)
async def test_vector_in_the_wrapper_with_standby(vector: Vector, tmp_path: Path, wrapper_server: Path) -> None:
    """The same answer, by a process that waited for its input, where the function lets itself be kept waiting."""
    vector.install(tmp_path)
    flags = (f"--max-request-body-size={vector.limit}", "--standby=1", "--verbosity=3")
    with MeteredWrapper(*flags, "--", str(tmp_path / vector.name), program=str(wrapper_server)) as wrapper:
        await wrapper.has_settled()
        answer = await answer_to(vector, wrapper)
        await check(vector, answer)
        if answer.reason not in NEVER_STARTED:
            await eventually(
                lambda: wrapper.executions("standby") + wrapper.executions("on-demand") > 0, what="counted"
            )
            assert wrapper.executions("standby") == 1 or wrapper.is_marked()
            # What reads its input before it does anything else is always kept.
            assert not (reads_first(vector) and wrapper.is_marked())
        await eventually(lambda: len(children(wrapper.pid)) <= 1, what="all children reaped, but for the next one")
        assert await asyncio.to_thread(wrapper.stop) == 0
    assert not [line for line in wrapper.lines if "level=error" in line]
    await is_gone(vector)


NEVER_STARTED = {"CANNOT_EXECUTE", "MESSAGE_TOO_LARGE"}


def reads_first(vector: Vector) -> bool:
    """Whether the first thing that a function does is to read its input."""
    script = str(vector.data["function"].get("script", ""))
    return any(script.startswith(f"#!/bin/sh\n{first}") for first in ("cat\n", "cat >/dev/null\n", "exec cat\n"))


async def try_vector(vector: Vector, server: ServerProcess) -> None:
    await check(vector, await answer_to(vector, server))
    await is_gone(vector)


async def answer_to(vector: Vector, server: ServerProcess) -> Answer:
    assert set(vector.data) <= FIELDS
    assert set(vector.data["expect"]) <= EXPECTATIONS
    limits = (("grpc.max_receive_message_length", vector.limit), ("grpc.max_send_message_length", -1))
    async with Client(server.address, limits) as client:
        call = client.start(vector.image, vector.input(), timeout=vector.data.get("deadline_seconds", 60))
        if "cancel_after_seconds" in vector.data:
            await asyncio.sleep(vector.data["cancel_after_seconds"])
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            return Answer(code="CANCELLED")
        return await answer_of(call)


async def is_gone(vector: Vector) -> None:
    gone = vector.data["expect"].get("gone", [])
    await eventually(lambda: not set(gone) & set(command_lines()), what=f"{gone} gone")


async def check(vector: Vector, answer: Answer) -> None:
    expected = vector.data["expect"]
    assert answer.code == expected["code"], answer
    assert answer.trailers_size <= 8000
    wanted_list = expected.get("resource_list")
    if wanted_list == "input":
        assert answer.resource_list == vector.input()
    elif wanted_list is not None:
        assert answer.resource_list.decode() == wanted_list["text"]
    if "log" in expected:
        assert answer.log.decode() == expected["log"]
    if "log_bytes" in expected:
        assert answer.log == base64.b64decode(expected["log_bytes"])
    for part in expected.get("log_contains", []):
        assert part in answer.log.decode()
    if "message" in expected:
        assert answer.message == expected["message"].replace("${IMAGE}", vector.image)
    for part in expected.get("message_contains", []):
        assert part.replace("${IMAGE}", vector.image) in answer.message
    for part in expected.get("message_excludes", []):
        assert part not in answer.message
    if "reason" in expected:
        assert answer.reason == expected["reason"]
        if answer.code != "INVALID_ARGUMENT":
            assert answer.facts is not None


async def test_nothing_is_left_after_all_of_them(runners: Runners) -> None:
    """Runs last in this module: no process, no pipe, no log line of a defect in any of the runners."""
    assert runners.started
    for runner in runners.started.values():
        await has_nothing_left(runner)


async def has_nothing_left(server: ServerProcess) -> None:
    parts = server.parts if isinstance(server, RunnerProcess) else [server.pid]
    await eventually(lambda: {child for part in parts for child in children(part)} <= {*parts}, what="all reaped")
    # The stderr of each is one, and by another one knows that its front lives; everything else would belong to a call.
    await eventually(lambda: sum(map(pipes, parts)) <= 2 * len(parts) - 1, what="all pipes closed")
    assert not [line for line in server.lines if "level=error" in line]
