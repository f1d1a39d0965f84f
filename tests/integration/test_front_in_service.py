"""The runner and its front as one service: who has the port, and what becomes of one when the other is gone."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
from pathlib import Path

import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse

from integration.conftest import Installation
from support.client import Client, answer_of, watch_health
from support.processes import command_lines, eventually, is_alive, name_of

LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"

pytestmark = pytest.mark.parametrize("installation", ["front"], indirect=True)


async def test_the_front_has_the_port_and_python_the_log(installation: Installation) -> None:
    image = installation.add("copy", "#!/bin/sh\nexec cat\n")
    runner = installation.start()
    runner.wait_for_line(r"event=serving .*front=\S+/krm-front ")
    own, front = runner.parts
    assert (name_of(front), len(runner.parts)) == ("krm-front", 2)
    async with Client(runner.address) as client:
        assert (await client.evaluate(image, LIST)).resource_list == LIST
    runner.wait_for_line(rf"event=evaluated image={image} runtime=exec code=OK")
    assert not listening(own)
    assert runner.port in listening(front)


def listening(pid: int) -> set[int]:
    """The ports on which a process listens, by the kernel's own list."""
    own = {link.readlink().name for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()}
    lines = [
        line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]
    ]
    return {int(line[1].rpartition(":")[2], 16) for line in lines if line[3] == "0A" and f"socket:[{line[9]}]" in own}


async def test_a_front_that_is_killed_ends_the_service_and_leaves_no_function(installation: Installation) -> None:
    image = installation.add("slow", "#!/bin/sh\nsetsid sh -c 'sleep 5401 &'\nsleep 5402\n")
    runner = installation.start()
    runner.wait_for_line("event=serving")
    async with Client(runner.address) as client:
        under_way = client.start(image, LIST)
        await eventually(lambda: "sleep 5402" in command_lines(), what="the function runs")
        os.kill(runner.parts[1], signal.SIGKILL)
        assert (await answer_of(under_way)).code == "UNAVAILABLE"
    assert await asyncio.to_thread(runner.wait) == 1
    assert any("the front has ended" in line and "killed by SIGKILL" in line for line in runner.lines)
    await eventually(lambda: not {"sleep 5401", "sleep 5402"} & {*command_lines()}, what="its functions are gone")


async def test_signals_are_the_runners_and_a_front_that_gets_them_serves_on(installation: Installation) -> None:
    image = installation.add("copy", "#!/bin/sh\nexec cat\n")
    runner = installation.start("--shutdown-delay=0s")
    runner.wait_for_line("event=serving")
    async with Client(runner.address) as client:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(runner.parts[1], number)
        assert (await client.evaluate(image, LIST)).code == "OK"
    assert await asyncio.to_thread(runner.stop) == 0


async def test_a_runner_that_stands_still_is_told_to_probes_until_it_goes_on(installation: Installation) -> None:
    image = installation.add("copy", "#!/bin/sh\nexec cat\n")
    runner = installation.start()
    runner.wait_for_line("event=serving")
    async with Client(runner.address) as client:
        assert (await client.evaluate(image, LIST)).code == "OK"
        statuses = watch_health(client.channel)
        assert (await anext(statuses)).status == HealthCheckResponse.SERVING
        os.kill(runner.pid, signal.SIGSTOP)
        try:
            assert (await anext(statuses)).status == HealthCheckResponse.NOT_SERVING
        finally:
            os.kill(runner.pid, signal.SIGCONT)
        assert (await anext(statuses)).status == HealthCheckResponse.SERVING
        # It serves for as long as it says something, calls or not.
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(statuses), 17)
    runner.wait_for_line("the runner says nothing any more")


async def test_a_runner_that_is_killed_takes_front_and_functions_along(installation: Installation) -> None:
    image = installation.add("slow", "#!/bin/sh\nsleep 5403 & sleep 5404\n")
    runner = installation.start()
    runner.wait_for_line("event=serving")
    front = runner.parts[1]
    async with Client(runner.address) as client:
        under_way = client.start(image, LIST)
        await eventually(lambda: "sleep 5404" in command_lines(), what="the function runs")
        runner.process.kill()
        assert (await answer_of(under_way)).code in ("UNAVAILABLE", "CANCELLED")
    await asyncio.to_thread(runner.wait)
    await eventually(lambda: not is_alive(front), what="the front is gone")
    await eventually(lambda: not {"sleep 5403", "sleep 5404"} & {*command_lines()}, what="its functions are gone")


async def test_a_front_that_cannot_be_used_is_told_before_anything_starts(installation: Installation) -> None:
    for flags, words in [
        (["--front=/no/such/front"], "there is no such file"),
        (["--front=/etc/passwd"], "it is not executable"),
    ]:
        with pytest.raises(AssertionError, match=words):
            installation.start(*flags)


async def test_the_fronts_own_lines_have_the_format_of_the_log_and_it_accepts_again_when_it_can(
    installation: Installation,
) -> None:
    image = installation.add("copy", "#!/bin/sh\nexec cat\n")
    runner = installation.start("--log-format=json")
    runner.wait_for_line('"event": "serving"')
    front = runner.parts[1]
    soft, hard = resource.prlimit(front, resource.RLIMIT_NOFILE)
    # Its first three are always open, so that it gets no other.
    resource.prlimit(front, resource.RLIMIT_NOFILE, (3, hard))
    async with Client(runner.address) as client:
        call = client.start(image, LIST)
        line = await asyncio.to_thread(runner.wait_for_line, "a connection cannot be accepted")
        said = json.loads(line.string)
        assert (said["level"], said["event"]) == ("warning", "a connection cannot be accepted")
        assert "Too many open files" in said["error"]
        resource.prlimit(front, resource.RLIMIT_NOFILE, (soft, hard))
        assert (await answer_of(call)).code == "OK"
