"""Fixtures of the integration tests: a runner with functions of the test's own, and a look for leaks."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest

from support.client import Client
from support.front import PlayedRunner, built_front, played_runner
from support.processes import children, eventually
from support.runner import RunnerProcess, write_config, write_function
from support.wrapper import built_wrapper

IMAGE = "example.com/test/{name}:v1"


class Installation:
    """A functions directory, its configuration file, and the runners that serve them."""

    def __init__(self, directory: Path, stack: ExitStack, front: str) -> None:
        self.functions = directory / "functions"
        self.functions.mkdir()
        self.config = directory / "config.yaml"
        self._images: dict[str, list[str]] = {}
        self._stack = stack
        self._front = front

    @property
    def flags(self) -> tuple[str, ...]:
        """Of a runner with these functions."""
        return (f"--functions={self.functions}", f"--config={self.config}", f"--front={self._front}")

    def add(self, name: str, script: str, mode: int = 0o755) -> str:
        """Install a function; its image."""
        write_function(self.functions, name, script, mode)
        image = IMAGE.format(name=name)
        self._images[name] = [image]
        write_config(self.config, self._images)
        return image

    def start(
        self, *flags: str, environment: dict[str, str] | None = None, pass_fds: tuple[int, ...] = ()
    ) -> RunnerProcess:
        """Start a runner; it is ended with the test."""
        if not self.config.exists():
            write_config(self.config, self._images)
        runner = RunnerProcess(*self.flags, *flags, environment=environment, pass_fds=pass_fds)
        return self._stack.enter_context(runner)


@pytest.fixture(scope="session")
def front() -> Path:
    """The program."""
    return built_front()


@pytest.fixture
async def runner(front: Path) -> AsyncIterator[PlayedRunner]:
    """One that a test plays, with the real front."""
    async with played_runner(front) as played:
        yield played


@pytest.fixture
async def client(runner: PlayedRunner) -> AsyncIterator[Client]:
    """A caller of that front."""
    async with Client(runner.address) as caller:
        yield caller


@pytest.fixture(params=["python", "front"])
def installation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Installation]:
    """Every test of the service twice: Python has the port, and the front has it."""
    with ExitStack() as stack:
        yield Installation(tmp_path, stack, front=front_of(request.param))


@pytest.fixture
def fronted(tmp_path: Path) -> Iterator[Installation]:
    """A service whose port krm-front serves."""
    with ExitStack() as stack:
        yield Installation(tmp_path, stack, front=front_of("front"))


def front_of(way: Literal["python", "front"]) -> str:
    """The flag's value, by who is to have the port."""
    if way == "python":
        return "off"
    built_front()
    return "auto"


@pytest.fixture(scope="session")
def wrapper_server() -> Path:
    """The wrapper server's program."""
    return built_wrapper()


@pytest.fixture
async def nothing_open() -> AsyncIterator[None]:
    """Fails the test when it leaves a task or a descriptor behind in this process."""
    tasks = asyncio.all_tasks()
    descriptors = len(os.listdir("/proc/self/fd"))
    yield
    assert asyncio.all_tasks() - {asyncio.current_task()} <= tasks
    # A transport that is closed lets go of its descriptor in a later turn of the loop.
    await eventually(lambda: len(os.listdir("/proc/self/fd")) <= descriptors, what="no descriptor is left open")


@pytest.fixture
async def no_leaks(nothing_open: None) -> AsyncIterator[None]:
    """Fails the test when it leaves a task, a descriptor or a child process behind in this process."""
    # Once it is a reaper, this process inherits what runners leave that other tests kill.
    before = set(children(os.getpid()))
    yield
    assert set(children(os.getpid())) <= before
