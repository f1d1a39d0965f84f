"""Processes in standby as those who run the service see them: configuration, metrics, log, the end."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest

from integration.conftest import Installation
from support.client import Client
from support.metrics import Metrics
from support.processes import command_lines, command_of, eventually, open_descriptors
from support.runner import RunnerProcess

LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
COPY = "#!/bin/sh\nexec cat\n"
ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def installation(fronted: Installation) -> Installation:
    """Processes in standby are krm-front's."""
    return fronted


def test_without_krm_front_no_process_waits_and_the_log_says_so(tmp_path: Path) -> None:
    with ExitStack() as stack:
        plain = Installation(tmp_path, stack, front="off")
        plain.add("copy", COPY)
        runner = plain.start("--standby=1")
        runner.wait_for_line("event=serving")
        assert sum("no process is kept in standby: that needs krm-front" in line for line in runner.lines) == 1


async def test_metrics_say_what_waits_and_what_it_saves(installation: Installation) -> None:
    metrics = Metrics()
    image, early = installation.add("copy", COPY), installation.add("early", "#!/bin/sh\necho early >&2\nexec cat\n")
    runner = installation.start("--standby=1", environment=metrics.environment)
    async with Client(runner.address) as client:
        for _ in range(3):
            assert (await client.evaluate(image, LIST)).code == "OK"
            await metrics.show_in_standby(1)
        assert (await client.evaluate(early, LIST)).code == "OK"
        runner.wait_for_line('event="function not kept in standby" function=early why="it wrote to stderr before')
        assert (await client.evaluate(early, LIST)).code == "OK"
    expected = {("copy", "on-demand"): 1, ("copy", "standby"): 2, ("early", "on-demand"): 2}

    def counted() -> dict[tuple[str, ...], float]:
        return metrics.by("executions_total", "function", "process")

    await eventually(lambda: counted() == expected, what="all are counted")
    timed = metrics.by("execution_duration_seconds_count", "function", "process")
    assert timed == expected

    def waiting() -> dict[tuple[str, ...], float]:
        return metrics.by("standby_processes", "function")

    await eventually(lambda: waiting() == {("copy",): 1, ("early",): 0}, what="one waits")
    memory = metrics.by("standby_memory_bytes", "function")
    assert memory[("early",)] == 0
    assert 0 < memory[("copy",)] < 100e6
    await eventually(lambda: metrics.by("executions_running")[()] == 0, what="they hold no place")
    assert sum("not kept in standby" in line for line in runner.lines) == 1


async def test_a_function_whose_answer_left_while_others_ran_has_its_next_process_when_they_end(
    installation: Installation,
) -> None:
    metrics = Metrics()
    go = installation.config.parent / "go"
    image = installation.add("copy", COPY)
    slow = installation.add("slow", '#!/bin/sh\ncat\nwhile [ ! -e "$GO" ]; do sleep 0.05; done\n')
    environment = metrics.environment | {"GO": str(go)}
    runner = installation.start("--max-parallel-executions=9", environment=environment)
    installation.config.write_text(
        f"functions: [{{function: copy, images: ['{image}'], standby: 1}}, {{function: slow, images: ['{slow}']}}]"
    )
    runner.wait_for_line("configuration reloaded")
    async with Client(runner.address) as client:
        # As many as there can be CPUs here, so that none is left for a process without a call.
        others = [asyncio.create_task(client.evaluate(slow, LIST)) for _ in range(min(8, os.cpu_count() or 8))]
        await eventually(lambda: len(runner.functions) >= len(others), what="the others run")
        assert (await client.evaluate(image, LIST)).code == "OK"
        go.touch()
        assert {(await other).code for other in others} == {"OK"}
        await metrics.show_in_standby(1)


async def test_all_functions_together_have_a_bounded_number_and_the_longest_idle_gives_way(
    installation: Installation,
) -> None:
    names = [f"function-{number}" for number in range(34)]
    images = {name: installation.add(name, "#!/bin/sh\ncat\n") for name in names}
    runner = installation.start("--standby=1")

    def waiting() -> set[str]:
        lines = [command_of(pid).split(b"\0") for pid in runner.functions]
        return {Path(line[1].decode()).name for line in lines if len(line) > 1}

    def is_waiting(name: str) -> bool:
        return name in waiting()

    async with Client(runner.address) as client:
        for name, image in images.items():
            assert (await client.evaluate(image, LIST)).code == "OK"
            await eventually(partial(is_waiting, name), what=f"{name} waits")
        await eventually(lambda: waiting() == set(names[2:]), what="the first two gave way")
        assert (await client.evaluate(images[names[0]], LIST)).code == "OK"
        await eventually(lambda: waiting() == {names[0], *names[3:]}, what="it is back, and the next one gave way")


async def test_processes_that_wait_give_way_to_a_call_of_another_function_that_lacks_descriptors(
    installation: Installation,
) -> None:
    first, second = installation.add("first", COPY), installation.add("second", COPY)
    runner = installation.start("--standby=1")
    async with Client(runner.address) as client:
        assert (await client.evaluate(first, LIST)).code == "OK"
        await eventually(lambda: len(runner.functions) == 1, what="one waits")
        (waiting,) = runner.functions
        who_starts = runner.parts[-1]
        limit = len(open_descriptors(who_starts)) + 3
        resource.prlimit(who_starts, resource.RLIMIT_NOFILE, (limit, limit))
        answer = await client.evaluate(second, LIST)
        assert answer.code == "OK", answer.message
        assert waiting not in runner.functions


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
        await metrics.show_in_standby(3)
        kept = metrics.by("standby_processes", "function")
        assert {key[0]: count for key, count in kept.items() if count} == {"one": 1, "default": 2}
        configure(0)
        runner.wait_for_line("configuration reloaded")
        await metrics.show_in_standby(2)


async def test_without_a_word_of_it_nothing_waits(installation: Installation) -> None:
    image = installation.add("copy", COPY)
    runner = installation.start("--log-level=3")
    async with Client(runner.address) as client:
        for _ in range(3):
            assert (await client.evaluate(image, LIST)).code == "OK"
            await asyncio.sleep(0.05)
    assert runner.functions == []
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
    # The port is open before the front is started: until then there are pipes that are not there later.
    runner.wait_for_line("event=serving")
    async with Client(runner.address) as client:
        before = runner.pipes
        for _ in range(5):
            answers = await asyncio.gather(*(client.evaluate(image, LIST) for _ in range(32)))
            assert {(answer.code, answer.resource_list) for answer in answers} == {("OK", LIST)}
        # For a moment it is so whenever they are replaced; once the function is idle it stays so.
        await asyncio.sleep(2)
        await eventually(lambda: runner.functions == [] and runner.pipes == before, what="all are gone")
        await asyncio.sleep(0.2)
        assert (runner.functions, runner.pipes) == ([], before)
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
        await metrics.show_in_standby(1)
        second = await client.evaluate(image, LIST)
    assert (first.code, second.resource_list) == ("OK", first.resource_list)
    assert b"MARK=a=b" in first.resource_list
    assert b'"descriptors": ["0", "1", "2"]' in first.resource_list
    both = {("on-demand",): 1, ("standby",): 1}
    await eventually(lambda: metrics.by("executions_total", "process") == both, what="both are counted")


async def test_the_embedded_functions_are_kept_in_standby(front: Path) -> None:
    example = (ROOT / "examples" / "resource-list.yaml").read_bytes()
    metrics = Metrics()
    with RunnerProcess(
        f"--functions={ROOT / 'functions'}",
        f"--config={ROOT / 'config.yaml'}",
        f"--front={front}",
        environment={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"} | metrics.environment,
    ) as runner:
        async with Client(runner.address) as client:
            catalog = ("set-namespace:v0.4.1", "set-namespace:v0.4.5")
            images = (*catalog, "krm-runner/set-labels:v1", "krm-runner/set-annotations:v1")
            for number, image in enumerate(images, start=1):
                first = await client.evaluate(image, example)
                await metrics.show_in_standby(number)
                assert await client.evaluate(image, example) == first
                await metrics.show_in_standby(number)
        names = ("set-namespace-v0.4.1", "set-namespace-v0.4.5", "set-labels", "set-annotations")
        expected = {(name, process): 1 for name in names for process in ("on-demand", "standby")}

        def counted() -> dict[tuple[str, ...], float]:
            return metrics.by("executions_total", "function", "process")

        await eventually(lambda: counted() == expected, what="all are counted")
