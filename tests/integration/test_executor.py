"""The executor by itself, in this process: cancelled at any moment, it leaves no task, no descriptor, no child."""

from __future__ import annotations

import asyncio
import os
import random
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from krm_runner.process.executor import Executor, OutputLimitError
from krm_runner.process.slots import Slots, SlotsFullError
from krm_runner.process.spawn import Spawner, initial_environment
from support.processes import eventually
from support.runner import write_function

FOREVER = 1e12
MEGABYTE = 1024 * 1024


@pytest.fixture
async def executor(no_leaks: None) -> AsyncIterator[Executor]:
    spawner = Spawner(initial_environment())
    spawner.become_subreaper()
    created = Executor(spawner, max_parallel=3, max_waiting=100)
    yield created
    await eventually(lambda: created.running == 0, what="every place is free")
    assert created.waiting == 0
    created.close()


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], list[bytes]]:
    def install(text: str) -> list[bytes]:
        return [os.fsencode(write_function(tmp_path, f"f{len(list(tmp_path.iterdir()))}", text))]

    return install


Script = Callable[[str], list[bytes]]


async def run(executor: Executor, argv: list[bytes], stdin: bytes = b"", limit: int = MEGABYTE) -> tuple[int, bytes]:
    outcome = await executor.run(argv, stdin, function="f", max_output=limit, deadline=FOREVER)
    return outcome.exit_code, outcome.stdout


async def test_output_and_exit_code(executor: Executor, script: Script) -> None:
    assert await run(executor, script("#!/bin/sh\ncat\nexit 3\n"), b"hello") == (3, b"hello")


async def test_functions_are_nicer_than_who_runs_them(executor: Executor, script: Script) -> None:
    # The input comes when all about the process is settled.
    code, found = await run(executor, script("#!/bin/sh\ncat >/dev/null\nnice\n"))
    assert (code, int(found)) == (0, min(19, os.getpriority(os.PRIO_PROCESS, 0) + 10))


HOLDS = """#!{python} -IS
import sys
data = sys.stdin.buffer.read()
held = bytearray(b"x") * {size}
sys.stdout.buffer.write(data)
"""


@pytest.mark.parametrize("way", ["exec", "sh"], ids=["leader", "descendant"])
@pytest.mark.parametrize("size", [0, 150_000_000])
async def test_the_memory_of_a_process_with_much_input_is_noted(
    executor: Executor, script: Script, size: int, way: str
) -> None:
    (program,) = script(HOLDS.format(python=sys.executable, size=size))
    argv = [program] if way == "exec" else script(f"#!/bin/sh\n{os.fsdecode(program)}\nexit 0\n")
    # More than a pipe holds, so that it is there when it is looked at.
    stdin = b"y" * 3 * MEGABYTE
    expected = 0
    for _ in range(2):
        call = asyncio.create_task(run(executor, argv, stdin, limit=4 * MEGABYTE))
        await asyncio.sleep(0)
        expected = executor.memory
        assert await call == (0, stdin)
    assert size < expected < size + 30_000_000, "by what the first one took"


async def test_of_a_function_with_many_processes_only_some_are_looked_at(
    executor: Executor, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []

    def look(pid: int) -> int:
        looked_at.append(pid)
        return 1

    monkeypatch.setattr("krm_runner.process.child._peak_memory", look)
    argv = script("#!/bin/sh\ni=0; while [ $i -lt 200 ]; do sleep 5601 & i=$((i+1)); done >/dev/null\nexec cat\n")
    stdin = b"y" * 3 * MEGABYTE
    assert await run(executor, argv, stdin, limit=4 * MEGABYTE) == (0, stdin)
    # It is looked at several times, each time from its leader on.
    times = looked_at.count(looked_at[0])
    assert times < len(looked_at) <= 32 * times


async def test_a_function_that_was_killed_for_its_memory_is_expected_to_take_more(script: Script) -> None:
    executor = Executor(Spawner(initial_environment()), max_parallel=3, max_waiting=100, max_memory=100 * MEGABYTE)
    argv = script("#!/bin/sh\ncat >/dev/null\nkill -KILL $$\n")
    expected: list[int] = []
    for _ in range(3):
        call = asyncio.create_task(run(executor, argv, b"little"))
        await asyncio.sleep(0)
        expected.append(executor.memory)
        assert await call == (-9, b"")
    await eventually(lambda: executor.running == 0, what="every place is free")
    executor.close()
    assert expected == [expected[0], 2 * expected[0], 100 * MEGABYTE]


async def test_many_that_give_up_at_once_leave_no_place_taken() -> None:
    slots = Slots(limit=4, max_waiting=5000, memory_limit=100)
    held = await slots.acquire(function="f", deadline=FOREVER, memory=lambda: 60)
    tasks = [asyncio.create_task(slots.acquire(function="f", deadline=FOREVER, memory=lambda: 70))]
    tasks += [asyncio.create_task(slots.acquire(function="f", deadline=FOREVER, memory=lambda: 1)) for _ in range(2000)]
    await asyncio.sleep(0)
    assert slots.waiting == 2001
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert all(task.cancelled() for task in tasks)
    slots.release(held)
    assert (slots.running, slots.waiting, slots.memory) == (0, 0, 0)


async def test_a_random_load_with_random_cancellations(executor: Executor, script: Script) -> None:
    commands = [
        script("#!/bin/sh\nexec cat\n"),
        script("#!/bin/sh\nsleep 6001 &\nexec cat\n"),
        script("#!/bin/sh\nsleep 6002\n"),
        script("#!/bin/sh\nsleep 0.0$$\nkill -SEGV $$\n"),
        script("#!/bin/sh\nyes\n"),
        [b"/nonexistent"],
    ]
    dice = random.Random(7)

    async def one() -> None:
        stdin = bytes(dice.choice([0, 10, 200_000]))
        try:
            async with asyncio.timeout(dice.choice([0.0, 0.001, 0.005, 0.02, 0.1, 0.3])):
                await run(executor, dice.choice(commands), stdin)
        except (TimeoutError, OSError, OutputLimitError):
            pass

    for _ in range(10):
        await asyncio.gather(*(one() for _ in range(30)))
    assert await run(executor, commands[0], b"still well") == (0, b"still well")


async def test_cancelled_at_every_step_of_the_way(executor: Executor, script: Script) -> None:
    command = script("#!/bin/sh\ncat\nsleep 0.05\n")
    for steps in range(12):
        task = asyncio.create_task(run(executor, command, b"x" * 300_000))
        for _ in range(steps):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_limits_and_missing_files_free_their_place(executor: Executor, script: Script) -> None:
    for _ in range(8):
        with pytest.raises(OutputLimitError):
            await run(executor, script("#!/bin/sh\nyes\n"), limit=1000)
        with pytest.raises(FileNotFoundError):
            await run(executor, [b"/nonexistent"])


async def test_slots_hand_a_place_on_when_its_taker_gave_up_in_the_same_moment() -> None:
    slots = Slots(limit=1, max_waiting=10)
    held = await slots.acquire(function="f", deadline=FOREVER)
    first = asyncio.create_task(slots.acquire(function="f", deadline=FOREVER))
    second = asyncio.create_task(slots.acquire(function="f", deadline=FOREVER))
    await asyncio.sleep(0)
    slots.release(held)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    slots.release(await asyncio.wait_for(second, 5))
    assert (slots.running, slots.waiting) == (0, 0)


async def test_slots_refuse_when_the_line_is_full() -> None:
    slots = Slots(limit=1, max_waiting=0)
    await slots.acquire(function="f", deadline=FOREVER)
    with pytest.raises(SlotsFullError):
        await slots.acquire(function="f", deadline=FOREVER)
