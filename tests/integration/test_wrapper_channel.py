"""The runner's channel to a pod against real wrapper servers, in good days and bad."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from opentelemetry.sdk.trace import TracerProvider

from krm_runner.core import image_ref
from krm_runner.core.errors import DeadlineExceededError, PodLostError, RemoteError
from krm_runner.core.evaluation import EvaluationRequest, EvaluationResult
from krm_runner.rpc.wrapper_channel import Target, WrapperChannel
from krm_runner.telemetry.tracing import evaluation_span, trace_headers
from support.processes import command_lines, eventually, open_connections
from support.relay import Relay
from support.runner import write_function
from support.server import free_port
from support.wrapper import WrapperProcess

IMAGE = "example.com/some/function:v1"
POD = "function-v1-1-12345678"
LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
LIMIT = 6291456
COPY = "#!/bin/sh\nexec cat\n"
FAIL = """#!/bin/sh
echo 'oh no' >&2
cat <<end
apiVersion: config.kubernetes.io/v1
kind: ResourceList
items: []
results: [{message: too red, severity: error}]
end
exit 3
"""

Start = Callable[..., WrapperProcess]
Dial = Callable[..., WrapperChannel]


@pytest.fixture
def start(tmp_path: Path, wrapper_server: Path) -> Iterator[Start]:
    """Starts wrappers of a script; they end with the test."""
    with ExitStack() as stack:

        def start(script: str, *flags: str, port: int = 0) -> WrapperProcess:
            function = write_function(tmp_path, "function", script)
            wrapper = WrapperProcess(*flags, "--", str(function), program=str(wrapper_server), cwd=tmp_path, port=port)
            return stack.enter_context(wrapper)

        yield start


@pytest.fixture
async def dial() -> AsyncIterator[Dial]:
    """Makes channels; whatever they leave behind fails the test."""
    channels: list[WrapperChannel] = []

    def dial(address: str, *, authority: str = "", message_limit: int = LIMIT) -> WrapperChannel:
        channels.append(WrapperChannel(Target(address, authority), pod=POD, message_limit=message_limit))
        return channels[-1]

    yield dial
    for channel in channels:
        await channel.close("the test is over")
    others = asyncio.all_tasks() - {asyncio.current_task()}
    if others:
        await asyncio.wait(others, timeout=5)
    assert not [task for task in others if not task.done()]


def request(resource_list: bytes | memoryview = LIST, *, seconds: float = 60) -> EvaluationRequest:
    deadline = asyncio.get_running_loop().time() + seconds
    return EvaluationRequest(IMAGE, image_ref.parse(IMAGE), resource_list, deadline)


def call(channel: WrapperChannel, resource_list: bytes = LIST) -> asyncio.Task[EvaluationResult]:
    return asyncio.create_task(channel.evaluate(request(resource_list)))


async def runs(command: str) -> None:
    await eventually(lambda: command in command_lines(), what=f"{command} runs")


async def is_gone(command: str) -> None:
    await eventually(lambda: command not in command_lines(), what=f"{command} is gone")


# --- answers ------------------------------------------------------------------------------------------------------


async def test_output_and_log_come_back(start: Start, dial: Dial) -> None:
    channel = dial(start("#!/bin/sh\necho hello >&2\nexec cat\n").address)
    result = await channel.evaluate(request())
    assert (bytes(result.resource_list), result.log, result.runtime) == (LIST, b"hello\n", "pod")


async def test_the_functions_span_is_in_the_callers_trace(
    start: Start, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    channel = dial(start('#!/bin/sh\ncat\necho "$TRACEPARENT" >&2\n').address)
    caller = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    with evaluation_span(TracerProvider().get_tracer("test"), metadata=caller):
        traced = replace(request(), trace=trace_headers())
    said = (await channel.evaluate(traced)).log.decode().strip()
    assert dict(traced.trace) == {"traceparent": said}
    assert said.split("-")[1] == caller["traceparent"].split("-")[1], "the same trace"
    assert said != caller["traceparent"], "and a span of the runner's own"
    assert (await channel.evaluate(request())).log == b"\n"


async def test_an_answer_of_exactly_the_limit_arrives(start: Start, dial: Dial) -> None:
    room = LIMIT - len(b"\x0a\x80\x80\x80\x03")
    # The function makes it: no request can be as large, since it has an image as well.
    fill = f"head -c {room - len(LIST) - 2} /dev/zero | tr '\\0' x"
    channel = dial(start(f"#!/bin/sh\ncat\nprintf '# '\n{fill}\n", f"--max-request-body-size={LIMIT}").address)
    assert len((await channel.evaluate(request())).resource_list) == room


async def test_megabytes_come_back_as_they_went(start: Start, dial: Dial) -> None:
    large = LIST + b"# 5 MB\n" * (5 * 1024 * 1024 // 7)
    for given in (large, memoryview(large)):
        result = await dial(start(COPY).address).evaluate(request(given))
        assert bytes(result.resource_list) == large


async def test_many_calls_at_once_share_the_channel(start: Start, dial: Dial) -> None:
    channel = dial(start(COPY).address)
    lists = [LIST + f"# {number}\n".encode() * 1000 for number in range(32)]
    results = await asyncio.gather(*(channel.evaluate(request(one)) for one in lists))
    assert [bytes(result.resource_list) for result in results] == lists


async def test_a_failure_of_the_function_is_passed_on_as_it_is(start: Start, dial: Dial) -> None:
    with pytest.raises(RemoteError) as raised:
        await dial(start(FAIL).address).evaluate(request())
    error = raised.value
    assert str(error) == f'function "{IMAGE}" failed with exit code 3\nresults:\n  [error] too red\nstderr:\noh no'
    assert (error.code, error.reason, error.retry_after) == ("INTERNAL", "FUNCTION_FAILED", None)
    assert error.facts == {"exit_code": "3", "pod": POD}


async def test_a_full_queue_is_passed_on_with_its_delay(start: Start, dial: Dial) -> None:
    channel = dial(
        start("#!/bin/sh\ncat >/dev/null\nexec sleep 6001\n", "--max-parallel=1", "--max-queue-length=0").address
    )
    first = call(channel)
    await runs("sleep 6001")
    with pytest.raises(RemoteError) as raised:
        await channel.evaluate(request())
    assert (raised.value.code, raised.value.reason) == ("RESOURCE_EXHAUSTED", "QUEUE_FULL")
    assert raised.value.retry_after == 1.0
    first.cancel()
    await asyncio.wait([first])


async def test_a_turn_that_would_come_too_late_is_passed_on_with_its_facts_and_its_delay(
    start: Start, dial: Dial
) -> None:
    channel = dial(start("#!/bin/sh\ncat\nsleep 1\n", "--max-parallel=1").address)
    await channel.evaluate(request())
    ahead = [call(channel) for _ in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(RemoteError, match="its turn would come in about") as raised:
        await channel.evaluate(request(seconds=1))
    error = raised.value
    assert (error.code, error.reason) == ("RESOURCE_EXHAUSTED", "TOO_BUSY")
    assert error.facts == {"waiting": "3", "expected_seconds": error.facts["expected_seconds"], "pod": POD}
    assert error.retry_after == pytest.approx(float(error.facts["expected_seconds"]), abs=0.6)
    for one in ahead:
        one.cancel()
    await asyncio.wait(ahead)


async def test_an_answer_over_our_own_limit_names_the_flag(start: Start, dial: Dial) -> None:
    with pytest.raises(RemoteError, match="--max-request-body-size") as raised:
        await dial(start(COPY).address, message_limit=20).evaluate(request())
    assert raised.value.code == "RESOURCE_EXHAUSTED"


async def test_calls_say_the_authority_that_they_are_told(start: Start, dial: Dial) -> None:
    channel = dial(start(COPY).address, authority="function.namespace.svc.cluster.local:9446")
    assert bytes((await channel.evaluate(request())).resource_list) == LIST


async def test_another_server_is_passed_on_with_the_pods_name(dial: Dial) -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channel = dial(f"127.0.0.1:{port}")
    with pytest.raises(RemoteError, match=f'pod "{POD}" answered UNIMPLEMENTED: ') as raised:
        await channel.evaluate(request())
    assert (raised.value.code, raised.value.reason) == ("UNIMPLEMENTED", "REMOTE")
    assert (await channel.ask_health(timeout=30)).startswith("it answers UNIMPLEMENTED: ")
    await server.stop(None)


# --- the end of a call --------------------------------------------------------------------------------------------


async def test_the_deadline_stops_the_function(start: Start, dial: Dial) -> None:
    channel = dial(start("#!/bin/sh\ncat >/dev/null\nexec sleep 6002\n").address)
    with pytest.raises(RemoteError) as raised:
        await channel.evaluate(request(seconds=1))
    assert (raised.value.code, raised.value.reason) == ("DEADLINE_EXCEEDED", "DEADLINE_EXCEEDED")
    await is_gone("sleep 6002")


async def test_a_pod_that_stands_still_ends_at_our_own_deadline(start: Start, dial: Dial) -> None:
    wrapper = start(COPY)
    channel = dial(wrapper.address)
    await channel.evaluate(request())
    wrapper.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(DeadlineExceededError, match=f'function "{IMAGE}" in pod "{POD}" did not answer'):
            await channel.evaluate(request(seconds=0.5))
        assert await channel.ask_health(timeout=0.2) == "it does not answer"
    finally:
        wrapper.process.send_signal(signal.SIGCONT)
    with pytest.raises(DeadlineExceededError):
        await channel.evaluate(request(seconds=-1))


async def test_a_caller_that_goes_away_stops_the_function(start: Start, dial: Dial) -> None:
    channel = dial(start("#!/bin/sh\ncat >/dev/null\nexec sleep 6003\n").address)
    under_way = call(channel)
    await runs("sleep 6003")
    under_way.cancel()
    with pytest.raises(asyncio.CancelledError):
        await under_way
    await is_gone("sleep 6003")


async def test_close_ends_calls_and_says_why(start: Start, dial: Dial) -> None:
    channel = dial(start("#!/bin/sh\ncat >/dev/null\nexec sleep 6004\n", "--max-parallel=2").address)
    calls = [call(channel) for _ in range(3)]
    cancelled = call(channel)
    await runs("sleep 6004")
    cancelled.cancel()
    await channel.close("it was deleted")
    await channel.close("and again")
    for under_way in calls:
        with pytest.raises(PodLostError, match=f'pod "{POD}" was lost: it was deleted; try again') as raised:
            await under_way
        assert raised.value.reached
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    with pytest.raises(PodLostError, match="cannot be reached: it was deleted") as raised:
        await channel.evaluate(request())
    assert not raised.value.reached
    assert await channel.ask_health(timeout=1) == "it was deleted"
    await is_gone("sleep 6004")


async def test_a_channel_that_retires_ends_with_its_calls(start: Start, dial: Dial, tmp_path: Path) -> None:
    wrapper = start('#!/bin/sh\nlist=$(cat)\ntouch runs\nwhile [ ! -e go ]; do sleep 0.05; done\necho "$list"\n')
    channel = dial(wrapper.address)
    under_way = call(channel)
    await eventually((tmp_path / "runs").exists, what="the function runs")
    await channel.retire()
    assert len(open_connections(os.getpid(), to=wrapper.port)) == 1
    (tmp_path / "go").touch()
    assert bytes((await under_way).resource_list) == LIST
    await eventually(lambda: not open_connections(os.getpid(), to=wrapper.port), what="nothing is connected any more")


# --- pods that are lost -------------------------------------------------------------------------------------------


async def test_a_pod_that_dies_in_a_call(start: Start, dial: Dial, tmp_path: Path) -> None:
    wrapper = start("#!/bin/sh\ncat >/dev/null\necho $$ > new\nmv new pid\nexec sleep 6005\n")
    under_way = call(dial(wrapper.address))
    await eventually((tmp_path / "pid").exists, what="the function runs")
    wrapper.process.kill()
    # In a pod it goes with its wrapper.
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    with pytest.raises(PodLostError, match="its connection broke in the middle of the call") as raised:
        await under_way
    assert raised.value.reached
    assert raised.value.facts == {"pod": POD, "reached": "true"}


async def test_a_connection_that_breaks_in_a_call(start: Start, dial: Dial) -> None:
    wrapper = start("#!/bin/sh\ncat >/dev/null\nexec sleep 6006\n")
    with Relay(("127.0.0.1", wrapper.port)) as relay:
        under_way = call(dial(f"127.0.0.1:{relay.port}"))
        await runs("sleep 6006")
        relay.cut()
        with pytest.raises(PodLostError) as raised:
            await under_way
    assert raised.value.reached
    await is_gone("sleep 6006")


async def test_a_pod_that_dies_between_calls_and_comes_back(start: Start, dial: Dial) -> None:
    # Other than in a pod, a process that is just being started outlives the wrapper for a moment, and holds its port.
    wrapper = start(COPY, "--standby=0")
    channel = dial(wrapper.address)
    await channel.evaluate(request())
    wrapper.process.kill()
    wrapper.process.wait()
    # The connection may break in the moment of the first call.
    with pytest.raises(PodLostError):
        await channel.evaluate(request())
    with pytest.raises(PodLostError, match="its port refuses connections") as raised:
        await channel.evaluate(request())
    assert not raised.value.reached
    start(COPY, port=wrapper.port)
    assert bytes((await channel.evaluate(request())).resource_list) == LIST


async def test_a_pod_that_ends_tells_which_calls_reached_the_function(start: Start, dial: Dial) -> None:
    wrapper = start("#!/bin/sh\ncat >/dev/null\nexec sleep 6007\n", "--max-parallel=1", "--shutdown-timeout=500ms")
    channel = dial(wrapper.address)
    running = call(channel)
    await runs("sleep 6007")
    # The first of them waits with its request read, the last ones before that.
    waiting = [call(channel) for _ in range(5)]
    await channel.ask_health(timeout=30)
    wrapper.process.send_signal(signal.SIGTERM)
    # An answer may be lost with the connection; whoever does not know counts the function as started.
    told = "it is shutting down"
    with pytest.raises(PodLostError, match=f"{told}|its connection broke") as raised:
        await running
    assert raised.value.reached
    for one in waiting:
        with pytest.raises(PodLostError) as raised:
            await one
        assert raised.value.reached == ("its connection broke" in raised.value.why)
    with pytest.raises(PodLostError, match="its port refuses connections") as raised:
        await channel.evaluate(request())
    assert not raised.value.reached


async def test_calls_under_way_may_finish_while_a_pod_ends(start: Start, dial: Dial, tmp_path: Path) -> None:
    wrapper = start('#!/bin/sh\nlist=$(cat)\ntouch runs\nwhile [ ! -e go ]; do sleep 0.05; done\necho "$list"\n')
    channel = dial(wrapper.address)
    under_way = call(channel)
    await eventually((tmp_path / "runs").exists, what="the function runs")
    wrapper.process.send_signal(signal.SIGTERM)
    wrapper.wait_for_line("shutting down")
    (tmp_path / "go").touch()
    assert bytes((await under_way).resource_list) == LIST


# --- pods that cannot be reached ----------------------------------------------------------------------------------


@pytest.fixture
def silent_port() -> Iterator[int]:
    """Accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.fixture
def full_port() -> Iterator[int]:
    """Does not even accept: its backlog is full, and the kernel lets connections wait."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.socket())
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(3):
            client = stack.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


async def not_reached(channel: WrapperChannel, why: str) -> None:
    with pytest.raises(PodLostError) as raised:
        await channel.evaluate(request())
    assert not raised.value.reached
    assert str(raised.value) == (
        f'function "{IMAGE}" could not be called: its pod "{POD}" cannot be reached: {why}; try again'
    )
    assert await channel.ask_health(timeout=0.1) in (why, "it does not answer")


async def test_a_port_that_refuses(dial: Dial) -> None:
    await not_reached(dial(f"127.0.0.1:{free_port()}"), "its port refuses connections")


async def test_a_name_that_is_not_known(dial: Dial) -> None:
    await not_reached(dial("nobody.invalid:9446"), "the name nobody.invalid is not known")
    assert await dial("nobody.invalid:9446").ask_health(timeout=1) == "the name nobody.invalid is not known"


async def test_a_pod_that_accepts_and_is_silent(dial: Dial, silent_port: int) -> None:
    await not_reached(dial(f"127.0.0.1:{silent_port}"), "it accepts connections, but nothing comes back")


async def test_a_pod_that_does_not_accept(dial: Dial, full_port: int) -> None:
    await not_reached(dial(f"127.0.0.1:{full_port}"), "it does not accept connections")


# --- health -------------------------------------------------------------------------------------------------------


async def test_health_waits_for_a_wrapper_to_listen(start: Start, dial: Dial) -> None:
    port = free_port()
    channel = dial(f"127.0.0.1:{port}")
    assert await channel.ask_health(timeout=0) != ""
    assert await channel.ask_health(timeout=0.2) == "its port refuses connections"
    asking = asyncio.create_task(channel.ask_health(timeout=30))
    await asyncio.to_thread(start, COPY, port=port)
    assert await asking == ""
    assert bytes((await channel.evaluate(request())).resource_list) == LIST


async def test_health_of_a_wrapper_that_ends(start: Start, dial: Dial, tmp_path: Path) -> None:
    wrapper = start("#!/bin/sh\ncat >/dev/null\ntouch runs\nexec sleep 6008\n", "--shutdown-timeout=500ms")
    channel = dial(wrapper.address)
    assert await channel.ask_health(timeout=30) == ""
    under_way = call(channel)
    await runs("sleep 6008")
    wrapper.process.send_signal(signal.SIGTERM)
    wrapper.wait_for_line("shutting down")
    assert await channel.ask_health(timeout=0.2) != ""
    with pytest.raises(PodLostError):
        await under_way


async def test_who_asks_may_give_up(dial: Dial, silent_port: int) -> None:
    channel = dial(f"127.0.0.1:{silent_port}")
    asking = asyncio.create_task(channel.ask_health(timeout=30))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    asking = asyncio.create_task(channel.ask_health(timeout=30))
    await asyncio.sleep(0)
    await channel.close("it was deleted")
    assert await asking == "it was deleted"
