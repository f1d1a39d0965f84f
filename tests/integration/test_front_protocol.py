"""The runner behind a front, which the test plays: what it is told, what it answers, and how both end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import cast

import pytest
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from integration.conftest import Installation
from integration.test_service import run_cli
from krm_runner import __version__
from krm_runner.app.front_port import find_front
from krm_runner.core.errors import ConfigurationError, ServeError
from krm_runner.front import server as front_server
from krm_runner.front.calls import FrontCalls
from krm_runner.front.link import MAX_MESSAGE_BYTES, Link
from krm_runner.front.load import FrontLoad
from krm_runner.front.pod_questions import PodQuestions
from krm_runner.front.server import FrontServer
from krm_runner.rpc._generated import front_pb2 as protocol
from krm_runner.rpc._generated.front_pb2 import FromFront
from krm_runner.rpc.call_record import CallTerms
from krm_runner.settings import parse_settings
from krm_runner.telemetry import exporters
from krm_runner.telemetry.metrics import EvaluationMetrics
from support.front_stage import PROGRAM, FrontStage, front_stage
from support.processes import children, eventually, is_alive
from support.runner import RunnerProcess, write_config
from support.server import free_port, listens

COPY = "#!/bin/sh\nexec cat\n"


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    """Once: who has the port is the test itself."""
    with ExitStack() as stack:
        yield Installation(tmp_path, stack, "off")


@pytest.fixture
async def stage() -> AsyncIterator[FrontStage]:
    async with front_stage() as stage:
        yield stage


def call(number: int, image: str, *, timeout: float | None = 60) -> FromFront:
    return FromFront(call=protocol.Call(id=number, image=image, message_bytes=400, timeout_seconds=timeout))


def ended(number: int, image: str, **fields: object) -> FromFront:
    return FromFront(
        ended=protocol.Ended(
            id=number,
            image=image,
            function="copy",
            code="OK",
            seconds=0.0125,
            request_bytes=400,
            response_bytes=477,
            queue_seconds=0.0005,
            process="standby",
            execution_seconds=0.005,
            facts={"log_bytes": "7", "exit": "0"},
        )
        if not fields
        else protocol.Ended(id=number, image=image, **fields)  # type: ignore[arg-type]  # each test knows its fields
    )


async def start(installation: Installation, stage: FrontStage, *flags: str, **environment: str) -> RunnerProcess:
    return await asyncio.to_thread(
        partial(installation.start, stage.flag, *flags, environment=stage.environment | environment)
    )


def lines_of(runner: RunnerProcess, event: str) -> list[str]:
    return [line for line in runner.lines if f"event={event}" in line]


# --- calls --------------------------------------------------------------------------------------------------------


async def test_the_front_is_told_what_there_is(installation: Installation, stage: FrontStage) -> None:
    flags = ("--max-parallel-executions=3", "--max-queue-length=7", "--max-request-body-size=5000")
    runner = await start(installation, stage, *flags, "--standby-idle=90s", SOME_VARIABLE="some value")
    configure = await stage.get_ready()
    assert (configure.version, configure.message_limit, configure.default_timeout_seconds) == (__version__, 5000, 600)
    assert (configure.max_parallel, configure.max_waiting, configure.standby_idle_seconds) == (3, 7, 90)
    assert min(configure.cpus, configure.max_function_memory, configure.max_request_memory) > 0
    assert configure.verbosity == 2
    (front,) = children(runner.pid)
    environment = Path(f"/proc/{front}/environ").read_bytes().split(b"\0")
    assert b"SOME_VARIABLE=some value" in environment
    assert f"front={PROGRAM}" in runner.wait_for_line("event=serving").string


async def test_a_known_image_is_handed_back_and_reported_when_it_has_ended(
    installation: Installation, stage: FrontStage
) -> None:
    image = installation.add("copy", COPY)
    runner = await start(installation, stage, "--standby=2")
    await stage.get_ready()
    await stage.say(call(1, image), call(2, image))
    for number in (1, 2):
        run = (await stage.hear("run")).run
        assert (run.id, run.function, run.standby) == (number, "copy", 2)
        assert run.path == bytes(installation.functions / "copy")
    await stage.say(ended(1, image))
    line = runner.wait_for_line("event=evaluated").string
    assert line.endswith(
        f"level=info event=evaluated image={image} runtime=exec code=OK seconds=0.0125 request_bytes=400 "
        "response_bytes=477 queue_seconds=0.0005 exit=0 log_bytes=7"
    )
    # One that was never asked about; and one that failed.
    failed = {"signal": "SIGSEGV", "limit": "5"}
    results = ["error: too red"]
    await stage.say(
        ended(0, image, function="copy", code="OK", failed_results=results),
        ended(2, image, function="copy", code="INTERNAL", facts=failed | {"exit": "7"}, error="it\nfailed"),
        ended(0, "", code="RESOURCE_EXHAUSTED", error="too large"),
    )
    runner.wait_for_line("level=warning event=.the function succeeded with a result of severity error.*too red")
    line = runner.wait_for_line("code=INTERNAL").string
    assert line.endswith(r"response_bytes=0 limit=5 signal=SIGSEGV exit=7 error=it\nfailed")
    assert "level=warning" in line
    runner.wait_for_line("level=warning event=evaluated image= runtime=none code=RESOURCE_EXHAUSTED")
    assert len(lines_of(runner, "evaluated")) == 4


@pytest.mark.parametrize(
    ("image", "answer", "message"),
    [
        ("example.com/stranger:v1", (5, "FUNCTION_NOT_FOUND"), 'function "example.com/stranger:v1" not found'),
        ("", (3, "INVALID_REQUEST"), '"" is no valid image: the image is empty'),
        ("Not An Image", (3, "INVALID_REQUEST"), '"Not An Image" is no valid image: '),
    ],
)
async def test_what_is_not_known_is_refused(
    installation: Installation, stage: FrontStage, image: str, answer: tuple[int, str], message: str
) -> None:
    code, reason = answer
    runner = await start(installation, stage)
    await stage.get_ready()
    await stage.say(call(1, image))
    refuse = (await stage.hear("refuse")).refuse
    assert (refuse.id, refuse.code) == (1, code)
    assert refuse.message.startswith(message)
    status, info = Status.FromString(refuse.details), ErrorInfo()
    assert (status.code, status.message, status.details[0].Unpack(info)) == (code, refuse.message, True)
    assert (info.reason, info.domain) == (reason, "krm-runner")
    line = runner.wait_for_line("event=evaluated").string
    assert "runtime=none" in line
    assert "request_bytes=400 response_bytes=0 error=" in line


async def test_a_caller_that_goes_away_in_the_same_moment(installation: Installation, stage: FrontStage) -> None:
    image = installation.add("copy", COPY)
    runner = await start(installation, stage)
    await stage.get_ready()
    await stage.say(call(1, image), FromFront(gone=protocol.Gone(id=1)), FromFront(gone=protocol.Gone(id=99)))
    assert "the caller went away; the function was stopped" in runner.wait_for_line("code=CANCELLED").string
    await stage.hear("run")
    await stage.say(call(2, image))
    assert (await stage.hear("run")).run.id == 2


async def test_a_new_configuration_makes_the_front_forget(installation: Installation, stage: FrontStage) -> None:
    installation.add("first", COPY)
    runner = await start(installation, stage, "--standby=1")
    await stage.get_ready()
    second = installation.add("second", COPY)
    forget = (await stage.hear("forget")).forget
    assert dict(forget.standby) == {"first": 1, "second": 1}
    await stage.say(call(1, second))
    assert (await stage.hear("run")).run.function == "second"
    write_config(installation.config, {"second": [second]})
    runner.process.send_signal(signal.SIGHUP)
    assert dict((await stage.hear("forget")).forget.standby) == {"second": 1}


async def test_metrics(installation: Installation, stage: FrontStage) -> None:
    image = installation.add("copy", COPY)
    port = free_port()
    runner = await start(
        installation, stage, OTEL_METRICS_EXPORTER="prometheus", OTEL_EXPORTER_PROMETHEUS_PORT=str(port)
    )
    await stage.get_ready()
    standby = [protocol.StandbyLoad(function="copy", processes=2, memory=1000)]
    load = protocol.Load(running=3, waiting=4, memory=5, standby=standby, calls=9, under_way=6)
    await stage.say(call(1, image), ended(0, image), call(2, image), ended(2, image), FromFront(load=load))
    await stage.say(call(3, "example.com/stranger:v1"))
    await eventually(lambda: len(lines_of(runner, "evaluated")) == 3, what="all are reported")

    def scrape() -> dict[str, float]:
        with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=10) as response:
            text = cast(bytes, response.read()).decode()
        lines = [line for line in text.splitlines() if not line.startswith("#")]
        return {
            re.sub(r',?otel_scope_\w+="[^"]*"', "", name).replace("{,", "{"): float(value)
            for name, value in map(_split, lines)
        }

    found = await asyncio.to_thread(scrape)
    evaluations = {name: value for name, value in found.items() if name.startswith("krm_runner_evaluations_total")}
    assert evaluations == {
        f'krm_runner_evaluations_total{{code="OK",image="{image}",runtime="exec"}}': 2,
        'krm_runner_evaluations_total{code="NOT_FOUND",image="",runtime=""}': 1,
    }
    assert {
        name: found[f"krm_runner_{name}"]
        for name in (
            "evaluations_in_flight{}", "executions_running{}", "executions_waiting{}", "executions_memory_bytes{}",
            'standby_processes{function="copy"}', 'standby_memory_bytes{function="copy"}',
            'executions_total{function="copy",process="standby"}', 'queue_wait_seconds_count{runtime="exec"}',
        )
    } == {
        # One that the front asked about, and six that it did not.
        "evaluations_in_flight{}": 7, "executions_running{}": 3, "executions_waiting{}": 4,
        "executions_memory_bytes{}": 5, 'standby_processes{function="copy"}': 2,
        'standby_memory_bytes{function="copy"}': 1000,
        'executions_total{function="copy",process="standby"}': 2, 'queue_wait_seconds_count{runtime="exec"}': 2,
    }  # fmt: skip


def _split(line: str) -> tuple[str, str]:
    name, _, value = line.rpartition(" ")
    return name, value


async def test_the_spans_of_sampled_calls_are_exported_from_their_records(
    tmp_path: Path, installation: Installation, stage: FrontStage
) -> None:
    image = installation.add("copy", COPY)
    output = tmp_path / "spans.json"
    script = tmp_path / "with-stdout"
    script.write_text(f'#!/bin/sh\nexec "$@" >{output}\n')
    script.chmod(0o755)
    flags = (f"--functions={installation.functions}", f"--config={installation.config}", "--shutdown-delay=0s")
    environment = stage.environment | {
        "OTEL_TRACES_EXPORTER": "console", "OTEL_TRACES_SAMPLER": "traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25",
    }  # fmt: skip
    span = protocol.Span(trace_id=b"t" * 16, span_id=b"s" * 8, parent_id=b"p" * 8, trace_state="a=b", started_at=10**18)
    with RunnerProcess(stage.flag, *flags, prefix=[str(script)], environment=environment) as runner:
        sampler = (await stage.get_ready()).sampler
        assert (sampler.follows_caller, sampler.share) == (False, 0.25)
        await stage.say(FromFront(call=protocol.Call(id=1, image=image, span=span)))
        await stage.hear("run")
        await stage.say(ended(1, image, function="copy", code="INTERNAL", error="it failed", span=span))
        await stage.say(ended(0, image, function="copy"))
        runner.wait_for_line("event=evaluated .*runtime=exec code=INTERNAL .*error=.it failed")
        runner.process.send_signal(signal.SIGTERM)
        await stage.hear("health")
        await stage.hear("drain")
        await stage.leave()
        assert await asyncio.to_thread(runner.wait) == 0
    exported = json.loads(output.read_text())  # one: the other call was not sampled
    assert exported["context"]["trace_id"] == "0x" + span.trace_id.hex()
    assert exported["context"]["span_id"] == "0x" + span.span_id.hex()
    assert exported["context"]["trace_state"] == "['{key=a, value=b}']"
    assert exported["parent_id"] == "0x" + span.parent_id.hex()
    assert exported["start_time"] == "2001-09-09T01:46:40.000000Z"
    assert exported["attributes"]["krm_runner.image"] == image
    assert exported["attributes"]["krm_runner.runtime"] == "exec"
    assert exported["attributes"]["rpc.grpc.status_code"] == "INTERNAL"
    assert exported["status"] == {"status_code": "ERROR", "description": "INTERNAL"}


# --- the end ------------------------------------------------------------------------------------------------------


async def test_the_end_loses_no_call(installation: Installation, stage: FrontStage) -> None:
    image = installation.add("copy", COPY)
    runner = await start(installation, stage, "--shutdown-delay=200ms")
    await stage.get_ready()
    await stage.say(call(1, image))
    await stage.hear("run")
    runner.process.send_signal(signal.SIGTERM)
    health = (await stage.hear("health")).health
    assert (health.serving, health.end_standby) == (False, True)
    await stage.say(call(2, image))
    await stage.hear("run")
    await stage.hear("drain")
    await stage.say(ended(1, image), ended(2, image))
    await stage.leave()
    assert await asyncio.to_thread(runner.wait) == 0
    assert len(lines_of(runner, "evaluated")) == 2
    assert runner.lines[-1].endswith("event=stopped")


async def test_calls_that_take_too_long_are_cancelled(installation: Installation, stage: FrontStage) -> None:
    image = installation.add("copy", COPY)
    runner = await start(installation, stage, "--shutdown-delay=0s", "--shutdown-timeout=500ms")
    await stage.get_ready()
    await stage.say(call(1, image))
    await stage.hear("run")
    runner.process.send_signal(signal.SIGTERM)
    await stage.hear("health")
    await stage.hear("drain")
    await stage.hear("cancel_calls")
    await stage.say(ended(1, image, function="copy", code="UNAVAILABLE", error="shutting down"))
    await stage.leave()
    assert await asyncio.to_thread(runner.wait) == 0
    runner.wait_for_line("event=.time is over: calls are cancelled. calls=1")
    runner.wait_for_line("code=UNAVAILABLE")


async def test_a_second_signal_closes_the_link(installation: Installation, stage: FrontStage) -> None:
    runner = await start(installation, stage)
    await stage.get_ready()
    (front,) = children(runner.pid)
    runner.process.send_signal(signal.SIGTERM)
    await stage.hear("health")
    runner.process.send_signal(signal.SIGINT)
    await stage.hear_nothing_more()
    assert await asyncio.to_thread(runner.wait) == 128 + signal.SIGINT
    await eventually(lambda: not is_alive(front), what="the front is gone")


@pytest.mark.parametrize("how", ["exit code 3", "killed by SIGKILL", "what it says makes no sense: a message of"])
async def test_without_its_front_the_service_ends_with_a_reason(
    installation: Installation, stage: FrontStage, how: str
) -> None:
    runner = await start(installation, stage, PLAYED_FRONT_EXIT="3")
    await stage.get_ready()
    await asyncio.to_thread(runner.wait_for_line, "event=serving")
    (front,) = children(runner.pid)
    if how.startswith("exit"):
        await stage.leave()
    elif how.startswith("killed"):
        os.kill(front, signal.SIGKILL)
    else:
        await stage.say_bytes((MAX_MESSAGE_BYTES + 1).to_bytes(4))
    assert await asyncio.to_thread(runner.wait) == 1
    runner.wait_for_line(f"level=error event=.the front has ended. front={PROGRAM} how=.{how}")
    assert re.search(rf"^krm-runner serve: the front has ended, .*{PROGRAM}: {how}", runner.lines[-1])
    assert "Traceback" not in "\n".join(runner.lines)
    await eventually(lambda: not is_alive(front), what="the front is gone")
    assert not listens(runner.address)


async def test_a_front_of_another_version_is_not_used(installation: Installation, stage: FrontStage) -> None:
    runner = await start(installation, stage)
    await stage.hear("configure")
    await stage.hear("health")
    await stage.say(FromFront(ready=protocol.Ready(version="99")))
    assert await asyncio.to_thread(runner.wait) == 1
    assert runner.lines[-1] == (
        f"krm-runner serve: the front {PROGRAM} has version 99, and this is {__version__}: install both together, "
        "or start with --front=off"
    )
    await stage.hear_nothing_more()


async def test_a_front_that_says_nothing_is_not_waited_for(
    stage: FrontStage, monkeypatch: pytest.MonkeyPatch, no_leaks: None
) -> None:
    monkeypatch.setattr(front_server, "_READY_SECONDS", 0.3)
    monkeypatch.setenv("PLAYED_FRONT", stage.environment["PLAYED_FRONT"])
    metrics = EvaluationMetrics(exporters.start(exporters.ExporterChoice()).meter)
    link = Link()
    terms = CallTerms(default_timeout=1, default_prefix="")
    calls = FrontCalls(link.send, functions=None, others=None, metrics=metrics, spans=None, terms=terms)
    server = FrontServer(PROGRAM, link, calls, FrontLoad(metrics), PodQuestions(), port=0, health_port=0)
    with pytest.raises(ServeError, match=r"the front does not start: .*: it said nothing for 0.3 s"):
        await server.start(protocol.Configure(), os.environb)
    await server.close()
    await stage.leave()


@pytest.mark.parametrize(
    ("program", "message"),
    [("nowhere", "there is no such file"), ("plain", "it is not executable"), (".", "it is not executable")],
)
def test_a_front_that_is_none_is_one_line_and_exit_code_2(tmp_path: Path, program: str, message: str) -> None:
    (tmp_path / "plain").write_text("")
    done = run_cli("serve", "--disable-runtimes=pod", f"--front={program}", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (2, f"krm-runner serve: --front={program} cannot be used: {message}\n")


def test_a_front_that_cannot_be_executed_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    front = tmp_path / "front"
    front.write_text("#!/nowhere/sh\n")
    front.chmod(0o755)
    flags = ("--disable-runtimes=pod", f"--front={front}", "--port=0", "--log-level=0")
    done = run_cli("serve", *flags, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr == f"krm-runner serve: the front cannot be started: {front}: No such file or directory\n"


def test_it_is_found_beside_the_interpreter_or_on_the_path_unless_it_is_turned_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(*flags: str) -> Path | None:
        return find_front(parse_settings(["--disable-runtimes=pod", *flags], {}))

    beside, on_path = (tmp_path / name / "krm-front" for name in ("beside", "path"))
    monkeypatch.setattr(sys, "executable", str(beside.parent / "python"))
    monkeypatch.setenv("PATH", f"/nowhere:{on_path.parent}")
    assert found() is None
    for program in (on_path, beside):
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n")
        assert found() != program, "it is not executable"
        program.chmod(0o755)
        assert found() == program
    assert found(f"--front={on_path}") == on_path
    assert found("--front=off") is None
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    monkeypatch.setenv("PATH", "/nowhere")
    for flags in (["--tls-cert-file=a", "--tls-key-file=b"], ["--auth-token-file=t"], ["--health-port=1"]):
        with pytest.raises(ConfigurationError, match=r"^--(tls-cert-file|auth-token-file|health-port) needs krm-front"):
            found(*flags)
