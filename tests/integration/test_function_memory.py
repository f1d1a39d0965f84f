"""How many functions run at once by the memory that they are expected to take: the same in both that run functions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from integration.conftest import Installation, front_of
from support.client import Client
from support.runner import write_function
from support.server import ServerProcess
from support.wrapper import WrapperProcess

LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
LARGE = LIST + b"#" * 3_000_000
"""More than a pipe holds: the process is still there when its output is read."""
IMAGE = "example.com/counts:v1"

# Says how many there were at once: as many as happen to run, or, when there is a file `together`, three.
COUNTS = """#!/bin/sh
cd {directory}
list=$(cat); echo $$ >>running
while [ -e together ] && [ $(wc -l <running) -lt 3 ]; do sleep 0.05; done
sleep 0.2; wc -l <running >&2
[ -e together ] || sed -i /^$$\\$/d running
echo "$list"
"""

Start = Callable[..., tuple[ServerProcess, str]]


@pytest.fixture(params=["python", "front", "wrapper"])
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Start]:
    """A server of the function, four at once, with further flags; and the function's image."""
    script = COUNTS.format(directory=tmp_path)
    with ExitStack() as stack:

        def of_the_runner(*flags: str) -> tuple[ServerProcess, str]:
            installation = Installation(tmp_path, stack, front=front_of(request.param))
            image = installation.add("counts", script)
            return installation.start("--max-parallel-executions=4", *flags), image

        def of_a_wrapper(*flags: str) -> tuple[ServerProcess, str]:
            program: Path = request.getfixturevalue("wrapper_server")
            function = write_function(tmp_path, "function", script)
            flags = ("--max-parallel=4", *flags, "--", str(function))
            return stack.enter_context(WrapperProcess(*flags, program=str(program))), IMAGE

        yield of_a_wrapper if request.param == "wrapper" else of_the_runner


async def three_at_once(client: Client, image: str, resource_list: bytes) -> list[bytes]:
    answers = await asyncio.gather(*(client.evaluate(image, resource_list) for _ in range(3)))
    assert [(answer.code, answer.resource_list.strip()) for answer in answers] == [("OK", resource_list.strip())] * 3
    return [answer.log.strip() for answer in answers]


async def test_calls_take_turns_while_much_is_expected_and_run_together_once_it_is_known(
    start: Start, tmp_path: Path
) -> None:
    server, image = start("--max-function-memory=100000000")
    async with Client(server.address) as client:
        assert await three_at_once(client, image, LARGE) == [b"1"] * 3, "330 MB are expected of a stranger"
        (tmp_path / "together").touch()
        assert await three_at_once(client, image, LARGE) == [b"3"] * 3, "it took a few"


async def test_small_calls_run_together_from_the_first(start: Start, tmp_path: Path) -> None:
    server, image = start("--max-function-memory=100000000")
    (tmp_path / "together").touch()
    async with Client(server.address) as client:
        assert await three_at_once(client, image, LIST) == [b"3"] * 3
