"""The exec runtime under stress: time-outs, noise, floods, and what a function finds when it starts."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from integration.conftest import Installation
from support.client import Answer, Client
from support.processes import command_lines, eventually

LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
COPY = "#!/bin/sh\nexec cat\n"


async def test_64_calls_that_time_out_leave_nothing_behind(installation: Installation) -> None:
    image = installation.add("stuck", "#!/bin/sh\n(sleep 5001) &\nsleep 5002\n")
    copy = installation.add("copy", COPY)
    runner = installation.start("--max-parallel-executions=16")
    async with Client(runner.address) as client:
        assert (await client.evaluate(copy, LIST)).code == "OK"
        before = runner.pipes
        answers = await asyncio.gather(*(client.evaluate(image, LIST, timeout=1.5) for _ in range(64)))
        assert {answer.code for answer in answers} == {"DEADLINE_EXCEEDED"}
        await eventually(lambda: not {"sleep 5001", "sleep 5002"} & set(command_lines()), what="processes gone")
        await eventually(lambda: runner.pipes == before, what="pipes closed")
        await eventually(lambda: runner.functions == [], what="children reaped")
        assert (await client.evaluate(copy, LIST)).code == "OK"


async def test_20_mb_of_stderr_do_not_disturb_others_on_the_same_connection(installation: Installation) -> None:
    noisy = installation.add("noisy", "#!/bin/sh\nhead -c 20000000 /dev/zero | tr '\\0' x >&2\nexit 1\n")
    copy = installation.add("copy", COPY)
    runner = installation.start("--max-parallel-executions=4")
    async with Client(runner.address) as client:

        async def others() -> list[Answer]:
            return [(await client.evaluate(copy, LIST)) for _ in range(10)]

        noise = asyncio.create_task(client.evaluate(noisy, LIST))
        answers = await asyncio.gather(*(others() for _ in range(8)))
        assert [answer for each in answers for answer in each if answer.code != "OK"] == []
        answer = await noise
    assert answer.code == "INTERNAL"
    assert answer.trailers_size <= 8000


async def test_a_full_queue_refuses_at_once_and_says_when_to_come_back(installation: Installation) -> None:
    image = installation.add("slow", "#!/bin/sh\nsleep 1\nexec cat\n")
    runner = installation.start("--max-parallel-executions=1", "--max-queue-length=2")
    async with Client(runner.address) as client:
        answers = await asyncio.gather(*(client.evaluate(image, LIST) for _ in range(5)))
    assert sorted(answer.code for answer in answers) == ["OK"] * 3 + ["RESOURCE_EXHAUSTED"] * 2
    refused = next(answer for answer in answers if answer.code != "OK")
    assert (refused.reason, refused.retry_delay) == ("QUEUE_FULL", 1.0)
    assert "2 calls waiting" in refused.message


async def test_a_call_whose_turn_would_come_too_late_hears_it_at_once(installation: Installation) -> None:
    image = installation.add("slow", "#!/bin/sh\nsleep 1\nexec cat\n")
    runner = installation.start("--max-parallel-executions=1")
    async with Client(runner.address) as client:
        assert (await client.evaluate(image, LIST)).code == "OK"
        ahead = [asyncio.create_task(client.evaluate(image, LIST)) for _ in range(4)]
        await eventually(lambda: runner.functions != [], what="the first of them runs")
        await asyncio.sleep(0.2)
        refused = await client.evaluate(image, LIST, timeout=1)
        assert (refused.code, refused.reason) == ("RESOURCE_EXHAUSTED", "TOO_BUSY"), refused.message
        assert refused.retry_delay
        assert refused.retry_delay > 1
        assert {(await call).code for call in ahead} == {"OK"}, "who was there before is served"


async def test_calls_that_never_ran_or_were_cut_off_do_not_make_the_others_look_quicker(
    installation: Installation,
) -> None:
    image = installation.add("slow", "#!/bin/sh\nsleep 1\nexec cat\n")
    function = installation.functions / "slow"
    runner = installation.start("--max-parallel-executions=1")
    async with Client(runner.address) as client:
        assert (await client.evaluate(image, LIST)).code == "OK"
        function.chmod(0o600)
        assert {(await client.evaluate(image, LIST)).reason for _ in range(30)} == {"CANNOT_EXECUTE"}
        function.chmod(0o700)
        for _ in range(10):
            await client.evaluate(image, LIST, timeout=0.1)
        # On one connection they arrive in this order.
        ahead = [client.start(image, LIST) for _ in range(4)]
        refused = await client.evaluate(image, LIST, timeout=2)
        assert refused.reason == "TOO_BUSY", refused.message
        assert float((refused.facts or {})["expected_seconds"]) >= 4
        for call in ahead:
            call.cancel()


async def test_requests_that_do_not_fit_beside_the_others_are_refused_at_once(
    installation: Installation, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    image = installation.add("held", f"#!/bin/sh\nwhile [ ! -e {gate} ]; do sleep 0.05; done\nexec cat\n")
    large = LIST + b"#" * 80_000
    runner = installation.start("--max-request-memory=100000")
    async with Client(runner.address) as client:
        held = asyncio.create_task(client.evaluate(image, large))
        await eventually(lambda: runner.functions != [], what="the first call runs")
        refused = await client.evaluate(image, large)
        assert (refused.code, refused.reason, refused.retry_delay) == ("RESOURCE_EXHAUSTED", "OVERLOADED", 1.0)
        assert refused.message.startswith(f'function "{image}" is not run now')
        assert "--max-request-memory" in refused.message
        small = asyncio.create_task(client.evaluate(image, LIST))
        gate.touch()
        assert [(await call).code for call in (held, small)] == ["OK", "OK"]
        alone = await client.evaluate(image, LIST + b"#" * 200_000)
        assert alone.code == "OK", "one alone always fits"


async def test_a_call_whose_time_is_over_while_it_waits_never_runs(installation: Installation, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    slow = installation.add("slow", "#!/bin/sh\nsleep 1\nexec cat\n")
    traced = installation.add("traced", f"#!/bin/sh\necho ran >>{trace}\nexec cat\n")
    runner = installation.start("--max-parallel-executions=1")
    async with Client(runner.address) as client:
        first = asyncio.create_task(client.evaluate(slow, LIST))
        await asyncio.sleep(0.2)
        assert (await client.evaluate(traced, LIST, timeout=0.3)).code == "DEADLINE_EXCEEDED"
        assert (await first).code == "OK"
        assert not trace.exists()
        assert (await client.evaluate(traced, LIST)).code == "OK"


async def test_a_call_without_a_deadline_gets_the_default_one(installation: Installation) -> None:
    image = installation.add("stuck", "#!/bin/sh\nsleep 5003\n")
    runner = installation.start("--default-timeout=500ms")
    async with Client(runner.address) as client:
        answer = await client.evaluate(image, LIST, timeout=None)
    assert (answer.code, answer.reason) == ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED")
    assert f'function "{image}" did not answer before the deadline' in answer.message


async def test_an_answer_may_be_as_large_as_the_limit_and_not_a_byte_larger(installation: Installation) -> None:
    image = installation.add("copy", COPY)
    exact, limit = LIST + b"#" + b"x" * (4096 - len(LIST) - 1), 4096 + 3
    runner = installation.start(f"--max-request-body-size={limit}")
    generate = installation.add("generate", f"#!/bin/sh\nprintf '%s' '{exact.decode()}'\n")
    too_much = installation.add("too-much", f"#!/bin/sh\nprintf '%s' '{exact.decode()}x'\n")
    runner.wait_for_line("configuration reloaded.*images=3")
    async with Client(runner.address, (("grpc.max_receive_message_length", limit),)) as client:
        answer = await client.evaluate(generate, LIST)
        assert (answer.code, answer.resource_list) == ("OK", exact)
        assert (await client.evaluate(too_much, LIST)).code == "RESOURCE_EXHAUSTED"
        refused = await client.evaluate(image, exact)
        assert refused.code == "RESOURCE_EXHAUSTED"
        assert f"{limit} bytes set by --max-request-body-size" in refused.message


async def test_a_function_finds_the_runners_environment_and_directory_and_nothing_else(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    # This process may have it from its own start, and would hand it on.
    monkeypatch.delenv("LC_CTYPE", raising=False)
    probe = f"""#!{sys.executable} -IS
import json, os, sys
sys.stdin.buffer.read()
found = {{
    "environ": open("/proc/self/environ").read(),
    "cwd": os.getcwd(),
    "descriptors": sorted(n for n in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd/" + n)),
    "group": os.getpgid(0) == os.getpid(),
}}
print(json.dumps({{"kind": "ResourceList", "found": found}}))
"""
    import json

    image = installation.add("probe", probe)
    extra_read, extra_write = os.pipe()
    try:
        runner = installation.start(environment={"LC_ALL": "", "LANG": "C", "MARK": "a=b"}, pass_fds=(extra_read,))
        async with Client(runner.address) as client:
            answer = await client.evaluate(image, LIST)
        assert answer.code == "OK", answer.message
        found = json.loads(answer.resource_list)["found"]
        assert found["environ"] == Path(f"/proc/{runner.pid}/environ").read_text()
        assert "MARK=a=b\0" in found["environ"]
        assert "LC_CTYPE" not in found["environ"]
        assert found["cwd"] == os.getcwd()
        assert found["descriptors"] == ["0", "1", "2"]
        assert found["group"] is True
    finally:
        os.close(extra_read)
        os.close(extra_write)


async def test_a_process_that_left_its_group_is_reaped_when_it_ends(installation: Installation) -> None:
    image = installation.add("leaver", "#!/bin/sh\nsetsid sleep 0.2 &\nexec cat\n")
    runner = installation.start()
    async with Client(runner.address) as client:
        assert (await client.evaluate(image, LIST)).code == "OK"
        await eventually(lambda: not runner.functions, what="the stray is reaped")


async def test_the_embedded_function_sets_namespaces_and_keeps_everything_else() -> None:
    from support.runner import RunnerProcess

    root = Path(__file__).parent.parent.parent
    example = (root / "examples" / "resource-list.yaml").read_bytes()
    with RunnerProcess(
        f"--functions={root / 'functions'}",
        f"--config={root / 'config.yaml'}",
        environment={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    ) as runner:
        async with Client(runner.address) as client:
            answer = await client.evaluate("set-namespace:v0.4.1", example)
            without = await client.evaluate("set-namespace:v0.4.1", example.replace(b"namespace: staging", b"other: x"))
    assert answer.code == "OK", answer.message
    expected = example.replace(b"front door\n", b"front door\n    namespace: staging\n").replace(
        b"namespace: default", b"namespace: staging"
    )
    changed, results = answer.resource_list.decode().split("results:\n")
    assert changed == expected.decode()
    assert results.startswith('- message: namespace "","default" updated to "staging", 2 value(s) changed\n')
    assert (without.code, "`data.namespace` should not be empty" in without.message) == ("INTERNAL", True)
