"""A process that cannot be killed: the call is answered, the place stays taken, and the log says why."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.client import Client, answer_of
from support.front import built_front
from support.machine import missing
from support.processes import command_lines, command_of, eventually
from support.runner import RunnerProcess, write_config, write_function
from support.server import ServerProcess
from support.wrapper import WrapperProcess

IMAGE = "example.com/stubborn:v1"
LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
# The server has no CAP_KILL, so it may not signal processes of another user.
WITHOUT_KILL = ("setpriv", "--bounding-set=-kill", "--inh-caps=-kill", "--")
SLEEP = "sleep 3051"
OF_ANOTHER_USER = f"setpriv --reuid=65534 --clear-groups {SLEEP}"
CASES = {
    "in-the-group": f"{OF_ANOTHER_USER} & sleep 3052",
    "outside-the-group": f"setsid {OF_ANOTHER_USER} & sleep 3052",
    "of-a-success": f"cat; {OF_ANOTHER_USER} >/dev/null 2>&1 & until [ $(stat -c %u /proc/$!) = 65534 ]; do :; done",
}


@pytest.fixture(params=["python", "front", "wrapper"])
def server(request: pytest.FixtureRequest, tmp_path: Path, wrapper_server: Path) -> Iterator[ServerProcess]:
    if os.geteuid() != 0:
        missing("not root: cannot start processes of another user")
    cases = "".join(f"'# {name}') {act};;\n" for name, act in CASES.items())
    script = f"#!/bin/sh\nread -r case\ncase $case in\n{cases}*) cat;;\nesac\n"
    program = write_function(tmp_path / "functions", "stubborn", script)
    started: ServerProcess
    if request.param == "wrapper":
        arguments = ("--max-parallel=1", "--standby=0", "--", str(program))
        started = WrapperProcess(*arguments, program=str(wrapper_server), prefix=WITHOUT_KILL)
    else:
        config = write_config(tmp_path / "config.yaml", {"stubborn": [IMAGE]})
        flags = ("--max-parallel-executions=1", f"--functions={program.parent}", f"--config={config}")
        front = [f"--front={built_front()}"] if request.param == "front" else []
        started = RunnerProcess(*flags, *front, prefix=WITHOUT_KILL)
    with started:
        yield started


@pytest.mark.parametrize("case", CASES)
async def test_it_is_reported_and_keeps_its_place_until_it_ends(server: ServerProcess, case: str) -> None:
    async with Client(server.address) as client:
        call = client.start(IMAGE, f"# {case}\n".encode() + LIST, timeout=60)
        await eventually(lambda: SLEEP in command_lines(), what="a process of another user")
        if case == "of-a-success":
            answer = await answer_of(call)
            assert (answer.code, answer.resource_list) == ("OK", LIST), answer.message
        else:
            call.cancel()
        pattern = r"level=error .*cannot be killed .*pids=(\d+) .*function=\S*/stubborn"
        reported = await asyncio.to_thread(server.wait_for_line, pattern)
        assert SLEEP.split() == command_of(int(reported[1])).decode().split("\0")[:-1]
        assert "sleep 3052" not in command_lines()
        assert (await client.evaluate(IMAGE, LIST, timeout=1)).code == "DEADLINE_EXCEEDED", "the place is taken"
        os.kill(int(reported[1]), signal.SIGKILL)
        # Its first line is the one that chooses the case.
        answer = await client.evaluate(IMAGE, b"#\n" + LIST, timeout=60)
        assert (answer.code, answer.resource_list) == ("OK", LIST), answer.message
