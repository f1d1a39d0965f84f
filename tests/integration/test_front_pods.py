"""The front and pods, by itself: calls that it passes on, where the runner says and where it has promised."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from google.rpc.status_pb2 import Status

from krm_runner.rpc._generated import front_pb2
from support.client import Client, answer_of
from support.front import PlayedRunner, configuration, played_runner
from support.processes import command_lines, eventually, open_connections
from support.runner import write_function
from support.server import free_port
from support.wrapper import WrapperProcess

LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
IMAGE = "example.com/test/copy:v1"


def forward(call: front_pb2.Call, address: str, *, connection: int = 1) -> dict[str, front_pb2.Forward]:
    order = front_pb2.Forward(id=call.id, connection=connection, address=address, timeout_seconds=30)
    return {"forward": order}


async def test_a_pods_answer_is_passed_on_byte_for_byte(
    runner: PlayedRunner, client: Client, tmp_path: Path, wrapper_server: Path
) -> None:
    function = write_function(tmp_path, "function", "#!/bin/sh\necho in a pod >&2\nexec cat\n")
    large = LIST + b"# a line of a package that is not small\n" * 100_000
    with WrapperProcess("--standby=0", "--", str(function), program=str(wrapper_server)) as pod:
        for content in (LIST, large):
            asked = client.start(IMAGE, content)
            call = (await runner.hear("call")).call
            runner.say(**forward(call, pod.address))
            answer = await answer_of(asked)
            assert (answer.code, answer.resource_list, answer.log) == ("OK", content, b"in a pod\n")
            forwarded = (await runner.hear("forwarded")).forwarded
            assert (forwarded.id, forwarded.answered.log_bytes) == (call.id, len(b"in a pod\n"))
            assert forwarded.answered.response_bytes > len(content)
            assert forwarded.answered.seconds > 0


async def test_a_pod_gets_the_trace_of_its_call(front: Path, tmp_path: Path, wrapper_server: Path) -> None:
    function = write_function(tmp_path, "function", '#!/bin/sh\necho "$TRACEPARENT $TRACESTATE" >&2\nexec cat\n')
    trace_id, caller = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    flags = ("--standby=0", "--", str(function))
    sampler = front_pb2.Sampler(follows_caller=True, share=1)
    with WrapperProcess(*flags, program=str(wrapper_server), environment={"OTEL_TRACES_EXPORTER": "otlp"}) as pod:
        async with played_runner(front, configuration(sampler=sampler)) as runner, Client(runner.address) as client:
            for sampled in ("01", "00"):
                client.metadata = (("traceparent", f"00-{trace_id}-{caller}-{sampled}"), ("tracestate", "a=b"))
                asked = client.start(IMAGE, LIST)
                call = (await runner.hear("call")).call
                assert call.HasField("span") == (sampled == "01")
                runner.say(**forward(call, pod.address))
                parent, state = (await answer_of(asked)).log.decode().split()
                version, trace, span, flag = parent.split("-")
                assert (version, trace, flag, state) == ("00", trace_id, sampled, "a=b")
                assert span != caller
                if sampled == "01":
                    identity = (call.span.trace_id.hex(), call.span.span_id.hex(), call.span.parent_id.hex())
                    assert (*identity, call.span.trace_state) == (trace_id, span, caller, "a=b")
            client.metadata = ()
            await promise(runner, pod.address)
            log = (await client.evaluate(IMAGE, LIST)).log.decode()
            # On a busy machine it may have been told before it was answered.
            news = await runner.hear("served", "call")
            told = news.served.span if news.HasField("served") else news.call.span
            assert log.split()[0] == f"00-{told.trace_id.hex()}-{told.span_id.hex()}-01"
            assert told.parent_id == b""


async def test_what_a_pod_refuses_is_for_the_runner_to_tell(
    runner: PlayedRunner, client: Client, tmp_path: Path, wrapper_server: Path
) -> None:
    function = write_function(tmp_path, "function", "#!/bin/sh\necho no >&2\nexit 3\n")
    with WrapperProcess("--standby=0", "--", str(function), program=str(wrapper_server)) as pod:
        asked = client.start(IMAGE, LIST)
        call = (await runner.hear("call")).call
        runner.say(**forward(call, pod.address))
        status = (await runner.hear("forwarded")).forwarded.status
        assert status.code == grpc.StatusCode.INTERNAL.value[0]
        assert "failed with exit code 3" in status.message
        assert Status.FromString(status.details).message == status.message
        runner.say(refuse=front_pb2.Refuse(id=call.id, code=13, message="in the runner's words"))
        assert (await answer_of(asked)).message == "in the runner's words"


@pytest.mark.parametrize(
    ("address", "why", "is_unnamed"),
    [
        ("localhost:{free}", "its port refuses connections", False),
        ("no-such-pod.invalid:9446", "the name no-such-pod.invalid is not known", True),
        ("no-such-pod.invalid.:9446", "the name no-such-pod.invalid is not known", True),
    ],
)
async def test_a_pod_that_is_not_there_is_told_and_the_call_may_go_to_another(  # noqa: PLR0917 - fixtures
    runner: PlayedRunner, client: Client, tmp_path: Path, wrapper_server: Path, address: str, why: str, is_unnamed: bool
) -> None:
    function = write_function(tmp_path, "function", "#!/bin/sh\nexec cat\n")
    asked = client.start(IMAGE, LIST)
    call = (await runner.hear("call")).call
    runner.say(**forward(call, address.format(free=free_port())))
    trouble = (await runner.hear("forwarded")).forwarded.trouble
    assert (trouble.why, trouble.reached, trouble.is_unnamed) == (why, False, is_unnamed)
    with WrapperProcess("--standby=0", "--", str(function), program=str(wrapper_server)) as pod:
        runner.say(**forward(call, pod.address, connection=2))
        assert (await answer_of(asked)).code == "OK"


async def test_a_pod_that_is_lost_in_the_call_may_have_reached_its_function(
    runner: PlayedRunner, client: Client, tmp_path: Path, wrapper_server: Path
) -> None:
    slow = write_function(tmp_path, "slow", "#!/bin/sh\nsleep 25.4712\n")
    with WrapperProcess("--standby=0", "--", str(slow), program=str(wrapper_server)) as pod:
        asked = client.start(IMAGE, LIST)
        call = (await runner.hear("call")).call
        runner.say(**forward(call, pod.address))
        await eventually(lambda: "sleep 25.4712" in command_lines(), what="the function runs")
        pod.process.kill()
        trouble = (await runner.hear("forwarded")).forwarded.trouble
        assert (trouble.why, trouble.reached) == ("its connection broke in the middle of the call", True)
        runner.say(refuse=front_pb2.Refuse(id=call.id, code=14, message="lost"))
        assert (await answer_of(asked)).code == "UNAVAILABLE"


async def test_a_second_pod_takes_the_place_of_the_first(
    runner: PlayedRunner, client: Client, tmp_path: Path, wrapper_server: Path
) -> None:
    slow = write_function(tmp_path, "slow", "#!/bin/sh\nsleep 4713.25\n")
    copy = write_function(tmp_path, "copy", "#!/bin/sh\nexec cat\n")
    with (
        WrapperProcess("--standby=0", "--", str(slow), program=str(wrapper_server)) as first,
        WrapperProcess("--standby=0", "--", str(copy), program=str(wrapper_server)) as second,
    ):
        asked = client.start(IMAGE, LIST)
        call = (await runner.hear("call")).call
        runner.say(**forward(call, first.address))
        await eventually(lambda: "sleep 4713.25" in command_lines(), what="the first function runs")
        runner.say(**forward(call, second.address, connection=2))
        assert (await answer_of(asked)).code == "OK"
        await eventually(lambda: "sleep 4713.25" not in command_lines(), what="the first function is gone")


def waiting(directory: Path) -> Path:
    """A function that copies its input when there is a file `go` in the directory."""
    script = f"#!/bin/sh\nuntil [ -e {directory}/go ]; do sleep 0.01; done\nexec cat\n"
    return write_function(directory, "waiting", script)


async def promise(
    runner: PlayedRunner, address: str, *, connection: int = 3, calls: int = 1, seconds: float = 60
) -> None:
    """One that the front has heard."""
    message = front_pb2.Promise(
        image=IMAGE, connection=connection, address=address, valid_seconds=seconds, calls=calls, calls_in_all=9
    )
    runner.say(promise=message)
    await heard(runner)


async def heard(runner: PlayedRunner) -> None:
    """Everything that was said is known to the front."""
    runner.say(ask_health=front_pb2.AskHealth(id=1, connection=99, address=f"localhost:{free_port()}"))
    await runner.hear("health_answer")


async def test_a_promised_pod_has_calls_before_the_runner_hears_of_them(
    runner: PlayedRunner, client: Client, tmp_path: Path, wrapper_server: Path
) -> None:
    function = write_function(tmp_path, "function", "#!/bin/sh\nexec cat\n")
    with WrapperProcess("--standby=0", "--", str(function), program=str(wrapper_server)) as pod:
        await promise(runner, pod.address)
        other = client.start("example.com/test/another:v1", LIST)
        stranger = (await runner.hear("call")).call
        assert (stranger.is_promised, stranger.connection) == (False, 0)
        runner.say(refuse=front_pb2.Refuse(id=stranger.id, code=5, message="not found"))
        assert (await answer_of(other)).code == "NOT_FOUND"
        for _ in range(3):
            assert (await client.evaluate(IMAGE, LIST, timeout=30)).resource_list == LIST
        for _ in range(3):
            # On a busy machine it may have been told before it was answered.
            news = await runner.hear("served", "forwarded")
            told = news.served if news.HasField("served") else news.forwarded
            assert (told.connection, told.answered.response_bytes > len(LIST)) == (3, True)


async def test_of_a_promised_call_that_takes_its_time_the_runner_hears_twice(
    runner: PlayedRunner, client: Client, tmp_path: Path, wrapper_server: Path
) -> None:
    with WrapperProcess("--standby=0", "--", str(waiting(tmp_path)), program=str(wrapper_server)) as pod:
        await promise(runner, pod.address)
        asked = client.start(IMAGE, LIST)
        call = (await runner.hear("call")).call
        assert (call.image, call.is_promised, call.connection) == (IMAGE, True, 3)
        (tmp_path / "go").touch()
        assert (await answer_of(asked)).code == "OK"
        forwarded = (await runner.hear("forwarded")).forwarded
        assert (forwarded.id, forwarded.connection) == (call.id, 3)
        assert forwarded.answered.response_bytes > len(LIST)


async def test_the_runner_is_asked_when_promised_pods_have_their_calls(
    runner: PlayedRunner, client: Client, tmp_path: Path, wrapper_server: Path
) -> None:
    command = ("--standby=0", "--", str(waiting(tmp_path)))
    with ExitStack() as stack:
        pods = [stack.enter_context(WrapperProcess(*command, program=str(wrapper_server))) for _ in range(2)]
        for connection, pod in enumerate(pods, start=3):
            await promise(runner, pod.address, connection=connection)
        started = [client.start(IMAGE, LIST) for _ in range(3)]
        calls = [(await runner.hear("call")).call for _ in started]
        assert sorted((call.is_promised, call.connection) for call in calls) == [(False, 0), (True, 3), (True, 4)]
        (asked,) = (call for call in calls if not call.is_promised)
        runner.say(**forward(asked, pods[0].address, connection=3))
        for connection, pod in enumerate(pods, start=3):
            await promise(runner, pod.address, connection=connection, calls=2)
        started += [client.start(IMAGE, LIST) for _ in range(2)]
        # What the runner has sent there counts as well: of four places one was left.
        calls = [(await runner.hear("call")).call for _ in range(2)]
        assert sorted((call.is_promised, call.connection) for call in calls) == [(False, 0), (True, 4)]
        (asked,) = (call for call in calls if not call.is_promised)
        runner.say(**forward(asked, pods[1].address, connection=4))
        (tmp_path / "go").touch()
        assert [(await answer_of(call)).code for call in started] == ["OK"] * 5


@pytest.mark.parametrize(
    "news",
    [
        front_pb2.ToFront(withdraw=front_pb2.Withdraw(connection=3)),
        front_pb2.ToFront(disconnect=front_pb2.Disconnect(connection=3)),
        front_pb2.ToFront(forget=front_pb2.Forget()),
        None,
    ],
    ids=["withdrawn", "disconnected", "forgotten", "too late"],
)
async def test_a_promise_that_does_not_hold_any_more_is_a_question(
    runner: PlayedRunner, client: Client, news: front_pb2.ToFront | None
) -> None:
    await promise(runner, f"localhost:{free_port()}", seconds=60 if news is not None else 0.01)
    if news is not None:
        runner.send(news)
    await asyncio.sleep(0.02)
    await heard(runner)
    asked = client.start(IMAGE, LIST)
    call = (await runner.hear("call")).call
    assert (call.is_promised, call.connection) == (False, 0)
    runner.say(refuse=front_pb2.Refuse(id=call.id, code=5, message="not found"))
    assert (await answer_of(asked)).code == "NOT_FOUND"


async def test_a_promised_pod_that_is_not_there_is_told_and_the_runner_has_the_last_word(
    runner: PlayedRunner, client: Client, tmp_path: Path, wrapper_server: Path
) -> None:
    function = write_function(tmp_path, "function", "#!/bin/sh\nexec cat\n")
    await promise(runner, f"localhost:{free_port()}")
    asked = client.start(IMAGE, LIST)
    call = (await runner.hear("call")).call
    forwarded = (await runner.hear("forwarded")).forwarded
    assert (call.is_promised, forwarded.id, forwarded.connection) == (True, call.id, 3)
    assert (forwarded.trouble.why, forwarded.trouble.reached) == ("its port refuses connections", False)
    with WrapperProcess("--standby=0", "--", str(function), program=str(wrapper_server)) as pod:
        runner.say(**forward(call, pod.address, connection=4))
        assert (await answer_of(asked)).code == "OK"


async def test_a_caller_that_leaves_its_promised_pod_is_told_behind_its_call(
    runner: PlayedRunner, client: Client, tmp_path: Path, wrapper_server: Path
) -> None:
    slow = write_function(tmp_path, "slow", "#!/bin/sh\nsleep 25.4713\n")
    with WrapperProcess("--standby=0", "--", str(slow), program=str(wrapper_server)) as pod:
        await promise(runner, pod.address)
        asked = client.start(IMAGE, LIST)
        await eventually(lambda: "sleep 25.4713" in command_lines(), what="the function runs")
        # What waited for company is there all the same, and in its order.
        call = (await runner.hear("call")).call
        asked.cancel()
        assert (await runner.hear("gone")).gone.id == call.id
        await eventually(lambda: "sleep 25.4713" not in command_lines(), what="the function is gone")


async def test_a_connection_lasts_and_one_that_broke_is_made_anew(
    runner: PlayedRunner, client: Client, tmp_path: Path, wrapper_server: Path
) -> None:
    function = write_function(tmp_path, "function", "#!/bin/sh\nexec cat\n")
    port = free_port()

    async def evaluate() -> str:
        asked = client.start(IMAGE, LIST)
        runner.say(**forward((await runner.hear("call")).call, f"localhost:{port}"))
        return (await answer_of(asked)).code

    with WrapperProcess("--standby=0", "--", str(function), program=str(wrapper_server), port=port):
        assert [await evaluate() for _ in range(3)] == ["OK"] * 3
        assert len(open_connections(runner.process.pid, to=port)) == 1
    with WrapperProcess("--standby=0", "--", str(function), program=str(wrapper_server), port=port):
        assert await evaluate() == "OK"
        runner.say(disconnect=front_pb2.Disconnect(connection=1))
        await eventually(lambda: not open_connections(runner.process.pid, to=port), what="the connection is closed")
        assert await evaluate() == "OK"
