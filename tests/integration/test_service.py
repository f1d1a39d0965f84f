"""The service as its users meet it: start, health, reflection, configuration, and the end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Literal, cast

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse as HealthResponse

from integration.conftest import Installation, front_of
from krm_runner.rpc.health import Health
from krm_runner.rpc.wire import encode_request
from support.client import METHOD, Client, check_health, watch_health
from support.processes import command_lines, eventually
from support.runner import RunnerProcess, write_config

LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
COPY = "#!/bin/sh\nexec cat\n"


def run_cli(
    *argv: str, environment: dict[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """A command that should not stay."""
    return subprocess.run(
        [sys.executable, "-m", "krm_runner", *argv],
        capture_output=True,
        text=True,
        timeout=30,
        cwd=cwd,
        env=dict(os.environ) | (environment or {}),
        check=False,
    )


# --- start --------------------------------------------------------------------------------------------------------


async def test_calls_are_served_and_logged_on_one_line(installation: Installation) -> None:
    image = installation.add("copy", COPY)
    runner = installation.start()
    async with Client(runner.address) as client:
        answer = await client.evaluate(image, LIST)
        assert (answer.code, answer.resource_list, answer.log) == ("OK", LIST, b"")
    line = runner.wait_for_line("event=evaluated").string
    for part in (
        f"image={image}",
        "runtime=exec",
        "code=OK",
        "seconds=0.",
        "request_bytes=",
        "response_bytes=",
        "exit=0",
    ):
        assert part in line
    assert len([line for line in runner.lines if "event=evaluated" in line]) == 1


async def test_with_every_runtime_disabled_it_starts_warns_and_answers_not_found(installation: Installation) -> None:
    image = installation.add("copy", COPY)
    runner = installation.start("--disable-runtimes=exec,pod")
    runner.wait_for_line("level=warning event=.every runtime is disabled")
    async with Client(runner.address) as client:
        answer = await client.evaluate(image, LIST)
        assert (answer.code, answer.message) == ("NOT_FOUND", f'function "{image}" not found')
        assert (await check_health(client.channel)).status == HealthResponse.SERVING


@pytest.mark.parametrize("way", ["python", "front"])
def test_a_port_in_use_is_one_line_and_exit_code_1(tmp_path: Path, way: Literal["python", "front"]) -> None:
    with socket.socket(socket.AF_INET6) as taken:
        taken.bind(("::", 0))
        taken.listen()
        port = taken.getsockname()[1]
        flags = ("--disable-runtimes=pod", f"--port={port}", "--log-level=0", f"--front={front_of(way)}")
        done = run_cli("serve", *flags, cwd=tmp_path)
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"krm-runner serve: cannot listen on port {port}: ")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--config=nowhere.yaml"], "cannot read nowhere.yaml: No such file or directory (--config)"),
        (["--config=broken.yaml"], "broken.yaml: functions must be a list, not text"),
        (["--config=."], "cannot read .: Is a directory (--config)"),
        (["--flag-that-is-none"], "unknown flag --flag-that-is-none"),
        (["--disable-runtimes=docker"], 'invalid value "docker" for --disable-runtimes'),
    ],
)
def test_wrong_flags_and_files_are_one_line_and_exit_code_2(tmp_path: Path, argv: list[str], message: str) -> None:
    (tmp_path / "broken.yaml").write_text("functions: nonsense")
    done = run_cli("serve", "--disable-runtimes=pod", *argv, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("krm-runner serve: ")
    assert message in done.stderr


def test_the_pod_runtime_says_what_it_needs(tmp_path: Path) -> None:
    without = run_cli("serve", cwd=tmp_path)
    assert (without.returncode, "WRAPPER_SERVER_IMAGE" in without.stderr) == (2, True)
    nowhere = {"WRAPPER_SERVER_IMAGE": "example.com/wrapper:v1", "HOME": str(tmp_path)}
    no_cluster = run_cli("serve", cwd=tmp_path, environment=nowhere)
    assert no_cluster.returncode == 2
    assert "no Kubernetes cluster is known" in no_cluster.stderr.splitlines()[-1]
    assert "--disable-runtimes=pod" in no_cluster.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--wrapper-delivery=image-volume", "--function-pod-template=mine"],
            "--wrapper-delivery=image-volume is for the built-in pod template only, and --function-pod-template names "
            "another: leave out one of the two",
        ),
    ],
)
def test_a_delivery_of_the_wrapper_that_cannot_be_is_refused(tmp_path: Path, flags: list[str], message: str) -> None:
    (tmp_path / "cache.yaml").write_text("[]")
    environment = {"WRAPPER_SERVER_IMAGE": "example.com/wrapper:v1", "HOME": str(tmp_path)}
    quiet = ("--disable-runtimes=exec", "--pod-cache-config=cache.yaml")
    done = run_cli("serve", *quiet, *flags, cwd=tmp_path, environment=environment)
    assert (done.returncode, done.stderr) == (2, f"krm-runner serve: {message}\n")


def test_the_command_line_teaches(tmp_path: Path) -> None:
    for argv in (["--help"], ["serve", "--help"], ["--version"], ["serve", "--version"], ["version"]):
        done = run_cli(*argv, cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert "krm-runner" in done.stdout
    assert run_cli().returncode == 2
    unknown = run_cli("server")
    assert (unknown.returncode, len(unknown.stderr.splitlines())) == (2, 1)


async def test_without_the_default_config_file_it_warns_and_knows_no_function(tmp_path: Path) -> None:
    with RunnerProcess(cwd=tmp_path) as runner:
        runner.wait_for_line("level=warning event=.no configuration file")
        async with Client(runner.address) as client:
            assert (await client.evaluate("set-namespace:v0.4.1", LIST)).code == "NOT_FOUND"


# --- health -------------------------------------------------------------------------------------------------------


async def test_health_says_not_serving_until_it_is_told_otherwise() -> None:
    health = Health(["some.Service"])
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((health.handler(),))
    port = server.add_insecure_port("localhost:0")
    await server.start()
    async with grpc.aio.insecure_channel(f"localhost:{port}") as channel:
        for service in ("", "some.Service"):
            assert (await check_health(channel, service)).status == HealthResponse.NOT_SERVING
        health.set_serving(True)
        assert (await check_health(channel)).status == HealthResponse.SERVING
    await server.stop(None)


# --- configuration that changes -------------------------------------------------------------------------------------


async def test_the_configuration_is_read_again_when_the_file_changes_and_on_sighup(installation: Installation) -> None:
    first = installation.add("first", COPY)
    runner = installation.start()
    async with Client(runner.address) as client:
        second = installation.add("second", COPY)
        runner.wait_for_line("configuration reloaded")
        assert (await client.evaluate(second, LIST)).code == "OK"

        installation.config.write_text("functions: [broken")
        runner.wait_for_line("level=error event=.configuration not reloaded, the old one stays in force")
        assert (await client.evaluate(second, LIST)).code == "OK"

        installation.config.unlink()
        runner.wait_for_line("level=error event=.the configuration file is gone")
        assert (await client.evaluate(first, LIST)).code == "OK"

        reloads = sum("configuration reloaded" in line for line in runner.lines)
        write_config(installation.config, {"first": [first]})
        runner.process.send_signal(signal.SIGHUP)
        await eventually(
            lambda: sum("configuration reloaded" in line for line in runner.lines) > reloads, what="reload on SIGHUP"
        )
        assert (await client.evaluate(second, LIST)).code == "NOT_FOUND"
        assert (await client.evaluate(first, LIST)).code == "OK"


# --- the end ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_ends_it_without_losing_a_call(installation: Installation, number: signal.Signals) -> None:
    image = installation.add("slow", "#!/bin/sh\nsleep 2\nexec cat\n")
    quick = installation.add("quick", COPY)
    runner = installation.start("--shutdown-delay=1s")
    async with Client(runner.address) as client:
        statuses = watch_health(client.channel)
        assert (await anext(statuses)).status == HealthResponse.SERVING
        under_way = asyncio.create_task(client.evaluate(image, LIST))
        await asyncio.sleep(0.3)
        runner.process.send_signal(number)
        assert (await anext(statuses)).status == HealthResponse.NOT_SERVING
        assert (await check_health(client.channel)).status == HealthResponse.NOT_SERVING
        assert (await client.evaluate(quick, LIST)).code == "OK", "new calls are accepted for a while"
        assert (await under_way).code == "OK"
    assert await asyncio.to_thread(runner.wait) == 0
    assert runner.lines[-1].endswith("event=stopped")


async def test_calls_that_take_too_long_are_told_to_come_back(installation: Installation) -> None:
    image = installation.add("stuck", "#!/bin/sh\nsleep 4001\n")
    runner = installation.start("--shutdown-delay=0s", "--shutdown-timeout=1s")
    async with Client(runner.address) as client:
        under_way = asyncio.create_task(client.evaluate(image, LIST))
        await eventually(lambda: "sleep 4001" in command_lines(), what="the function runs")
        runner.process.send_signal(signal.SIGTERM)
        answer = await under_way
    assert (answer.code, answer.reason, answer.retry_delay) == ("UNAVAILABLE", "SHUTTING_DOWN", 1.0)
    assert await asyncio.to_thread(runner.wait) == 0
    assert "sleep 4001" not in command_lines()


async def test_a_second_signal_ends_it_at_once_with_its_functions(installation: Installation) -> None:
    image = installation.add("stuck", "#!/bin/sh\nsleep 4002 &\nsleep 4003\n")
    runner = installation.start()
    async with Client(runner.address) as client:
        under_way = asyncio.create_task(client.evaluate(image, LIST))
        await eventually(lambda: "sleep 4003" in command_lines(), what="the function runs")
        runner.process.send_signal(signal.SIGTERM)
        runner.wait_for_line("event=stopping")
        runner.process.send_signal(signal.SIGINT)
        assert await asyncio.to_thread(runner.wait) == 128 + signal.SIGINT
        assert (await under_way).code == "UNAVAILABLE"
    await eventually(lambda: not {"sleep 4002", "sleep 4003"} & set(command_lines()), what="functions gone")


# --- logs, metrics, traces ----------------------------------------------------------------------------------------


async def test_json_logs(installation: Installation) -> None:
    image = installation.add("fails", "#!/bin/sh\necho 'two\nlines' >&2\nexit 7\n")
    runner = installation.start("--log-format=json", "--log-level=1")
    async with Client(runner.address) as client:
        assert (await client.evaluate(image, LIST)).code == "INTERNAL"
    record = json.loads(runner.wait_for_line('"evaluated"').string)
    assert (record["level"], record["code"], record["exit"], record["image"]) == ("warning", "INTERNAL", 7, image)
    assert "two\nlines" in record["error"]


async def test_resource_lists_are_logged_at_level_5_only(installation: Installation) -> None:
    image = installation.add("copy", COPY)
    secret = LIST + b"functionConfig: {password: s3cr3t}\n"
    for level in (0, 4, 5):
        runner = installation.start(f"--log-level={level}")
        async with Client(runner.address) as client:
            assert (await client.evaluate(image, secret)).code == "OK"
        if level >= 2:
            runner.wait_for_line("event=evaluated")
        runner.process.send_signal(signal.SIGTERM)
        runner.process.send_signal(signal.SIGINT)
        await asyncio.to_thread(runner.wait)
        logged = "\n".join(runner.lines)
        assert ("s3cr3t" in logged) == (level == 5)
        assert ("event=evaluated" in logged) == (level >= 2)


async def test_prometheus_metrics(installation: Installation) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    image = installation.add("copy", COPY)
    runner = installation.start(
        environment={"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": str(port)}
    )
    async with Client(runner.address) as client:
        await client.evaluate(image, LIST)
        await client.evaluate(image, LIST)
        await client.evaluate("example.com/stranger:v1", LIST)

    def scrape() -> str:
        with urllib.request.urlopen(f"http://localhost:{port}/metrics", timeout=10) as response:
            return cast(bytes, response.read()).decode()

    def status(path: str) -> int:
        try:
            with urllib.request.urlopen(f"http://localhost:{port}{path}", timeout=10) as response:
                return cast(int, response.status)
        except urllib.error.HTTPError as error:
            return error.code

    assert [await asyncio.to_thread(status, path) for path in ("/metrics?name=x", "/", "/other")] == [200, 404, 404]
    text = await asyncio.to_thread(scrape)
    evaluations = {
        tuple("".join(re.findall(rf'{label}="([^"]*)"', line)) for label in ("image", "runtime", "code")): line.split()[
            -1
        ]
        for line in text.splitlines()
        if line.startswith("krm_runner_evaluations_total{")
    }
    assert evaluations == {(image, "exec", "OK"): "2.0", ("", "", "NOT_FOUND"): "1.0"}
    assert "stranger" not in text
    for name in (
        "krm_runner_evaluation_duration_seconds_bucket",
        "krm_runner_queue_wait_seconds_count",
        "krm_runner_executions_running",
        "krm_runner_executions_waiting",
        "krm_runner_evaluations_in_flight",
        "krm_runner_request_size_bytes_total",
        "krm_runner_response_size_bytes_total",
    ):
        assert re.search(rf"^{name}\b", text, re.MULTILINE), name


def test_a_metrics_port_in_use_is_one_line_and_exit_code_1(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        done = run_cli(
            "serve", "--disable-runtimes=exec,pod", "--log-level=0", "--port=0", cwd=tmp_path,
            environment={
                "OTEL_METRICS_EXPORTER": "prometheus",
                "OTEL_EXPORTER_PROMETHEUS_HOST": "127.0.0.1",
                "OTEL_EXPORTER_PROMETHEUS_PORT": str(taken.getsockname()[1]),
            },
        )  # fmt: skip
    assert done.returncode == 1
    assert re.fullmatch(r"krm-runner serve: cannot serve metrics on 127.0.0.1:\d+: .*in use\n", done.stderr)


async def test_resource_lists_are_logged_at_the_highest_level(installation: Installation) -> None:
    image = installation.add("copy", COPY)
    runner = installation.start("--log-level=5")
    async with Client(runner.address) as client:
        assert (await client.evaluate(image, LIST)).code == "OK"
    for event in ("request", "response"):
        line = await asyncio.to_thread(runner.wait_for_line, f"level=debug event={event} image={image} resource_list=")
        assert "kind: ResourceList\\n" in line.string


async def test_traces_continue_the_callers_trace(tmp_path: Path, installation: Installation) -> None:
    image = installation.add("copy", COPY)
    output = tmp_path / "spans.json"
    script = tmp_path / "with-stdout"
    script.write_text(f'#!/bin/sh\nexec "$@" >{output}\n')
    script.chmod(0o755)
    flags = (*installation.flags, "--shutdown-delay=0s")
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    with RunnerProcess(*flags, prefix=[str(script)], environment={"OTEL_TRACES_EXPORTER": "console"}) as runner:
        async with grpc.aio.insecure_channel(runner.address) as channel:
            call = cast("grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]", channel.unary_unary(METHOD))
            await call(
                encode_request(image, LIST),
                metadata=(("traceparent", f"00-{trace_id}-b7ad6b7169203331-01"),),
                timeout=30,
            )
        assert await asyncio.to_thread(runner.stop) == 0
    span = json.loads(output.read_text())
    assert span["name"] == "evaluator.FunctionEvaluator/EvaluateFunction"
    assert span["context"]["trace_id"] == "0x" + trace_id
    assert span["attributes"]["krm_runner.image"] == image
    assert span["attributes"]["rpc.grpc.status_code"] == "OK"
