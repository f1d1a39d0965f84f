"""What one function, one file or one neighbour does must not reach the others: each case was once a defect."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import cast

import grpc
import pytest

from integration.conftest import Installation
from integration.test_service import run_cli
from krm_runner.process.watcher import READABLE, Watcher
from krm_runner.rpc.wire import encode_request
from support.client import METHOD, Client
from support.processes import command_lines, eventually
from support.runner import RunnerProcess
from support.server import free_port

LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
COPY = "#!/bin/sh\nexec cat\n"

HOSTILE = {
    "deep results": (
        "OK",
        "printf 'kind: ResourceList\\nresults:\\n- '; head -c 30000 /dev/zero | tr '\\0' '['; echo error",
    ),
    "deep items": ("OK", "printf 'kind: ResourceList\\nitems:\\n- '; head -c 1000000 /dev/zero | tr '\\0' '['"),
    "deep value": ("INTERNAL", "printf 'kind: ResourceList\\nx: '; head -c 1000000 /dev/zero | tr '\\0' '['"),
    "many spaces": ("INTERNAL", "printf 'kind: a'; head -c 1000000 /dev/zero | tr '\\0' ' '; echo :"),
    "many newlines": ("INTERNAL", "head -c 5000000 /dev/zero | tr '\\0' '\\n'"),
    "lone surrogate": ("INTERNAL", """echo '{"kind":"ResourceList","results":[{"message":"a \\ud800"}]}'; exit 1"""),
}


@pytest.mark.parametrize("case", HOSTILE, ids=lambda case: case.replace(" ", "-"))
async def test_hostile_output_does_not_reach_other_calls(installation: Installation, case: str) -> None:
    code, commands = HOSTILE[case]
    hostile = installation.add("hostile", f"#!/bin/sh\ncat >/dev/null\n{commands}\n")
    copy = installation.add("copy", COPY)
    runner = installation.start("--max-parallel-executions=4")
    async with Client(runner.address) as client:
        hostile_calls = [asyncio.create_task(client.evaluate(hostile, LIST, timeout=50)) for _ in range(3)]
        others = [await client.evaluate(copy, LIST, timeout=30) for _ in range(10)]
        assert {answer.code for answer in others} == {"OK"}
        answers = await asyncio.gather(*hostile_calls)
    assert [answer.code for answer in answers] == [code] * 3, answers[0].message
    assert runner.process.poll() is None
    assert not [line for line in runner.lines if "unexpected" in line]


async def test_verdicts_that_nobody_waits_for_do_not_keep_the_service_from_ending(installation: Installation) -> None:
    flow = "#!/bin/sh\nprintf 'kind: ResourceList\\nx: ['; yes '{a: b, c: d},' | head -n 300000; echo ']'\n"
    image = installation.add("flow", flow)
    failing = installation.add("failing", "#!/bin/sh\nexit 1\n")
    runner = installation.start("--max-parallel-executions=8", "--shutdown-delay=0s", "--shutdown-timeout=2s")
    async with Client(runner.address) as client:
        await asyncio.gather(*(client.evaluate(image, LIST, timeout=0.7) for _ in range(8)))
        assert (await client.evaluate(failing, LIST, timeout=30)).code == "INTERNAL"
    assert await asyncio.to_thread(runner.stop, signal.SIGTERM, 20) == 0


@pytest.mark.parametrize(
    "text",
    ["functions: " + "[" * 30000, "functions: [{function: " + "x" * 300 + "}]", "functions: !!timestamp x"],
    ids=["deep", "long", "tag"],
)
async def test_a_config_file_cannot_end_the_service(installation: Installation, text: str) -> None:
    image = installation.add("copy", COPY)
    runner = installation.start()
    installation.config.write_text(text)
    runner.wait_for_line("configuration (not )?reloaded")
    async with Client(runner.address) as client:
        assert (await client.evaluate(image, LIST)).code in ("OK", "NOT_FOUND")


async def test_an_emptied_config_file_keeps_the_old_table(installation: Installation) -> None:
    image = installation.add("copy", COPY)
    runner = installation.start()
    installation.config.write_text("")
    runner.wait_for_line("configuration not reloaded.*is empty")
    async with Client(runner.address) as client:
        assert (await client.evaluate(image, LIST)).code == "OK"


def start_bare(*redirections: str, port: int, flags: str = "") -> subprocess.Popen[bytes]:
    """A runner without the descriptors that it would like to have."""
    command = f"exec {sys.executable} -m krm_runner serve --disable-runtimes=exec,pod --port={port} {flags}"
    return subprocess.Popen(["bash", "-c", f"{command} {' '.join(redirections)}"], start_new_session=True)


@pytest.mark.parametrize("redirections", [["2> >(head -n 1 >/dev/null)"], [">&-", "2>&-"], ["<&-", ">&-", "2>&-"]])
async def test_it_serves_without_anybody_to_read_its_log(redirections: list[str]) -> None:
    port = free_port()
    process = start_bare(*redirections, port=port, flags="--shutdown-delay=0s")
    try:
        async with Client(f"localhost:{port}") as client:
            await asyncio.wait_for(client.channel.channel_ready(), 30)
            for _ in range(5):
                assert (await client.evaluate("example.com/a:b", LIST, timeout=10)).code == "NOT_FOUND"
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 30) == 0
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


async def test_a_request_that_is_still_coming_in_when_the_end_begins_is_served(installation: Installation) -> None:
    image = installation.add("slow", "#!/bin/sh\nsleep 2\nexec cat\n")
    runner = installation.start("--shutdown-delay=1s")

    async with grpc.aio.insecure_channel(runner.address) as channel:
        # The same bytes as a unary call, but the message is sent when we like.
        call = cast("grpc.aio.StreamUnaryMultiCallable[bytes, bytes]", channel.stream_unary(METHOD))()
        await asyncio.sleep(0.3)
        runner.process.send_signal(signal.SIGTERM)
        await asyncio.sleep(1.5)
        await call.write(encode_request(image, LIST))
        await call.done_writing()
        assert LIST in await asyncio.wait_for(call, 30)
    assert await asyncio.to_thread(runner.wait) == 0


async def test_calls_that_end_early_are_counted_with_their_image_and_runtime(installation: Installation) -> None:
    image = installation.add("stuck", "#!/bin/sh\nsleep 8001\n")
    runner = installation.start("--max-parallel-executions=2")
    async with Client(runner.address) as client:
        late = await client.evaluate(image, LIST, timeout=0.6)
        assert late.code == "DEADLINE_EXCEEDED"
        await eventually(lambda: "sleep 8001" not in command_lines(), what="the first one is gone")
        call = client.start(image, LIST)
        await eventually(lambda: "sleep 8001" in command_lines(), what="the function runs")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
    for code in ("DEADLINE_EXCEEDED", "CANCELLED"):
        line = runner.wait_for_line(f"event=evaluated .*code={code}").string
        assert f"image={image} runtime=exec" in line


async def test_a_collector_that_is_not_there_does_not_keep_the_service_from_ending(installation: Installation) -> None:
    image = installation.add("copy", COPY)
    environment = {
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_METRICS_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://localhost:{free_port()}",
    }
    runner = installation.start("--shutdown-delay=0s", environment=environment)
    async with Client(runner.address) as client:
        assert (await client.evaluate(image, LIST)).code == "OK"
    assert await asyncio.to_thread(runner.stop, signal.SIGTERM, 20) == 0


@pytest.mark.parametrize(
    "environment",
    [
        {"OTEL_EXPORTER_PROMETHEUS_PORT": "\u00b2"},
        {"OTEL_TRACES_EXPORTER": "otlp", "OTEL_BSP_MAX_QUEUE_SIZE": "0"},
        {"OTEL_TRACES_EXPORTER": "console", "OTEL_PROPAGATORS": "nope"},
    ],
    ids=lambda environment: next(reversed(environment)),
)
def test_odd_telemetry_variables_are_one_line_and_exit_code_2(tmp_path: Path, environment: dict[str, str]) -> None:
    flags = ("--disable-runtimes=exec,pod", "--port=0", "--log-level=0")
    done = run_cli("serve", *flags, cwd=tmp_path, environment=environment)
    assert done.returncode == 2, done.stderr
    assert done.stderr.splitlines()[-1].startswith("krm-runner serve: ")
    assert "Traceback" not in done.stderr


def test_the_largest_message_size_works(installation: Installation) -> None:
    runner = installation.start("--max-request-body-size=2147483647")
    assert runner.process.poll() is None


def test_an_interruption_while_it_starts_is_no_traceback(tmp_path: Path) -> None:
    for delay in (0.05, 0.15, 0.3):
        process = subprocess.Popen(
            [sys.executable, "-m", "krm_runner", "serve", "--disable-runtimes=pod", "--port=0", "--shutdown-delay=0s"],
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )
        time.sleep(delay)
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=30)
        assert process.returncode in (0, 143, -signal.SIGTERM)
        assert "Traceback" not in stderr


async def test_zombies_of_somebody_else_do_not_stop_the_reaping(installation: Installation) -> None:
    image = installation.add("leaver", "#!/bin/sh\nsetsid true &\nexec cat\n")
    flags = (f"--functions={installation.functions}", f"--config={installation.config}")
    with RunnerProcess(*flags, prefix=["sh", "-c", 'sleep 0.1 & exec "$@"', "sh"]) as runner:
        async with Client(runner.address) as client:
            for _ in range(5):
                assert (await client.evaluate(image, LIST)).code == "OK"
        await eventually(lambda: not runner.functions, what="all zombies reaped")


async def test_a_watcher_calls_back_until_it_is_told_to_forget() -> None:
    watcher = Watcher()
    read_end, write_end = os.pipe()
    seen: list[int] = []
    try:
        watcher.watch(read_end, READABLE, seen.append)
        os.write(write_end, b"x")
        await eventually(lambda: len(seen) > 1, what="called again and again")
        watcher.forget(read_end)
        watcher.forget(read_end)
        count = len(seen)
        await asyncio.sleep(0.05)
        assert len(seen) == count
        with pytest.raises(OSError):  # noqa: PT011 - whichever the kernel says
            watcher.watch(9999, READABLE, seen.append)
    finally:
        watcher.close()
        os.close(read_end)
        os.close(write_end)
