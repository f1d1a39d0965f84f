"""The wrapper server in a pod that has no function yet, and in the same pod when it has got one."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse

from krm_runner.core.spare import COMMAND_VARIABLE, as_annotation
from krm_runner.rpc.evaluate import SERVICE_NAME
from krm_runner.rpc.wrapper_channel import NOT_SERVING, Target, WrapperChannel
from support.client import Client, check_health, watch_health
from support.runner import write_function
from support.wrapper import WrapperProcess

IMAGE = "example.com/some/function:v1"
LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
SHOWS = """#!/bin/sh
cat
printf 'arguments: %s: %s\\n' "$#" "$*" >&2
env >&2
"""


@pytest.fixture
def program(wrapper_server: Path) -> str:
    return str(wrapper_server)


@pytest.fixture
def spare(program: str) -> Iterator[WrapperProcess]:
    with WrapperProcess(program=program, environment={COMMAND_VARIABLE: ""}) as wrapper:
        wrapper.wait_for_line('event="waiting for a function"')
        yield wrapper


async def test_it_is_there_and_evaluates_nothing(spare: WrapperProcess) -> None:
    async with grpc.aio.insecure_channel(spare.address) as channel:
        for service, status in (("", HealthCheckResponse.SERVING), (SERVICE_NAME, HealthCheckResponse.NOT_SERVING)):
            assert await check_health(channel, service) == HealthCheckResponse(status=status)
            assert await anext(watch_health(channel, service)) == HealthCheckResponse(status=status)
    async with Client(spare.address) as client:
        answer = await client.evaluate(IMAGE, LIST)
    assert (answer.code, answer.message) == ("UNAVAILABLE", "this pod has no function yet")


async def test_who_waits_for_the_function_does_not_take_it_for_that(spare: WrapperProcess) -> None:
    channel = WrapperChannel(Target(spare.address), pod="krm-spare-1", message_limit=1000)
    try:
        assert await channel.ask_health(timeout=30) == ""
        assert await channel.ask_health(timeout=30, of_function=True) == NOT_SERVING
    finally:
        await channel.close("the test is over")


def test_it_ends_at_once_though_somebody_is_connected(spare: WrapperProcess) -> None:
    with grpc.insecure_channel(spare.address) as channel:
        grpc.channel_ready_future(channel).result(timeout=30)
        spare.stop()
    assert spare.process.returncode == 0
    assert [line for line in spare.lines if "event=stopped" in line]


@pytest.mark.parametrize("words", [[], ["a b", "", "$(HOME)", "two\nlines", "back\\n"]], ids=["none", "odd ones"])
async def test_with_a_command_it_serves_that(tmp_path: Path, program: str, words: list[str]) -> None:
    function = write_function(tmp_path, "function", SHOWS)
    environment = {COMMAND_VARIABLE: as_annotation([str(function), *words])}
    with ExitStack() as stack:
        wrapper = stack.enter_context(WrapperProcess("--standby=0", program=program, environment=environment))
        channel = WrapperChannel(Target(wrapper.address), pod="krm-spare-1", message_limit=1000)
        assert await channel.ask_health(timeout=30, of_function=True) == ""
        await channel.close("it is known")
        async with Client(wrapper.address) as client:
            answer = await client.evaluate(IMAGE, LIST)
    log = answer.log.decode()
    assert f"arguments: {len(words)}: {' '.join(words)}\n" in log
    assert COMMAND_VARIABLE not in log, "that is between the runner and the wrapper server"


def test_what_comes_after_the_dashes_counts_more(tmp_path: Path, program: str) -> None:
    function = write_function(tmp_path, "function", SHOWS)
    with WrapperProcess("--", str(function), program=program, environment={COMMAND_VARIABLE: "/absent"}) as wrapper:
        wrapper.wait_for_line(f"event=serving .*function={function}")


@pytest.mark.parametrize(
    ("command", "why"), [("/absent", "there is no such file"), ("a\\t", "is set, but not to words")]
)
def test_a_command_that_is_none_is_told(program: str, command: str, why: str) -> None:
    ended = subprocess.run(
        [program, "--port=0"], env={COMMAND_VARIABLE: command}, capture_output=True, text=True, timeout=30, check=False
    )
    assert ended.returncode in (1, 2)
    assert why in ended.stderr
