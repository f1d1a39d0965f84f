"""The wrapper server as a pod meets it: start, environment, queue, end, metrics, and a thousand bad calls.

What it answers to a function's behaviour is in test_vectors.py, health and reflection in test_standard_services.py.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse as HealthResponse

from krm_runner.core.errors import TooBusyError
from krm_runner.rpc._generated.evaluator_pb2 import EvaluateFunctionResponse
from krm_runner.rpc.wire import encode_request
from support.client import METHOD, Answer, Client, answer_of, check_health, watch_health
from support.machine import ROOT, missing
from support.processes import children, command_lines, eventually, open_descriptors, pipes, resident_kib
from support.runner import write_function
from support.server import free_port
from support.wrapper import WrapperProcess

README = ROOT / "rust" / "wrapper" / "README.md"
IMAGE = "example.com/some/function:v1"
LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"


class Pod:
    """Where a function and its wrapper live."""

    def __init__(self, directory: Path, program: Path, stack: ExitStack) -> None:
        self.directory = directory
        self.program = program
        self._stack = stack

    def start(
        self,
        script: str,
        *flags: str,
        environment: dict[str, str] | None = None,
        pass_fds: tuple[int, ...] = (),
        prefix: tuple[str, ...] = (),
    ) -> WrapperProcess:
        """A wrapper that serves a script; it is ended with the test."""
        function = write_function(self.directory, "function", script)
        wrapper = WrapperProcess(
            *flags,
            "--",
            str(function),
            program=str(self.program),
            environment=environment,
            cwd=self.directory,
            pass_fds=pass_fds,
            prefix=prefix,
        )
        return self._stack.enter_context(wrapper)

    def run(self, *arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """A wrapper that should not stay."""
        return subprocess.run(
            [str(self.program), *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            cwd=self.directory,
            env=dict(os.environ) | (environment or {}),
        )


@pytest.fixture
def pod(tmp_path: Path, wrapper_server: Path) -> Iterator[Pod]:
    with ExitStack() as stack:
        yield Pod(tmp_path, wrapper_server, stack)


# --- start --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no entrypoint"),
        (["--port=9446", "--"], "no entrypoint"),
        (["--", "nonsense"], "the entrypoint nonsense is not in the PATH of this image (/nonexistent:/bin)"),
        (["--", "/nonexistent/function"], "/nonexistent/function cannot be executed: there is no such file"),
        (["--", "/tmp"], "/tmp cannot be executed: it is a directory"),
        (["--", "./data"], "./data cannot be executed: it is not executable for user"),
        (["--", "./script"], "the interpreter of its first line /nonexistent/python3 is missing in this image"),
    ],
)
def test_an_entrypoint_that_cannot_be_executed_is_one_line_and_exit_code_1(
    pod: Pod, arguments: list[str], message: str
) -> None:
    write_function(pod.directory, "data", "x", 0o644)
    write_function(pod.directory, "script", "#!/nonexistent/python3\n")
    ended = pod.run(*arguments, environment={"PATH": "/nonexistent:/bin"})
    assert (ended.returncode, ended.stdout) == (1, "")
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--nonsense"], "unknown flag --nonsense"),
        (["--port=x", "--", "cat"], "--port=x"),
        (["--port"], "--port needs a value"),
        (["--max-request-body-size=1", "--", "cat"], "--max-request-body-size=1"),
        (["--shutdown-timeout=soon", "--", "cat"], "--shutdown-timeout=soon"),
        (["--standby=9", "--", "cat"], "--standby=9: a number from 0 to 8"),
        (["--standby-max-age=0s", "--", "cat"], "--standby-max-age=0s: a duration of at least 100ms"),
        (["--standby-idle=x", "--", "cat"], "--standby-idle=x"),
    ],
)
def test_a_wrong_flag_is_one_line_and_exit_code_2(pod: Pod, arguments: list[str], message: str) -> None:
    ended = pod.run(*arguments)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert message in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_a_port_in_use_is_one_line_and_exit_code_1(pod: Pod) -> None:
    wrapper = pod.start("#!/bin/sh\n")
    ended = pod.run(f"--port={wrapper.port}", "--", "cat")
    assert ended.returncode == 1
    assert f"cannot listen on port {wrapper.port}" in ended.stderr
    assert ended.stderr.count("\n") == 1


def test_help_and_readme_list_every_flag_with_its_default(pod: Pod) -> None:
    ended = pod.run("--help")
    assert (ended.returncode, ended.stderr) == (0, "")
    listed = dict(re.findall(r"^  (--[a-z-]+) .*\(default (\S+)\)$", ended.stdout, re.MULTILINE))
    assert {"--port", "--max-request-body-size", "--verbosity", "--max-parallel", "--standby"} <= listed.keys()
    assert dict(re.findall(r"^\| `(--[a-z-]+)` \| (\S+) \|", README.read_text(), re.MULTILINE)) == listed


# --- what a function sees -----------------------------------------------------------------------------------------


async def test_arguments_environment_and_working_directory_are_the_images_own(pod: Pod) -> None:
    script = '#!/bin/sh\ncat\n(echo "$@"; pwd; env | sort; ls /proc/self/fd) >&2\n'
    function = write_function(pod.directory, "function", script)
    read_end, write_end = os.pipe()
    try:
        with WrapperProcess(
            "--",
            "function",
            "one",
            "--two=2",
            program=str(pod.program),
            environment={"PATH": f"{function.parent}:/usr/bin:/bin", "OWN": "variable"},
            cwd=pod.directory,
            pass_fds=(read_end, write_end),
            prefix=("env", "-i", "PATH=" + f"{function.parent}:/usr/bin:/bin", "OWN=variable"),
        ) as wrapper:
            async with Client(wrapper.address) as client:
                answer = await client.evaluate(IMAGE, LIST)
    finally:
        os.close(read_end)
        os.close(write_end)
    seen = answer.log.decode().splitlines()
    assert seen[:2] == ["one --two=2", str(pod.directory)]
    # The shell itself sets PWD and the like; ls has the directory open as 3.
    assert {name.split("=")[0] for name in seen[2:-4]} <= {"OWN", "PATH", "PWD", "OLDPWD", "SHLVL", "_"}
    assert seen[-4:] == ["0", "1", "2", "3"]


async def test_the_trace_of_the_call_is_passed_on_only_when_tracing_is_on(pod: Pod) -> None:
    script = '#!/bin/sh\ncat\necho "$TRACEPARENT $TRACESTATE $OWN" >&2\n'
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    for exporter, expected in (("otlp", f"{parent} a=b x"), ("none", "  x")):
        wrapper = pod.start(script, environment={"OTEL_TRACES_EXPORTER": exporter, "OWN": "x"})
        async with Client(wrapper.address) as client:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, EvaluateFunctionResponse] = client.channel.unary_unary(
                METHOD, response_deserializer=EvaluateFunctionResponse.FromString
            )
            response = await call(
                encode_request(IMAGE, LIST), timeout=10, metadata=(("traceparent", parent), ("tracestate", "a=b"))
            )
        assert response.log.decode() == f"{expected}\n"
        wrapper.stop()


async def test_a_log_that_nobody_reads_stops_no_call(pod: Pod) -> None:
    function = write_function(pod.directory, "function", "#!/bin/sh\nexec cat\n")
    port = free_port()
    unread, full = os.pipe()
    process = subprocess.Popen([str(pod.program), f"--port={port}", "--", str(function)], stderr=full)
    try:
        async with Client(f"localhost:{port}") as client:
            await asyncio.wait_for(client.channel.channel_ready(), 10)
            name = f"example.com/{'long/' * 40}function:v1"
            for _ in range(400):
                assert (await client.evaluate(name, LIST, timeout=10)).code == "OK"
            assert (await check_health(client.channel)).status == HealthResponse.SERVING
    finally:
        process.terminate()
        process.wait(30)
        os.close(unread)
        os.close(full)
    assert process.returncode == 0


async def test_a_function_that_leaves_its_own_group_is_still_known(pod: Pod) -> None:
    """Python, since a shell cannot: the group that it joins is that of its child."""
    script = (
        "#!/usr/bin/env python3\nimport os, sys\nchild = os.fork()\n"
        "if child == 0:\n    os.setpgid(0, 0)\n    os.execvp('sleep', ['sleep', '0.5'])\n"
        "while os.getpgrp() != child:\n    try:\n        os.setpgid(0, child)\n"
        "    except PermissionError:\n        pass\n"
        "sys.stdout.buffer.write(sys.stdin.buffer.read())\n"
    )
    wrapper = pod.start(script, "--standby=0")
    async with Client(wrapper.address) as client:
        answer = await client.evaluate(IMAGE, LIST)
        assert (answer.code, answer.resource_list) == ("OK", LIST), answer.message
        await eventually(lambda: not children(wrapper.pid), what="all children reaped")


async def test_a_caller_that_names_no_image_is_served(pod: Pod) -> None:
    wrapper = pod.start("#!/bin/sh\nexit 3\n")
    async with Client(wrapper.address) as client:
        answer = await client.evaluate("", LIST)
    assert answer.message == f'function "{pod.directory}/function" failed with exit code 3'


# --- how many at once ---------------------------------------------------------------------------------------------


async def test_a_bounded_number_runs_and_the_others_wait_in_order(pod: Pod) -> None:
    script = "#!/bin/sh\ncat\necho $$ >>running\nsleep 0.6\nwc -l <running >&2\nsed -i /^$$\\$/d running\n"
    wrapper = pod.start(script, "--max-parallel=1")
    async with Client(wrapper.address) as client:
        calls: list[asyncio.Task[Answer]] = []
        for number in range(5):
            calls.append(asyncio.create_task(client.evaluate(f"{IMAGE}{number}", LIST)))
            await eventually((pod.directory / "running").exists, what="the first function runs")
            await asyncio.sleep(0.1)
        answers = await asyncio.gather(*calls)
    assert [(answer.code, answer.log.strip()) for answer in answers] == [("OK", b"1")] * 5

    def order() -> list[str]:
        return [match[1] for line in wrapper.lines if (match := re.search(r"image=\S+:v1(\d)", line))]

    await eventually(lambda: len(order()) == 5, what="all calls are logged")
    assert order() == ["0", "1", "2", "3", "4"]


async def test_a_full_queue_refuses_and_dead_calls_leave_it(pod: Pod) -> None:
    wrapper = pod.start("#!/bin/sh\ncat >/dev/null\nsleep 5001\n", "--max-parallel=1", "--max-queue-length=2")
    async with Client(wrapper.address) as client:
        calls = [asyncio.create_task(client.evaluate(IMAGE, LIST)) for _ in range(3)]
        await eventually(lambda: "sleep 5001" in command_lines(), what="the function runs")
        await asyncio.sleep(0.3)
        refused = await client.evaluate(IMAGE, LIST, timeout=20)
        assert (refused.code, refused.reason, refused.retry_delay) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL", 1.0)
        assert "2 calls waiting already" in refused.message
        for call in calls:
            call.cancel()
        late = await client.evaluate(IMAGE, LIST, timeout=0.5)
        assert late.code == "DEADLINE_EXCEEDED"
    await eventually(lambda: "sleep 5001" not in command_lines(), what="the function is gone")


async def test_a_call_whose_turn_would_come_too_late_hears_it_before_it_would_run(pod: Pod) -> None:
    gate = pod.directory / "gate"
    script = f"#!/bin/sh\ncat\necho x >>runs\nsleep 1\nwhile [ -e {gate} ]; do sleep 0.05; done\n"
    wrapper = pod.start(script, "--max-parallel=1")
    async with Client(wrapper.address) as client:
        assert (await client.evaluate(IMAGE, LIST)).code == "OK"
        gate.touch()
        # On one connection they arrive in this order; the first of them holds the only place.
        ahead = [client.start(IMAGE, LIST) for _ in range(4)]
        refused = await client.evaluate(IMAGE, LIST, timeout=1)
        assert (refused.code, refused.reason) == ("RESOURCE_EXHAUSTED", "TOO_BUSY"), refused.message
        assert [call for call in ahead if call.done()] == [], "nobody had to end for that"
        facts = refused.facts or {}
        assert facts["waiting"] == "3"
        assert refused.retry_delay == pytest.approx(float(facts["expected_seconds"]), abs=0.6)
        same = TooBusyError(facts["image"], waiting=3, expected=float(facts["expected_seconds"]))
        assert refused.message == str(same), "in the runner's words"
        patient = client.start(IMAGE, LIST)
        gate.unlink()
        answers = [await answer_of(call) for call in (*ahead, patient)]
        assert {answer.code for answer in answers} == {"OK"}, "who was there before, or has time, is served"
    assert (pod.directory / "runs").read_text() == "x\n" * 6


async def test_calls_that_never_ran_say_nothing_of_those_that_do(pod: Pod) -> None:
    wrapper = pod.start("#!/bin/sh\ncat\nsleep 1\n", "--max-parallel=1", "--standby=0")
    function = pod.directory / "function"
    async with Client(wrapper.address) as client:
        assert (await client.evaluate(IMAGE, LIST)).code == "OK"
        function.chmod(0o600)
        failed = [await client.evaluate(IMAGE, LIST) for _ in range(30)]
        assert {answer.reason for answer in failed} == {"CANNOT_EXECUTE"}
        function.chmod(0o700)
        ahead = [client.start(IMAGE, LIST) for _ in range(4)]
        refused = await client.evaluate(IMAGE, LIST, timeout=1)
        assert refused.reason == "TOO_BUSY", refused.message
        assert float((refused.facts or {})["expected_seconds"]) >= 3
        assert {(await answer_of(call)).code for call in ahead} == {"OK"}


async def test_a_call_that_waits_too_long_never_runs(pod: Pod) -> None:
    wrapper = pod.start("#!/bin/sh\ncat\necho x >>runs\nsleep 1.5\n", "--max-parallel=1")
    async with Client(wrapper.address) as client:
        first = asyncio.create_task(client.evaluate(IMAGE, LIST))
        await eventually((pod.directory / "runs").exists, what="the function runs")
        waiting = await client.evaluate(IMAGE, LIST, timeout=0.5)
        assert waiting.code == "DEADLINE_EXCEEDED"
        assert (await first).code == "OK"
    assert (pod.directory / "runs").read_text() == "x\n"


async def test_callers_that_send_nothing_do_not_hold_up_the_others_for_ever(pod: Pod) -> None:
    wrapper = pod.start("#!/bin/sh\nexec cat\n", "--max-parallel=1")
    async with Client(wrapper.address) as slow, Client(wrapper.address) as client:
        stuck: list[grpc.aio.StreamUnaryCall[bytes, bytes]] = [
            slow.channel.stream_unary(METHOD)(timeout=60) for _ in range(6)
        ]
        await asyncio.sleep(0.3)
        assert (await client.evaluate(IMAGE, LIST, timeout=50)).code == "OK"
        for call in stuck:
            call.cancel()
    wrapper.wait_for_line("reason|did not arrive within 10s")


# --- the end ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_without_losing_a_call(pod: Pod, number: signal.Signals) -> None:
    wrapper = pod.start('#!/bin/sh\nlist=$(cat)\ntouch runs\nsleep 1\necho "$list"\n')
    async with Client(wrapper.address) as client:
        statuses = watch_health(client.channel)
        assert (await anext(statuses)).status == HealthResponse.SERVING
        under_way = asyncio.create_task(client.evaluate(IMAGE, LIST))
        await eventually((pod.directory / "runs").exists, what="the function runs")
        wrapper.process.send_signal(number)
        assert (await anext(statuses)).status == HealthResponse.NOT_SERVING
        assert (await under_way).code == "OK"
    assert await asyncio.to_thread(wrapper.wait) == 0
    assert "event=stopped" in wrapper.lines[-1]


async def test_calls_that_take_too_long_are_told_to_come_back(pod: Pod) -> None:
    wrapper = pod.start("#!/bin/sh\ncat >/dev/null\n(sleep 5002; :) &\nsleep 5003\n", "--shutdown-timeout=500ms")
    async with Client(wrapper.address) as client:
        under_way = asyncio.create_task(client.evaluate(IMAGE, LIST))
        await eventually(lambda: "sleep 5003" in command_lines(), what="the function runs")
        wrapper.process.send_signal(signal.SIGTERM)
        answer = await under_way
    assert (answer.code, answer.reason, answer.retry_delay) == ("UNAVAILABLE", "SHUTTING_DOWN", 1.0)
    assert await asyncio.to_thread(wrapper.wait) == 0
    await eventually(lambda: not {"sleep 5002", "sleep 5003"} & set(command_lines()), what="functions gone")


async def test_a_connection_that_stays_open_does_not_keep_it(pod: Pod) -> None:
    wrapper = pod.start("#!/bin/sh\nexec cat\n", "--shutdown-timeout=500ms")
    _, writer = await asyncio.open_connection("localhost", wrapper.port)
    async with Client(wrapper.address) as client:
        assert (await client.evaluate(IMAGE, LIST)).code == "OK"
        assert await asyncio.to_thread(wrapper.stop) == 0
    writer.close()


async def test_as_pid_1_it_reaps_orphans(pod: Pod) -> None:
    if os.geteuid() != 0:
        missing("not root: cannot make a PID namespace")
    script = "#!/bin/sh\ncat\nsetsid sh -c 'sleep 0.3; exit 3' </dev/null >/dev/null 2>&1 &\n"
    wrapper = pod.start(script, prefix=("unshare", "--pid", "--fork", "--kill-child", "--"))
    (first,) = children(wrapper.pid)
    async with Client(wrapper.address) as client:
        for _ in range(3):
            assert (await client.evaluate(IMAGE, LIST)).code == "OK"
        await eventually(lambda: len(children(first)) == 1, what="orphans reaped, and the next process waits")
        assert (await check_health(client.channel)).status == HealthResponse.SERVING
        # PID 1 has no default for signals: it must have asked for this one.
        os.kill(first, signal.SIGTERM)
    assert await asyncio.to_thread(wrapper.wait) == 0


# --- metrics ------------------------------------------------------------------------------------------------------


async def test_metrics_count_what_happened(pod: Pod) -> None:
    port = free_port()
    wrapper = pod.start(
        "#!/bin/sh\nread line\ncase $line in fail) exit 7;; crash) kill -SEGV $$;; esac\necho kind: ResourceList\n",
        environment={"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": str(port)},
    )
    async with Client(wrapper.address) as client:
        for line in (b"ok\n", b"ok\n", b"fail\n", b"crash\n"):
            await client.evaluate(IMAGE, line)

    def read(path: str) -> str:
        with urllib.request.urlopen(f"http://localhost:{port}{path}", timeout=10) as response:
            return bytes(response.read()).decode()

    lines = (await asyncio.to_thread(read, "/metrics")).splitlines()
    for expected in (
        'krm_wrapper_evaluations_total{code="OK"} 2',
        'krm_wrapper_evaluations_total{code="INTERNAL"} 2',
        'krm_wrapper_function_exits_total{exit="0"} 2',
        'krm_wrapper_function_exits_total{exit="7"} 1',
        'krm_wrapper_function_exits_total{exit="SIGSEGV"} 1',
        "krm_wrapper_evaluation_duration_seconds_count 4",
        "krm_wrapper_queue_wait_seconds_count 4",
        "krm_wrapper_executions_running 0",
        "krm_wrapper_executions_waiting 0",
    ):
        assert expected in lines
    counted = sum(int(line.rpartition(" ")[2]) for line in lines if line.startswith("krm_wrapper_executions_total{"))
    assert counted == 4
    documented = set(re.findall(r"`(krm_wrapper_\w+)`", README.read_text()))
    assert {line.split()[2] for line in lines if line.startswith("# TYPE ")} == documented


async def test_one_line_for_each_call(pod: Pod) -> None:
    wrapper = pod.start("#!/bin/sh\ncat\necho noise >&2\n")
    async with Client(wrapper.address) as client:
        await client.evaluate(IMAGE, LIST)
    line = wrapper.wait_for_line("event=evaluated").string
    for part in (f"image={IMAGE}", "code=OK", "seconds=0.", "request_bytes=", "response_bytes=", "queue_seconds=0.",
                 "process=", "exit=0", "log_bytes=6"):  # fmt: skip
        assert part in line
    quiet = pod.start("#!/bin/sh\nexec cat\n", "--verbosity=1")
    async with Client(quiet.address) as client:
        await client.evaluate(IMAGE, LIST)
        await client.evaluate(IMAGE, b"")
    assert [line for line in quiet.lines if "level=info" in line] == []
    quiet.wait_for_line("level=warning event=evaluated")


# --- nothing is left ----------------------------------------------------------------------------------------------

ENDINGS = {
    "ok": "cat",
    "crash": "kill -SEGV $$",
    "exit": "echo no >&2; exit 9",
    "hang": "sleep 5010",
    "orphan": "sleep 5011 & cat",
    "flood": "yes",
    "garbage": "echo hello",
}


@pytest.mark.parametrize("standby", [0, 2])
async def test_a_thousand_calls_that_end_in_every_way_leave_nothing(pod: Pod, standby: int) -> None:
    cases = "".join(f"{name}) {script};;\n" for name, script in ENDINGS.items())
    script = f"#!/bin/sh\nread -r word\nword=${{word#'# '}}\ncase $word in\n{cases}esac\n"
    flags = ("--max-parallel=4", "--max-request-body-size=100000", "--verbosity=0", f"--standby={standby}")
    wrapper = pod.start(script, *flags)
    chance = random.Random(1)
    gate = asyncio.Semaphore(16)
    async with Client(wrapper.address) as client:

        async def one_call() -> str:
            async with gate:
                ending = chance.choice(list(ENDINGS))
                timeout = chance.choice([0.05, 0.2, 5.0]) if ending != "hang" else 0.1
                call = client.start(IMAGE, f"# {ending}\n".encode() + LIST, timeout=timeout)
                if chance.random() < 0.3:
                    await asyncio.sleep(chance.random() * 0.05)
                    call.cancel()
                try:
                    return (await answer_of(call)).code
                except asyncio.CancelledError:
                    return "CANCELLED"

        await asyncio.gather(*(one_call() for _ in range(100)))
        before = resident_kib(wrapper.pid)
        codes = await asyncio.gather(*(one_call() for _ in range(1000)))
        assert set(codes) == {"OK", "CANCELLED", "INTERNAL", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"}
        await eventually(lambda: len(children(wrapper.pid)) == standby, what="all children reaped, but those that wait")
        # Three pipes, both ends of stdin's, and a pidfd for each that waits.
        await eventually(lambda: pipes(wrapper.pid) <= 1 + 5 * standby, what="all pipes closed")
        events = [target for target in open_descriptors(wrapper.pid) if "eventfd" in target]
        assert len(events) <= 2 + bool(standby), "the event loop's own, and that of the thread that attends to standby"
        assert resident_kib(wrapper.pid) - before <= 2048
        answer: Answer = await client.evaluate(IMAGE, b"# ok\n" + LIST)
        assert (answer.code, answer.resource_list) == ("OK", LIST)
