"""Processes in standby in the wrapper server: who serves a call, who is never kept waiting, and when they go.

That the answers are those of a server without standby is in test_vectors.py; the policy alone is tested in Rust.
"""

from __future__ import annotations

import asyncio
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest

from krm_runner.rpc.wire import encode_request
from support.client import METHOD, Client
from support.machine import missing
from support.processes import children, command_lines, eventually, open_descriptors, pipes, resident_kib
from support.runner import write_function
from support.wrapper import MeteredWrapper, WrapperProcess

IMAGE = "example.com/some/function:v1"
LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
LARGE = LIST + b"# " + b"x" * 3_000_000 + b"\n"
COPY = "#!/bin/sh\nexec cat\n"
UNTIL_GO = "while [ ! -e go ]; do sleep 0.02; done\n"

Start = Callable[..., MeteredWrapper]


@pytest.fixture
def start(tmp_path: Path, wrapper_server: Path) -> Iterator[Start]:
    """A wrapper that serves a script, in the test's directory; it is ended with the test."""
    with ExitStack() as stack:

        def start(script: str, *flags: str) -> MeteredWrapper:
            function = write_function(tmp_path, "function", script)
            wrapper = MeteredWrapper(*flags, "--", str(function), program=str(wrapper_server), cwd=tmp_path)
            return stack.enter_context(wrapper)

        yield start


def starts(wrapper: MeteredWrapper) -> tuple[int, int]:
    return wrapper.executions("standby"), wrapper.executions("on-demand")


# --- who serves a call --------------------------------------------------------------------------------------------


async def test_each_call_is_served_by_the_process_that_waits_and_by_no_other(start: Start) -> None:
    wrapper = start('#!/bin/sh\nlist=$(cat)\necho $$ >&2\necho "$list"\n')
    async with Client(wrapper.address) as client:
        for _ in range(5):
            await wrapper.has_settled()
            (waiting,) = children(wrapper.pid)
            answer = await client.evaluate(IMAGE, LIST)
            assert (answer.code, answer.resource_list, answer.log) == ("OK", LIST, f"{waiting}\n".encode())
    assert starts(wrapper) == (5, 0)
    wrapper.wait_for_line("event=evaluated .* process=standby ")


async def test_as_many_wait_as_are_wanted(start: Start) -> None:
    wrapper = start(COPY, "--standby=3")
    await eventually(lambda: wrapper.in_standby() == 3, what="three processes")
    assert len(children(wrapper.pid)) == 3
    memory = wrapper.metric("standby_memory_bytes")
    assert memory is not None
    assert 0 < memory < 100_000_000
    async with Client(wrapper.address) as client:
        large = await asyncio.gather(*(client.evaluate(IMAGE, LARGE) for _ in range(8)))
    assert [answer.resource_list for answer in large] == [LARGE] * 8
    await eventually(lambda: wrapper.in_standby() == 3, what="three processes again")


async def test_none_waits_when_none_is_wanted(start: Start) -> None:
    wrapper = start(COPY, "--standby=0")
    async with Client(wrapper.address) as client:
        assert (await client.evaluate(IMAGE, LIST)).code == "OK"
    assert starts(wrapper) == (0, 1)
    assert wrapper.metric("standby_processes") is None
    assert children(wrapper.pid) == []


async def test_none_is_started_while_calls_take_all_cpus(tmp_path: Path, wrapper_server: Path) -> None:
    """On one CPU: the answer of one call starts none while another runs; the end of that one does."""
    function = write_function(tmp_path, "function", "#!/bin/sh\nlist=$(cat)\n" + UNTIL_GO + 'echo "$list"\n')
    cpu = str(min(os.sched_getaffinity(0)))
    with WrapperProcess(
        "--max-parallel=2",
        "--",
        str(function),
        program=str(wrapper_server),
        cwd=tmp_path,
        prefix=("taskset", "-c", cpu),
    ) as wrapper:
        await eventually(lambda: len(children(wrapper.pid)) == 1, what="one waits")
        async with Client(wrapper.address) as client:
            slow = [asyncio.create_task(client.evaluate(IMAGE, LIST)) for _ in range(2)]
            await eventually(lambda: len(children(wrapper.pid)) == 2, what="both run")
            slow[0].cancel()
            await eventually(lambda: len(children(wrapper.pid)) == 1, what="one of them has ended")
            await asyncio.sleep(0.3)
            assert len(children(wrapper.pid)) == 1
            (tmp_path / "go").touch()
            assert (await slow[1]).code == "OK"
            await eventually(lambda: len(children(wrapper.pid)) == 1, what="the next one waits")


async def test_a_call_with_a_trace_gets_a_process_of_its_own(tmp_path: Path, wrapper_server: Path) -> None:
    function = write_function(tmp_path, "function", '#!/bin/sh\ncat\necho "$TRACEPARENT" >&2\n')
    parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    with WrapperProcess(
        "--", str(function), program=str(wrapper_server), environment={"OTEL_TRACES_EXPORTER": "otlp"}
    ) as wrapper:
        async with Client(wrapper.address) as client:
            assert (await client.evaluate(IMAGE, LIST)).log == b"\n"
            await eventually(lambda: len(children(wrapper.pid)) == 1, what="one waits")
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = client.channel.unary_unary(METHOD)
            response = await call(encode_request(IMAGE, LIST), timeout=10, metadata=(("traceparent", parent),))
            assert parent.encode() in response
        wrapper.wait_for_line("process=on-demand")


async def test_those_that_wait_give_way_to_a_call_that_lacks_descriptors(tmp_path: Path, wrapper_server: Path) -> None:
    """A call with a trace cannot use them; it needs more descriptors than are left, and fewer than they hold."""
    function = write_function(tmp_path, "function", COPY)
    trace = (("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),)
    with WrapperProcess(
        "--", str(function), program=str(wrapper_server), environment={"OTEL_TRACES_EXPORTER": "otlp"}
    ) as wrapper:
        async with Client(wrapper.address) as client:
            assert (await client.evaluate(IMAGE, LIST)).code == "OK"
            await eventually(lambda: len(children(wrapper.pid)) == 1, what="one waits")
            (waiting,) = children(wrapper.pid)
            limit = len(open_descriptors(wrapper.pid)) + 3
            resource.prlimit(wrapper.pid, resource.RLIMIT_NOFILE, (limit, limit))
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = client.channel.unary_unary(METHOD)
            assert LIST in await call(encode_request(IMAGE, LIST), timeout=10, metadata=trace)
            assert waiting not in children(wrapper.pid)


# --- who is not kept waiting --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "what"),
    [
        ("#!/bin/sh\nexit 3\n", "it ended, or closed its output before its input came"),
        ("#!/bin/sh\nsleep 0.1\nkill -KILL $$\n", "it ended, or closed its output before its input came"),
        ("#!/bin/sh\necho early >&2\nexec cat\n", "it wrote to stderr before its input came"),
        ("#!/bin/sh\necho '# early'\nexec cat\n", "it wrote to stdout before its input came"),
    ],
    ids=["exits", "is-killed", "logs", "writes"],
)
async def test_a_function_that_does_not_wait_is_known_at_once_and_runs_on_demand(
    start: Start, script: str, what: str
) -> None:
    wrapper = start(script)
    wrapper.wait_for_line(f'level=info event="the function is not kept in standby" function=.* because="{what}"')
    await eventually(lambda: not children(wrapper.pid), what="it is gone")
    async with Client(wrapper.address) as client:
        answers = [await client.evaluate(IMAGE, LIST) for _ in range(3)]
    assert len({(answer.code, answer.message, answer.log, answer.resource_list) for answer in answers}) == 1
    assert starts(wrapper) == (0, 3)
    assert children(wrapper.pid) == []
    assert len([line for line in wrapper.lines if "not kept in standby" in line]) == 1, "said once"


@pytest.mark.parametrize("size", ["small", "large"])
async def test_a_process_that_ends_without_reading_is_replaced_by_one_on_demand(
    start: Start, tmp_path: Path, size: str
) -> None:
    wrapper = start(f"#!/bin/sh\necho x >>starts\n{UNTIL_GO}exit 3\n")
    await wrapper.has_settled()
    async with Client(wrapper.address) as client:
        call = asyncio.create_task(client.evaluate(IMAGE, LIST if size == "small" else LARGE))
        await eventually(lambda: wrapper.metric("executions_running") == 1, what="the call runs")
        (tmp_path / "go").touch()
        assert (await call).message == f'function "{IMAGE}" failed with exit code 3'
    assert (tmp_path / "starts").read_text() == "x\n" * 2
    assert starts(wrapper) == (0, 1)
    assert wrapper.is_marked()


async def test_what_a_process_wrote_without_reading_is_the_answer_and_the_last_of_its_kind(
    start: Start, tmp_path: Path
) -> None:
    wrapper = start(f"#!/bin/sh\necho x >>starts\n{UNTIL_GO}echo kind: ResourceList\n")
    await wrapper.has_settled()
    async with Client(wrapper.address) as client:
        call = asyncio.create_task(client.evaluate(IMAGE, LIST))
        await eventually(lambda: wrapper.metric("executions_running") == 1, what="the call runs")
        (tmp_path / "go").touch()
        first = await call
        assert (first.code, starts(wrapper), wrapper.is_marked()) == ("OK", (1, 0), True)
        assert (await client.evaluate(IMAGE, LIST)).resource_list == first.resource_list
    assert starts(wrapper) == (1, 1)
    assert (tmp_path / "starts").read_text() == "x\n" * 2


async def test_a_new_executable_is_what_runs_and_gets_a_new_chance(start: Start, tmp_path: Path) -> None:
    def replace(script: str) -> None:
        write_function(tmp_path, "new", script)
        (tmp_path / "new").rename(tmp_path / "function")

    wrapper = start(COPY)
    await wrapper.has_settled()
    (old,) = children(wrapper.pid)
    async with Client(wrapper.address) as client:
        replace("#!/bin/sh\necho noise >&2\nexec cat\n")
        assert (await client.evaluate(IMAGE, LIST)).log == b"noise\n"
        assert old not in children(wrapper.pid)
        await eventually(wrapper.is_marked, what="it is known")
        replace("#!/bin/sh\ncat\necho quiet >&2\n")
        assert (await client.evaluate(IMAGE, LIST)).log == b"quiet\n"
        await eventually(lambda: wrapper.in_standby() == 1, what="the new one waits")
        assert (await client.evaluate(IMAGE, LIST)).log == b"quiet\n"
        assert starts(wrapper) == (1, 2)
        await wrapper.has_settled()
        (tmp_path / "function").unlink()
        assert (await client.evaluate(IMAGE, LIST)).reason == "CANNOT_EXECUTE"
    assert children(wrapper.pid) == []


# --- when they go -------------------------------------------------------------------------------------------------


async def test_a_process_is_replaced_at_its_age(start: Start) -> None:
    wrapper = start(COPY, "--standby-max-age=200ms")
    seen: set[int] = set()

    def three() -> bool:
        waiting = children(wrapper.pid)
        assert len(waiting) <= 1
        seen.update(waiting)
        return len(seen) >= 3

    await eventually(three, what="three one after the other")
    async with Client(wrapper.address) as client:
        assert (await client.evaluate(IMAGE, LIST)).code == "OK"


async def test_all_go_when_no_call_comes_and_come_back_with_the_calls(start: Start) -> None:
    wrapper = start(COPY, "--standby=2", "--standby-idle=1s")
    await eventually(lambda: wrapper.in_standby() == 2, what="two wait")
    async with Client(wrapper.address) as client:
        for _ in range(2):
            await eventually(lambda: not children(wrapper.pid), what="they are gone")
            assert (await client.evaluate(IMAGE, LIST)).code == "OK"
            await eventually(lambda: wrapper.in_standby() == 2, what="they are back")
    assert starts(wrapper) == (0, 2)


async def test_they_end_with_the_first_signal_and_the_calls_under_way_do_not(start: Start, tmp_path: Path) -> None:
    wrapper = start("#!/bin/sh\nlist=$(cat)\n" + UNTIL_GO + 'echo "$list"\n', "--standby=2")
    await eventually(lambda: wrapper.in_standby() == 2, what="two wait")
    async with Client(wrapper.address) as client:
        call = asyncio.create_task(client.evaluate(IMAGE, LIST))
        await eventually(lambda: wrapper.metric("executions_running") == 1, what="the call runs")
        wrapper.process.send_signal(signal.SIGTERM)
        await eventually(lambda: len(children(wrapper.pid)) == 1, what="those that wait are gone")
        (tmp_path / "go").touch()
        assert (await call).code == "OK"
    assert await asyncio.to_thread(wrapper.wait) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_none_outlives_the_server(start: Start, tmp_path: Path, number: signal.Signals) -> None:
    """Nor does one that is just being started; when the server is killed, they find the end of their input."""
    process = f"/bin/sh {tmp_path / 'function'}"
    for seconds in (0.0, 0.001, 0.003, 0.1):
        wrapper = start("#!/bin/sh\ncat\n", "--standby=2")
        await asyncio.sleep(seconds)
        await asyncio.to_thread(wrapper.stop, number)
        await eventually(lambda: process not in command_lines(), what="they are gone")


async def test_a_thousand_calls_leave_no_process_and_no_descriptor(start: Start) -> None:
    wrapper = start(COPY, "--verbosity=2")
    async with Client(wrapper.address) as client:

        async def calls(count: int, callers: int) -> None:
            async def caller() -> None:
                for _ in range(count // callers):
                    assert (await client.evaluate(IMAGE, LIST)).resource_list == LIST

            await asyncio.gather(*(caller() for _ in range(callers)))

        async def at_rest() -> int:
            await wrapper.has_settled()
            await eventually(lambda: len(children(wrapper.pid)) == 1 and pipes(wrapper.pid) == 6, what="one waits")
            return len(open_descriptors(wrapper.pid))

        await calls(100, 4)
        before, memory = await at_rest(), resident_kib(wrapper.pid)
        await calls(500, 1)
        await calls(500, 5)
        # The connection for the metrics may be in the middle of its end.
        assert abs(await at_rest() - before) <= 2
        assert resident_kib(wrapper.pid) - memory <= 2048
    standby, on_demand = starts(wrapper)
    assert standby + on_demand == 1100
    assert standby > 100


async def test_as_pid_1_it_reaps_strays_while_one_waits(tmp_path: Path, wrapper_server: Path) -> None:
    if os.geteuid() != 0:
        missing("not root: cannot make a PID namespace")
    script = "#!/bin/sh\ncat\nsetsid sh -c 'sleep 0.2; exit 3' </dev/null >/dev/null 2>&1 &\n"
    function = write_function(tmp_path, "function", script)
    prefix = ("unshare", "--pid", "--fork", "--kill-child", "--")
    with WrapperProcess("--", str(function), program=str(wrapper_server), prefix=prefix) as wrapper:
        (first,) = children(wrapper.pid)
        async with Client(wrapper.address) as client:
            for _ in range(5):
                assert (await client.evaluate(IMAGE, LIST)).code == "OK"
        await eventually(lambda: len(children(first)) == 1, what="strays reaped, one waits")
        os.kill(first, signal.SIGTERM)
        assert await asyncio.to_thread(wrapper.wait) == 0
