"""Faults inside the programs themselves: each ends what cannot go on, with a reason, and nothing else."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from pathlib import Path

import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse

from integration.conftest import Installation
from support.client import Client, answer_of, watch_health
from support.defects import with_defect
from support.metrics import Metrics
from support.processes import children, command_lines, eventually
from support.runner import write_function
from support.wrapper import WrapperProcess

LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
COPY = "#!/bin/sh\nexec cat\n"
FRONT_ALONE = pytest.mark.parametrize("installation", ["front"], indirect=True)

# Both upon SIGHUP.
RAISES = """
from krm_runner.evaluators.function_file import FunctionFile
def read(**_):
    raise RuntimeError("a defect")
async def broken(self, watch=FunctionFile.watch):
    self._read = read
    await watch(self)
FunctionFile.watch = broken
"""
RETURNS = """
from krm_runner.evaluators.function_file import FunctionFile
async def watch(self):
    await self._is_asked.wait()
FunctionFile.watch = watch
"""


@pytest.mark.parametrize(("defect", "why"), [(RAISES, "RuntimeError: a defect"), (RETURNS, "without an error")])
async def test_a_loop_that_ends_ends_the_service_after_its_calls(
    installation: Installation, tmp_path: Path, defect: str, why: str
) -> None:
    gate = tmp_path / "gate"
    image = installation.add("slow", f"#!/bin/sh\nwhile [ ! -e {gate} ]; do sleep 0.05; done\nexec cat\n")
    runner = installation.start("--shutdown-delay=0s", environment=with_defect(tmp_path, defect))
    runner.wait_for_line("event=serving")
    async with Client(runner.address) as client:
        call = client.start(image, LIST)
        await eventually(lambda: len(runner.functions) > 0, what="the function runs")
        statuses = watch_health(client.channel)
        assert (await anext(statuses)).status == HealthCheckResponse.SERVING
        runner.process.send_signal(signal.SIGHUP)
        assert (await anext(statuses)).status == HealthCheckResponse.NOT_SERVING
        gate.touch()
        assert (await answer_of(call)).code == "OK"
    assert await asyncio.to_thread(runner.wait) == 1
    runner.wait_for_line('event="loop ended unexpectedly: the service ends" loop="function configuration"')
    ended = f'krm-runner serve: the loop "function configuration" ended unexpectedly ({why}); its log has more'
    assert runner.lines[-1] == ended


UNREPORTABLE = """
from krm_runner.front.ended import EndedCalls
from krm_runner.front.local_functions import LocalFunctions
def report(self, ended, *, unseen, report=EndedCalls.report):
    if "unlucky" in ended.image:
        raise RuntimeError("a defect")
    report(self, ended, unseen=unseen)
EndedCalls.report = report

from krm_runner.front import calls
def record(*arguments, image, record=calls.CallRecord, **more):
    if "untouchable" in image and more["started"] > 0 and not hasattr(record, "is_broken"):
        record.is_broken = True
        raise RuntimeError("a defect")
    return record(*arguments, image=image, **more)
calls.CallRecord = record
"""


@FRONT_ALONE
async def test_a_record_that_cannot_be_handled_is_logged_and_counted(
    installation: Installation, tmp_path: Path
) -> None:
    lucky, unlucky, untouchable = (installation.add(name, COPY) for name in ("lucky", "unlucky", "untouchable"))
    metrics = Metrics()
    runner = installation.start(environment=metrics.environment | with_defect(tmp_path, UNREPORTABLE))
    assert metrics.values("internal_errors_total", where="front message") == [0]
    async with Client(runner.address) as client:
        assert (await client.evaluate(unlucky, LIST)).code == "OK"
        refused = await client.evaluate(untouchable, LIST)
        assert (refused.code, refused.reason) == ("INTERNAL", "UNEXPECTED")
        assert (await client.evaluate(lucky, LIST)).code == "OK"
    for message, image in (("ended", unlucky), ("call", untouchable)):
        words = f'event="unexpected error" where="front message" message={message} image={re.escape(image)}'
        runner.wait_for_line(words)
    assert any("a defect" in line for line in runner.lines)
    runner.wait_for_line(f"event=evaluated image={re.escape(lucky)} runtime=exec code=OK")
    assert metrics.sum("internal_errors_total", where="front message") == 2
    assert runner.process.poll() is None


@FRONT_ALONE
@pytest.mark.parametrize("place", ["task", "worker"])
async def test_a_panic_of_the_front_ends_it_with_its_functions_and_the_service(
    installation: Installation, place: str
) -> None:
    slow = installation.add("slow", f"#!/bin/sh\nsleep 5411 & sleep 5412 # {place}\n")
    broken = installation.add(f"panic-in-{place}", COPY)
    runner = installation.start()
    runner.wait_for_line("event=serving")
    async with Client(runner.address) as client:
        other = client.start(slow, LIST)
        await eventually(lambda: {"sleep 5411", "sleep 5412"} <= {*command_lines()}, what="the function runs")
        assert (await client.evaluate(broken, LIST)).code == "UNAVAILABLE"
        assert (await answer_of(other)).code == "UNAVAILABLE"
    assert await asyncio.to_thread(runner.wait) == 1
    runner.wait_for_line(r'level=error event="panic: .*message="injected by \S+" location=rust/engine/src/panics\S+')
    runner.wait_for_line(r'event="the front has ended" front=\S+/krm-front how="killed by SIGABRT"')
    await eventually(lambda: not {"sleep 5411", "sleep 5412"} & {*command_lines()}, what="its functions are gone")


FLOOD = """
import asyncio
from krm_runner.front.server import FrontServer
from krm_runner.rpc._generated.front_pb2 import Forget, ToFront
from pathlib import Path
async def beat(self):
    while True:
        await asyncio.sleep(0.01)
        if Path("{gate}").exists():
            self._link.send(ToFront(forget=Forget(standby={{"x" * 1000000: 1}})))
FrontServer.beat = beat
"""


@FRONT_ALONE
async def test_a_front_that_reads_nothing_ends_the_service_before_the_memory_is_full(
    installation: Installation, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    runner = installation.start(environment=with_defect(tmp_path, FLOOD.format(gate=gate)))
    runner.wait_for_line("event=serving")
    os.kill(runner.parts[1], signal.SIGSTOP)
    gate.touch()
    assert await asyncio.to_thread(runner.wait) == 1
    assert re.search(r"krm-front: it does not read its messages: \d+ bytes wait, more than 67108864$", runner.lines[-1])


@pytest.mark.parametrize("place", ["task", "worker"])
async def test_a_panic_in_a_call_of_the_wrapper_costs_that_call_alone(
    wrapper_server: Path, tmp_path: Path, place: str
) -> None:
    gate = tmp_path / "gate"
    function = write_function(
        tmp_path, "function", f"#!/bin/sh\nwhile [ ! -e {gate} ]; do sleep 0.05; done\nexec cat\n"
    )
    flags = ("--standby=0", "--max-parallel=2", "--", str(function))
    with WrapperProcess(*flags, program=str(wrapper_server)) as wrapper:
        async with Client(wrapper.address) as client:
            other = client.start("example.com/other:v1", LIST)
            await eventually(lambda: len(children(wrapper.pid)) == 1, what="the other call runs")
            # More than there are places.
            for _ in range(5):
                answer = await client.evaluate(f"example.com/panic-in-{place}:v1", LIST)
                assert (answer.code, answer.reason) == ("INTERNAL", "UNEXPECTED")
                assert f'function "example.com/panic-in-{place}:v1": unexpected panic' in answer.message
            await eventually(lambda: len(children(wrapper.pid)) == 1, what="their processes are gone")
            gate.touch()
            assert (await answer_of(other)).resource_list == LIST
            assert (await client.evaluate("example.com/other:v1", LIST)).resource_list == LIST
        wrapper.wait_for_line(r'level=error event="panic: .*message="injected by \S+" location=\S+panics')
        wrapper.wait_for_line(rf"event=evaluated image=example.com/panic-in-{place}:v1 code=INTERNAL")


async def test_without_the_thread_of_the_standby_every_call_has_a_process_of_its_own(
    wrapper_server: Path, tmp_path: Path
) -> None:
    function = write_function(tmp_path, "panic-in-standby", COPY)
    with WrapperProcess("--", str(function), program=str(wrapper_server)) as wrapper:
        wrapper.wait_for_line(r'event="panic: .*thread=standby')
        async with Client(wrapper.address) as client:
            for _ in range(3):
                assert (await client.evaluate("", LIST)).resource_list == LIST
        assert await asyncio.to_thread(wrapper.stop) == 0
