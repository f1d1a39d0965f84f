"""Processes in standby, with real executables: what they do early, late or never, and that nothing is left of them."""

from __future__ import annotations

import asyncio
import os
import random
import resource
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from krm_runner.core.standby import StandbyLimits
from krm_runner.process.executor import Executor, Outcome, OutputLimitError
from krm_runner.process.spawn import Spawner, initial_environment
from krm_runner.process.standby import Standby
from support.processes import PROC, command_lines, eventually
from support.runner import write_function

FOREVER = 1e12
MEGABYTE = 1024 * 1024
COPY = "#!/bin/sh\nexec cat\n"
COPY_WITH_PID = "#!/bin/sh\necho $$\nexec cat\n"


class Functions:
    """An executor, and functions that are called as the exec runtime does it."""

    def __init__(self, directory: Path, executor: Executor) -> None:
        assert executor.standby is not None
        self.executor = executor
        self.standby: Standby = executor.standby
        self._directory = directory

    def install(self, name: str, script: str) -> None:
        """As package managers do it: another file takes the place of the old one."""
        write_function(self._directory, f"{name}.new", script).rename(self._directory / name)

    async def call(
        self, name: str, stdin: bytes = b"input", *, wanted: int = 1, max_output: int = 16 * MEGABYTE
    ) -> Outcome:
        argv = [os.fsencode(self._directory / name)]
        try:
            return await self.executor.run(argv, stdin, function=name, max_output=max_output, deadline=FOREVER)
        finally:
            self.standby.called(argv, function=name, wanted=wanted)

    async def has(self, name: str, count: int) -> None:
        await eventually(lambda: self.standby.waiting().get(name, 0) == count, what=f"{count} of {name} in standby")

    async def asleep(self, name: str) -> None:
        """One of the function waits, and has done all that it does before its input comes."""
        await self.has(name, 1)
        await eventually(lambda: all(state_of(pid) == "S" for pid in self.standby.pids), what=f"{name} sleeps")


@asynccontextmanager
async def functions_of(
    directory: Path, *, max_age: float = 1000, idle: float = 1000, cpus: int = 2, max_parallel: int = 3
) -> AsyncGenerator[Functions]:
    spawner = Spawner(initial_environment())
    spawner.become_subreaper()
    limits = StandbyLimits(cpus=cpus, max_age=max_age, idle=idle, settling=0.001)
    executor = Executor(spawner, max_parallel=max_parallel, max_waiting=100, standby=limits)
    functions = Functions(directory, executor)
    try:
        yield functions
        await eventually(lambda: executor.running == 0, what="every place is free")
    finally:
        functions.standby.end()
        await eventually(lambda: not functions.standby.pids, what="no process in standby is left")
        executor.close()


@pytest.fixture
async def functions(no_leaks: None, tmp_path: Path) -> AsyncIterator[Functions]:
    async with functions_of(tmp_path / "functions") as created:
        yield created


def state_of(pid: int | None) -> str:
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]


async def test_the_second_call_gets_a_process_that_waited_for_it(functions: Functions) -> None:
    functions.install("copy", COPY)
    first = await functions.call("copy", b"one")
    await functions.has("copy", 1)
    (waiting,) = functions.standby.pids
    second = await functions.call("copy", b"two")
    assert (first.origin, first.exit_code, first.stdout) == ("on-demand", 0, b"one")
    assert (second.origin, second.exit_code, second.stdout) == ("standby", 0, b"two")
    await functions.has("copy", 1)
    assert waiting not in functions.standby.pids


async def test_a_process_serves_exactly_one_call(functions: Functions) -> None:
    functions.install("copy", "#!/bin/sh\ncat\necho $$\n")
    served: list[bytes] = []
    for _ in range(10):
        served.append((await functions.call("copy", b"")).stdout)
        await functions.has("copy", 1)
    assert len(set(served)) == 10


async def test_as_many_wait_as_are_wanted_and_the_oldest_goes_first(functions: Functions) -> None:
    functions.install("copy", "#!/bin/sh\ncat\necho $$\n")
    await functions.call("copy", wanted=3)
    await functions.has("copy", 3)
    by_age = sorted(
        (pid for pid in functions.standby.pids if pid is not None),
        key=lambda pid: int((PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()[19]),
    )
    assert len(by_age) == 3
    outcome = await functions.call("copy", b"", wanted=3)
    assert (outcome.origin, int(outcome.stdout)) == ("standby", min(by_age))
    await functions.has("copy", 3)
    await functions.call("copy", wanted=0)
    await functions.has("copy", 0)


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 5_000_000])
async def test_input_of_any_size_reaches_a_process_that_waited(functions: Functions, size: int) -> None:
    functions.install("copy", COPY)
    data = random.Random(size).randbytes(size)
    await functions.call("copy", data)
    await functions.has("copy", 1)
    outcome = await functions.call("copy", data)
    assert (outcome.origin, outcome.stdout == data) == ("standby", True)


@pytest.mark.parametrize(
    "script",
    [
        "#!/bin/sh\nexit 3\n",
        "#!/bin/sh\necho early\nexec cat\n",
        "#!/bin/sh\necho early >&2\nexec cat\n",
        "#!/bin/sh\nkill -SEGV $$\n",
        "#!/bin/sh\nsleep 5101 &\nexit 3\n",
    ],
    ids=["exits", "writes to stdout", "writes to stderr", "is killed", "leaves another behind"],
)
async def test_a_function_that_acts_before_its_input_comes_is_not_kept(functions: Functions, script: str) -> None:
    functions.install("early", script)
    first = await functions.call("early", b"input")
    assert first.origin == "on-demand"
    await eventually(lambda: not functions.standby.pids, what="the start and its end")
    await asyncio.sleep(0.1)
    for _ in range(3):
        again = await functions.call("early", b"input")
        assert (again.origin, again.exit_code, again.stdout, again.stderr) == (
            "on-demand", first.exit_code, first.stdout, first.stderr,
        )  # fmt: skip
        await asyncio.sleep(0.05)
    assert functions.standby.pids == set()
    assert "sleep 5101" not in command_lines()


async def test_what_it_did_is_seen_before_its_input_is_written(functions: Functions) -> None:
    functions.install("late", "#!/bin/sh\nsleep 0.2\necho early\nexec cat\n")
    await functions.call("late")
    await functions.has("late", 1)
    (waiting,) = functions.standby.pids
    # Nothing is told to this event loop meanwhile: the call itself must look.
    end = time.monotonic() + 20
    while state_of(waiting) != "S" or b"cat" not in (PROC / str(waiting) / "cmdline").read_bytes():
        assert time.monotonic() < end
        time.sleep(0.01)
    outcome = await functions.call("late", b"input")
    assert (outcome.origin, outcome.stdout) == ("on-demand", b"early\ninput")


async def test_one_that_ends_without_a_look_at_its_input_is_run_again_in_the_same_place(
    no_leaks: None, tmp_path: Path
) -> None:
    async with functions_of(tmp_path / "functions", max_parallel=1) as functions:
        functions.install("deaf", "#!/bin/sh\nsleep 0.3\necho sorry >&2\nexit 3\n")
        functions.install("copy", COPY)
        first = await functions.call("deaf")
        await functions.has("deaf", 1)
        answered: list[str] = []
        functions.executor.on_ended = lambda function, _origin, _seconds: answered.append(function)
        second, _ = await asyncio.gather(functions.call("deaf"), functions.call("copy"))
        assert (first.exit_code, first.stderr) == (second.exit_code, second.stderr) == (3, b"sorry\n")
        assert second.origin == "on-demand"
        assert answered == ["deaf", "copy"], "the other call waits until both runs are over"
        await functions.has("deaf", 0)
        await functions.has("copy", 1)
        assert functions.standby.waiting() == {"deaf": 0, "copy": 1}


async def test_one_that_ends_without_a_look_at_its_large_input_is_run_again_too(functions: Functions) -> None:
    functions.install("deaf", "#!/bin/sh\nsleep 0.3\nexit 3\n")
    await functions.call("deaf")
    await functions.has("deaf", 1)
    outcome = await functions.call("deaf", bytes(5_000_000))
    assert (outcome.origin, outcome.exit_code) == ("on-demand", 3)


async def test_one_that_answers_without_a_look_at_its_input_is_believed_once(functions: Functions) -> None:
    functions.install("generator", "#!/bin/sh\nsleep 0.3\necho answer\n")
    await functions.call("generator")
    await functions.has("generator", 1)
    outcome = await functions.call("generator")
    assert (outcome.origin, outcome.stdout) == ("standby", b"answer\n")
    await asyncio.sleep(0.1)
    assert functions.standby.pids == set()
    assert (await functions.call("generator")).origin == "on-demand"


async def test_one_that_reads_a_little_and_fails_is_believed(functions: Functions) -> None:
    functions.install("picky", "#!/bin/sh\nread line\nexit 4\n")
    await functions.call("picky")
    await functions.asleep("picky")
    outcome = await functions.call("picky", b"first line\n" + bytes(300_000))
    assert (outcome.origin, outcome.exit_code) == ("standby", 4)


async def test_one_that_closes_its_outputs_and_waits_is_kept(functions: Functions) -> None:
    functions.install("quiet", "#!/bin/sh\nexec 2>&-\nexec cat\n")
    await functions.call("quiet")
    await functions.asleep("quiet")
    outcome = await functions.call("quiet", b"input")
    assert (outcome.origin, outcome.stdout) == ("standby", b"input")


async def test_another_file_in_its_place_is_what_the_next_call_runs(functions: Functions) -> None:
    functions.install("f", "#!/bin/sh\nread line\necho old\n")
    await functions.call("f")
    await functions.asleep("f")
    (old,) = functions.standby.pids
    functions.install("f", "#!/bin/sh\nread line\necho new\n")
    outcome = await functions.call("f")
    assert (outcome.origin, outcome.stdout) == ("on-demand", b"new\n")
    await functions.asleep("f")
    assert old not in functions.standby.pids
    outcome = await functions.call("f")
    assert (outcome.origin, outcome.stdout) == ("standby", b"new\n")


async def test_another_file_in_the_place_of_a_marked_one_gets_its_chance(functions: Functions) -> None:
    functions.install("f", "#!/bin/sh\nexit 3\n")
    await functions.call("f")
    await eventually(lambda: not functions.standby.pids, what="the start and its end")
    functions.install("f", COPY)
    await functions.call("f")
    await functions.asleep("f")
    assert (await functions.call("f", b"input")).origin == "standby"


async def test_a_missing_file_starts_nothing_and_its_return_does(functions: Functions, tmp_path: Path) -> None:
    functions.install("f", COPY)
    await functions.call("f")
    await functions.has("f", 1)
    (tmp_path / "functions" / "f").unlink()
    with pytest.raises(FileNotFoundError):
        await functions.call("f")
    await functions.has("f", 0)
    functions.install("f", COPY)
    assert (await functions.call("f")).origin == "on-demand"
    await functions.has("f", 1)


async def test_retired_at_its_age_and_replaced(no_leaks: None, tmp_path: Path) -> None:
    async with functions_of(tmp_path / "functions", max_age=0.2) as functions:
        functions.install("copy", COPY)
        await functions.call("copy")
        await functions.has("copy", 1)
        first = functions.standby.pids
        await eventually(lambda: not first & functions.standby.pids, what="the first one is retired")
        await functions.has("copy", 1)


async def test_none_is_left_of_a_function_that_is_not_called_any_more(no_leaks: None, tmp_path: Path) -> None:
    async with functions_of(tmp_path / "functions", idle=0.3) as functions:
        functions.install("copy", COPY)
        await functions.call("copy", wanted=2)
        await functions.has("copy", 2)
        await eventually(lambda: not functions.standby.pids, what="all are gone")
        assert (await functions.call("copy")).origin == "on-demand"


async def test_none_is_started_while_every_cpu_has_a_call(no_leaks: None, tmp_path: Path) -> None:
    async with functions_of(tmp_path / "functions", cpus=1) as functions:
        functions.install("slow", "#!/bin/sh\nread line\nsleep 0.5\n")
        functions.install("copy", COPY)
        slow = asyncio.create_task(functions.call("slow", b"\n", wanted=0))
        await asyncio.sleep(0.1)
        assert (await functions.call("copy")).origin == "on-demand"
        await asyncio.sleep(0.1)
        assert (slow.done(), functions.standby.pids) == (False, set())
        await slow
        await functions.has("copy", 1)


async def test_32_callers(functions: Functions) -> None:
    functions.install("copy", COPY)
    await functions.call("copy")
    await functions.has("copy", 1)

    async def caller(number: int) -> list[str]:
        origins: list[str] = []
        for turn in range(10):
            text = f"{number} {turn}".encode()
            outcome = await functions.call("copy", text)
            assert (outcome.exit_code, outcome.stdout) == (0, text)
            origins.append(outcome.origin)
        return origins

    origins = [origin for each in await asyncio.gather(*map(caller, range(32))) for origin in each]
    assert len(origins) == 320
    assert "standby" in origins
    await functions.has("copy", 1)
    assert len(functions.standby.pids) == 1


async def test_cancelled_at_every_step_of_the_way(functions: Functions) -> None:
    functions.install("slow", "#!/bin/sh\ncat\nsleep 0.05\n")
    taken = 0
    for steps in range(12):
        await functions.call("slow", b"")
        await functions.has("slow", 1)
        (waiting,) = functions.standby.pids
        task = asyncio.create_task(functions.call("slow", b"x" * 300_000))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: functions.executor.running == 0, what="the place is free")
        taken += waiting not in functions.standby.pids
    assert taken >= 10


async def test_a_random_load_with_random_cancellations(functions: Functions) -> None:
    scripts = {
        "copy": COPY,
        "parent": "#!/bin/sh\nsleep 6101 &\nexec cat\n",
        "stuck": "#!/bin/sh\nread line\nsleep 6102\n",
        "sudden": "#!/bin/sh\nsleep 0.0$$\nkill -SEGV $$\n",
        "noisy": "#!/bin/sh\nread line\nyes\n",
        "early": "#!/bin/sh\necho early\nexec cat\n",
        "deaf": "#!/bin/sh\nsleep 0.05\nexit 3\n",
    }
    for name, script in scripts.items():
        functions.install(name, script)
    dice = random.Random(7)

    async def one() -> None:
        try:
            async with asyncio.timeout(dice.choice([0.0, 0.001, 0.005, 0.02, 0.1, 0.3])):
                stdin = bytes(dice.choice([0, 10, 200_000]))
                await functions.call(dice.choice([*scripts]), stdin, wanted=dice.choice([0, 1, 2]), max_output=MEGABYTE)
        except (TimeoutError, OSError, OutputLimitError):
            pass
        if dice.random() < 0.2:
            functions.install("copy", COPY)

    for _ in range(15):
        await asyncio.gather(*(one() for _ in range(20)))
        await asyncio.sleep(dice.choice([0, 0.01, 0.1]))
    outcome = await functions.call("copy", b"still well")
    assert (outcome.exit_code, outcome.stdout) == (0, b"still well")
    functions.standby.end()
    await eventually(lambda: not {"sleep 6101", "sleep 6102"} & set(command_lines()), what="all of them gone")


async def test_too_much_output_of_a_process_that_waited(functions: Functions) -> None:
    functions.install("noisy", "#!/bin/sh\nread line\nyes\n")
    with pytest.raises(OutputLimitError):
        await functions.call("noisy", b"\n", max_output=1000)
    await functions.asleep("noisy")
    with pytest.raises(OutputLimitError):
        await functions.call("noisy", b"\n", max_output=1000)


async def test_a_call_that_lacks_descriptors_gets_those_of_processes_in_standby(functions: Functions) -> None:
    functions.install("waits", COPY)
    functions.install("copy", COPY)
    await functions.call("waits", wanted=2)
    await functions.has("waits", 2)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    fillers: list[int] = []
    try:
        # No number is free below the limit.
        while not fillers or fillers[-1] < highest:
            fillers.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 1, hard))
        outcome = await functions.call("copy", b"input", wanted=0)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for filler in fillers:
            os.close(filler)
    assert (outcome.exit_code, outcome.stdout) == (0, b"input")
    await functions.has("waits", 0)


async def test_a_start_without_descriptors_is_nobodys_error(functions: Functions) -> None:
    functions.install("copy", COPY)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    await functions.call("copy")
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        await asyncio.sleep(0.1)
        assert functions.standby.pids == set()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert (await functions.call("copy")).origin == "on-demand"
    await functions.has("copy", 1)


async def test_the_end_comes_while_one_is_being_started(functions: Functions) -> None:
    functions.install("copy", COPY)
    await functions.call("copy")
    await eventually(lambda: bool(functions.standby.pids), what="a start")
    functions.standby.end()
    await eventually(lambda: not functions.standby.pids, what="none is left")
    assert (await functions.call("copy", b"input")).stdout == b"input"
    await asyncio.sleep(0.05)
    assert functions.standby.pids == set()


async def test_memory_is_that_of_the_processes_alone(functions: Functions) -> None:
    functions.install("copy", COPY)
    await functions.call("copy", wanted=2)
    await functions.has("copy", 2)
    await eventually(lambda: functions.standby.memory()["copy"] > 0, what="memory in use")
    assert functions.standby.memory()["copy"] < 100 * MEGABYTE
