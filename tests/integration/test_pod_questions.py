"""Pods that are asked whether they serve by way of the front: a real one, real wrapper servers, and a pod's channel."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest

from krm_runner.core.secret import Secret
from krm_runner.front.pod_questions import PodQuestions
from krm_runner.rpc._generated.front_pb2 import HealthAnswer
from krm_runner.rpc.wrapper_channel import Target, WrapperChannel
from support.front import PlayedRunner, built_front, played_runner
from support.processes import eventually, open_connections
from support.runner import write_function
from support.server import free_port
from support.wrapper import WrapperProcess

COPY = "#!/bin/sh\nexec cat\n"
POD = "function-v1-1-12345678"


@pytest.fixture
async def runner() -> AsyncIterator[PlayedRunner]:
    async with played_runner(built_front()) as played:
        yield played


@pytest.fixture
async def questions(runner: PlayedRunner) -> AsyncIterator[PodQuestions]:
    asked = PodQuestions()

    async def hear() -> None:
        while True:
            asked.answered((await runner.hear("health_answer")).health_answer)

    hearing = asyncio.create_task(hear())
    asked.open(runner.send)
    yield asked
    hearing.cancel()
    with suppress(asyncio.CancelledError, asyncio.IncompleteReadError, TimeoutError):
        await hearing


Start = Callable[..., WrapperProcess]
Dial = Callable[..., WrapperChannel]


@pytest.fixture
def start(tmp_path: Path, wrapper_server: Path) -> Iterator[Start]:
    with ExitStack() as stack:

        def start(*, port: int = 0) -> WrapperProcess:
            function = write_function(tmp_path, "function", COPY)
            wrapper = WrapperProcess("--standby=0", "--", str(function), program=str(wrapper_server), port=port)
            return stack.enter_context(wrapper)

        yield start


@pytest.fixture
async def dial(questions: PodQuestions) -> AsyncIterator[Dial]:
    channels: list[WrapperChannel] = []

    def dial(address: str, *, token: str = "") -> WrapperChannel:
        secret = Secret(token) if token else None
        channel = WrapperChannel(Target(address), pod=POD, message_limit=1000, token=lambda: secret, asker=questions)
        channels.append(channel)
        return channel

    yield dial
    for channel in channels:
        await channel.close("the test is over")


async def test_a_pod_is_asked_by_the_fronts_connection_until_it_is_not_used_any_more(
    start: Start, dial: Dial, runner: PlayedRunner
) -> None:
    wrapper = start()
    channel = dial(wrapper.address)
    assert [await channel.ask_health(timeout=30) for _ in range(3)] == [""] * 3
    assert len(open_connections(runner.process.pid, to=wrapper.port)) == 1
    await channel.close("it was deleted")
    assert await channel.ask_health(timeout=30) == "it was deleted"
    await eventually(lambda: not open_connections(runner.process.pid, to=wrapper.port), what="the connection is closed")


async def test_a_wrapper_that_does_not_listen_yet_is_waited_for(start: Start, dial: Dial) -> None:
    port = free_port()
    channel = dial(f"127.0.0.1:{port}")
    assert await channel.ask_health(timeout=0) != ""
    assert await channel.ask_health(timeout=0.2) == "its port refuses connections"
    asking = asyncio.create_task(channel.ask_health(timeout=30))
    await asyncio.sleep(0.1)
    await asyncio.to_thread(start, port=port)
    assert await asking == ""


async def test_a_name_that_nobody_knows(dial: Dial) -> None:
    assert await dial("nobody.invalid:9446").ask_health(timeout=1) == "the name nobody.invalid is not known"


async def test_a_wrapper_that_stands_still_and_goes_on(start: Start, dial: Dial) -> None:
    wrapper = start()
    channel = dial(wrapper.address)
    assert await channel.ask_health(timeout=30) == ""
    wrapper.process.send_signal(signal.SIGSTOP)
    assert await channel.ask_health(timeout=0.2) == "it does not answer"
    wrapper.process.send_signal(signal.SIGCONT)
    assert await channel.ask_health(timeout=30) == ""


async def test_a_wrapper_that_is_another_now(start: Start, dial: Dial) -> None:
    wrapper = start()
    channel = dial(wrapper.address)
    assert await channel.ask_health(timeout=30) == ""
    wrapper.stop(signal.SIGKILL)
    assert await channel.ask_health(timeout=0.2) == "its port refuses connections"
    await asyncio.to_thread(start, port=wrapper.port)
    assert await channel.ask_health(timeout=30) == ""


async def test_another_server_and_what_it_is_shown(dial: Dial) -> None:
    shown: list[tuple[str, str | bytes]] = []

    class Listener(grpc.aio.ServerInterceptor):
        async def intercept_service(self, continuation: object, handler_call_details: grpc.HandlerCallDetails) -> None:
            shown.extend(handler_call_details.invocation_metadata)

    server = grpc.aio.server(interceptors=[Listener()])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    answer = await dial(f"127.0.0.1:{port}", token="a-token-of-this-pod").ask_health(timeout=30)
    assert answer.startswith("it answers UNIMPLEMENTED: ")
    assert ("authorization", "Bearer a-token-of-this-pod") in shown
    await server.stop(None)


async def test_who_asks_may_give_up_and_a_channel_may_be_closed_meanwhile(dial: Dial) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        channel = dial(f"127.0.0.1:{silent.getsockname()[1]}")
        asking = asyncio.create_task(channel.ask_health(timeout=30))
        await asyncio.sleep(0.05)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        asking = asyncio.create_task(channel.ask_health(timeout=30))
        await asyncio.sleep(0.05)
        await channel.close("it was deleted")
        assert await asking == "it was deleted"


async def test_who_asks_before_there_is_a_front_waits_for_it(start: Start, runner: PlayedRunner) -> None:
    early = PodQuestions()
    channel = WrapperChannel(Target(start().address), pod=POD, message_limit=1000, asker=early)
    assert await channel.ask_health(timeout=0.1) == "the runner has no connections now"
    asking = asyncio.create_task(channel.ask_health(timeout=30))
    await asyncio.sleep(0.05)
    early.open(runner.send)
    early.answered((await runner.hear("health_answer")).health_answer)
    assert await asking == ""
    await channel.close("the test is over")


async def test_when_the_front_is_gone_nobody_waits_for_its_answer() -> None:
    questions = PodQuestions()
    channel = WrapperChannel(Target("127.0.0.1:1"), pod=POD, message_limit=1000, asker=questions)
    questions.open(lambda _: None)
    asking = asyncio.create_task(channel.ask_health(timeout=0.3))
    await asyncio.sleep(0.05)
    questions.close()
    assert await asking == "the runner has no connections now"
    questions.answered(HealthAnswer(id=1, response=b""))
    await channel.close("the test is over")
