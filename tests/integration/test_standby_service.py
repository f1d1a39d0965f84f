"""Processes in standby as those who run the service see them: configuration, metrics, log, the end."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
import urllib.request
from pathlib import Path

from integration.conftest import Installation
from support.client import Client
from support.processes import children, command_lines, eventually, pipes
from support.runner import RunnerProcess
from support.server import free_port

LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
COPY = "#!/bin/sh\nexec cat\n"
ROOT = Path(__file__).parent.parent.parent


class Metrics:
    """Of one runner."""

    def __init__(self) -> None:
        self._port = free_port()
        self.environment = {"OTEL_METRICS_EXPORTER": "prometheus", "OTEL_EXPORTER_PROMETHEUS_PORT": str(self._port)}

    def read(self, name: str, *labels: str) -> dict[tuple[str, ...], float]:
        """The values of a metric by some of its labels."""
        with urllib.request.urlopen(f"http://localhost:{self._port}/metrics", timeout=10) as response:
            text = bytes(response.read()).decode()
        return {
            tuple("".join(re.findall(rf'{label}="([^"]*)"', line)) for label in labels): float(line.split()[-1])
            for line in text.splitlines()
            if line.startswith(name + "{")
        }


async def has_waiting(metrics: Metrics, count: int) -> None:
    """Waits until so many processes can be taken: one that was just started is not the runner's to give yet."""
    await eventually(
        lambda: sum(metrics.read("krm_runner_standby_processes", "function").values()) == count,
        what=f"{count} in standby",
    )


async def test_metrics_say_what_waits_and_what_it_saves(installation: Installation) -> None:
    metrics = Metrics()
    image, early = installation.add("copy", COPY), installation.add("early", "#!/bin/sh\necho early >&2\nexec cat\n")
    runner = installation.start("--standby=1", environment=metrics.environment)
    async with Client(runner.address) as client:
        for _ in range(3):
            assert (await client.evaluate(image, LIST)).code == "OK"
            await has_waiting(metrics, 1)
        assert (await client.evaluate(early, LIST)).code == "OK"
        runner.wait_for_line('event="function not kept in standby" function=early why="it wrote to stderr before')
        assert (await client.evaluate(early, LIST)).code == "OK"
    counted = metrics.read("krm_runner_executions_total", "function", "process")
    assert counted == {("copy", "on-demand"): 1, ("copy", "standby"): 2, ("early", "on-demand"): 2}
    timed = metrics.read("krm_runner_execution_duration_seconds_count", "function", "process")
    assert timed == counted
    waiting = metrics.read("krm_runner_standby_processes", "function")
    assert waiting == {("copy",): 1, ("early",): 0}
    memory = metrics.read("krm_runner_standby_memory_bytes", "function")
    assert memory[("early",)] == 0
    assert 0 < memory[("copy",)] < 100e6
    assert metrics.read("krm_runner_executions_running")[()] == 0, "they hold no place"
    assert sum("not kept in standby" in line for line in runner.lines) == 1


async def test_the_configuration_file_says_how_many_of_each_function(installation: Installation) -> None:
    one, none, default = (installation.add(name, COPY) for name in ("one", "none", "default"))

    def configure(standby_of_one: int) -> None:
        installation.config.write_text(
            f"""
            functions:
            - {{function: one, images: ['{one}'], standby: {standby_of_one}}}
            - {{function: none, images: ['{none}'], standby: 0}}
            - {{function: default, images: ['{default}']}}
            """
        )

    configure(1)
    metrics = Metrics()
    runner = installation.start("--log-level=3", "--standby=2", environment=metrics.environment)
    async with Client(runner.address) as client:
        for image in (one, none, default):
            assert (await client.evaluate(image, LIST)).code == "OK"
        await has_waiting(metrics, 3)
        kept = metrics.read("krm_runner_standby_processes", "function")
        assert {key[0]: count for key, count in kept.items() if count} == {"one": 1, "default": 2}
        configure(0)
        runner.wait_for_line("configuration reloaded")
        await has_waiting(metrics, 2)


async def test_without_a_word_of_it_nothing_waits(installation: Installation) -> None:
    image = installation.add("copy", COPY)
    runner = installation.start("--log-level=3")
    async with Client(runner.address) as client:
        for _ in range(3):
            assert (await client.evaluate(image, LIST)).code == "OK"
            await asyncio.sleep(0.05)
    assert children(runner.pid) == []
    assert not [line for line in runner.lines if "standby" in line and "process=on-demand" not in line]


async def test_at_the_end_they_go_at_once_and_calls_under_way_are_answered(installation: Installation) -> None:
    copy = installation.add("copy", "#!/bin/sh\nsleep 5301 &\nexec cat\n")
    slow = installation.add("slow", '#!/bin/sh\ncat\nsleep 5302 & while [ ! -e "$GO" ]; do sleep 0.05; done\n')
    go = installation.config.parent / "go"
    runner = installation.start(environment={"GO": str(go)})
    installation.config.write_text(
        f"functions: [{{function: copy, images: ['{copy}'], standby: 2}}, {{function: slow, images: ['{slow}']}}]"
    )
    runner.wait_for_line("configuration reloaded")
    async with Client(runner.address) as client:
        assert (await client.evaluate(copy, LIST)).code == "OK"
        await eventually(lambda: command_lines().count("sleep 5301") == 2, what="two in standby")
        under_way = asyncio.create_task(client.evaluate(slow, LIST))
        await eventually(lambda: "sleep 5302" in command_lines(), what="a call under way")
        runner.process.send_signal(signal.SIGTERM)
        await eventually(lambda: "sleep 5301" not in command_lines(), what="none in standby is left")
        assert not under_way.done()
        # Still accepted, and none is started after it.
        assert (await client.evaluate(copy, LIST)).code == "OK"
        go.touch()
        assert (await under_way).code == "OK"
    await eventually(lambda: runner.process.poll() is not None, what="the end")
    assert runner.process.returncode == 0
    assert not {"sleep 5301", "sleep 5302"} & set(command_lines())


async def test_a_second_signal_leaves_none_behind(installation: Installation) -> None:
    image = installation.add("copy", "#!/bin/sh\nsleep 5303 &\nexec cat\n")
    runner = installation.start("--standby=1")
    async with Client(runner.address) as client:
        assert (await client.evaluate(image, LIST)).code == "OK"
        await eventually(lambda: "sleep 5303" in command_lines(), what="one in standby")
    runner.process.send_signal(signal.SIGTERM)
    runner.process.send_signal(signal.SIGINT)
    await eventually(lambda: runner.process.poll() is not None, what="the end")
    await eventually(lambda: "sleep 5303" not in command_lines(), what="none in standby is left")


async def test_pipes_and_processes_are_what_they_were_before(installation: Installation) -> None:
    image = installation.add("copy", COPY)
    runner = installation.start("--standby=2", "--standby-idle=2s", "--standby-max-age=100ms")
    async with Client(runner.address) as client:
        before = pipes(runner.pid)
        for _ in range(5):
            answers = await asyncio.gather(*(client.evaluate(image, LIST) for _ in range(32)))
            assert {(answer.code, answer.resource_list) for answer in answers} == {("OK", LIST)}
        # For a moment it is so whenever they are replaced; once the function is idle it stays so.
        await asyncio.sleep(2)
        await eventually(lambda: children(runner.pid) == [] and pipes(runner.pid) == before, what="all are gone")
        await asyncio.sleep(0.2)
        assert (children(runner.pid), pipes(runner.pid)) == ([], before)
        assert not [line for line in runner.lines if "level=error" in line]


async def test_a_process_in_standby_finds_what_one_on_demand_finds(installation: Installation) -> None:
    probe = f"""#!{sys.executable} -IS
import json, os, signal, sys
found = {{
    "environ": open("/proc/self/environ").read(),
    "cwd": os.getcwd(),
    "argv": sys.argv,
    "descriptors": sorted(n for n in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + n)),
    "leader": os.getpgid(0) == os.getpid(),
    "signals": [line for line in open("/proc/self/status") if line.startswith("Sig") and "SigQ" not in line],
}}
sys.stdin.buffer.read()
print(json.dumps({{"kind": "ResourceList", "found": found}}))
"""
    image = installation.add("probe", probe)
    metrics = Metrics()
    runner = installation.start("--standby=1", environment={"MARK": "a=b"} | metrics.environment)
    async with Client(runner.address) as client:
        first = await client.evaluate(image, LIST)
        await has_waiting(metrics, 1)
        second = await client.evaluate(image, LIST)
    assert (first.code, second.resource_list) == ("OK", first.resource_list)
    assert b"MARK=a=b" in first.resource_list
    assert b'"descriptors": ["0", "1", "2"]' in first.resource_list
    started = metrics.read("krm_runner_executions_total", "process")
    assert started == {("on-demand",): 1, ("standby",): 1}


async def test_the_embedded_functions_are_kept_in_standby() -> None:
    example = (ROOT / "examples" / "resource-list.yaml").read_bytes()
    metrics = Metrics()
    with RunnerProcess(
        f"--functions={ROOT / 'functions'}",
        f"--config={ROOT / 'config.yaml'}",
        environment={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | metrics.environment,
    ) as runner:
        async with Client(runner.address) as client:
            images = ("set-namespace:v0.4.1", "set-labels:v0.2.0", "set-annotations:v0.1.4")
            for number, image in enumerate(images, start=1):
                first = await client.evaluate(image, example)
                await has_waiting(metrics, number)
                assert await client.evaluate(image, example) == first
                await has_waiting(metrics, number)
        counted = metrics.read("krm_runner_executions_total", "function", "process")
        assert {key: value for key, value in counted.items() if key[1] == "standby"} == {
            ("set-namespace", "standby"): 1, ("set-labels", "standby"): 1, ("set-annotations", "standby"): 1,
        }  # fmt: skip
