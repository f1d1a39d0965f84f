"""The front by itself: real calls, real processes, a real wrapper server as pod, and a runner that is played."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import grpc
import pytest
from google.rpc.status_pb2 import Status
from grpc_health.v1.health_pb2 import HealthCheckResponse

from krm_runner.rpc._generated import front_pb2
from krm_runner.rpc._generated.evaluator_pb2 import EvaluateFunctionRequest, EvaluateFunctionResponse
from support.client import METHOD, Client, answer_of, check_health, watch_health
from support.front import PlayedRunner, configuration, played_runner
from support.processes import command_lines, eventually, open_descriptors, resident_kib
from support.runner import write_function

Upload = grpc.aio.StreamUnaryCall[bytes, bytes]
LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
IMAGE = "example.com/test/copy:v1"


def run(call: front_pb2.Call, path: Path, *, standby: int = 0) -> dict[str, front_pb2.Run]:
    return {"run": front_pb2.Run(id=call.id, function=path.name, path=bytes(path), standby=standby)}


async def test_the_runner_is_asked_once_for_an_image_and_again_when_it_forgets(
    runner: PlayedRunner, client: Client, tmp_path: Path
) -> None:
    copy = write_function(tmp_path, "copy", "#!/bin/sh\necho hello >&2\nexec cat\n")
    first = client.start(IMAGE, LIST, timeout=50)
    call = (await runner.hear("call")).call
    assert (call.image, call.message_bytes > len(LIST)) == (IMAGE, True)
    assert 40 < call.timeout_seconds < 51
    runner.say(**run(call, copy))
    answer = await answer_of(first)
    assert (answer.code, answer.resource_list, answer.log) == ("OK", LIST, b"hello\n")
    ended = (await runner.hear("ended")).ended
    assert (ended.id, ended.image, ended.function, ended.code) == (call.id, IMAGE, "copy", "OK")
    assert (ended.process, dict(ended.facts)) == ("on-demand", {"exit": "0", "log_bytes": "6"})
    assert ended.seconds >= ended.execution_seconds > 0
    assert ended.response_bytes > len(LIST)
    # Without a question: nobody answers one.
    assert (await client.evaluate(IMAGE, LIST)).resource_list == LIST
    assert (await runner.hear("ended")).ended.id == 0
    runner.say(forget=front_pb2.Forget(standby={"copy": 0}))
    again = client.start(IMAGE, LIST)
    call = (await runner.hear("call")).call
    runner.say(**run(call, copy))
    assert (await answer_of(again)).code == "OK"


async def test_a_refusal_is_passed_on_as_it_is(runner: PlayedRunner, client: Client) -> None:
    asked = client.start(IMAGE, LIST)
    call = (await runner.hear("call")).call
    details = Status(code=9, message="not töday").SerializeToString()
    runner.say(refuse=front_pb2.Refuse(id=call.id, code=9, message="not töday", details=details))
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await asked
    assert (refused.value.code(), refused.value.details()) == (grpc.StatusCode.FAILED_PRECONDITION, "not töday")
    assert dict(refused.value.trailing_metadata())["grpc-status-details-bin"] == details


async def test_requests_that_do_not_fit_are_not_even_kept(front: Path) -> None:
    message = EvaluateFunctionRequest(image=IMAGE, resource_list=b"#" * 5_000_000).SerializeToString()
    async with (
        played_runner(front, configuration(max_request_memory=8_000_000)) as runner,
        Client(runner.address) as client,
    ):
        before = resident_kib(runner.process.pid)
        # Each of them would go on after its message.
        uploads = [cast(Upload, client.channel.stream_unary(METHOD)(timeout=60)) for _ in range(15)]
        await asyncio.gather(*(upload.write(message) for upload in uploads))
        refused = [(await runner.hear("ended")).ended for _ in uploads[1:]]
        assert {(each.code, each.image) for each in refused} == {("RESOURCE_EXHAUSTED", IMAGE)}
        # Together they are 75 MB.
        assert resident_kib(runner.process.pid) - before < 40_000
        # Their callers hear of it a moment after the runner.
        await eventually(lambda: sum(not upload.done() for upload in uploads) == 1, what="one is left")
        upload = next(upload for upload in uploads if not upload.done())
        await upload.done_writing()
        assert (await runner.hear("call")).call.message_bytes == len(message)


async def test_a_caller_that_goes_away_in_the_middle_of_its_request_is_told_as_such(
    runner: PlayedRunner, client: Client
) -> None:
    upload = cast(Upload, client.channel.stream_unary(METHOD)(timeout=60))
    await upload.write(EvaluateFunctionRequest(image=IMAGE, resource_list=LIST).SerializeToString())
    await asyncio.sleep(0.1)
    upload.cancel()
    assert (await runner.hear("ended")).ended.code == "CANCELLED"


async def test_a_runner_that_says_nothing_any_more_is_told_to_probes_and_callers(front: Path, tmp_path: Path) -> None:
    copy = write_function(tmp_path, "copy", "#!/bin/sh\nexec cat\n")
    configured = configuration(longest_silence_seconds=5)
    async with played_runner(front, configured) as runner, Client(runner.address) as client:
        first = client.start(IMAGE, LIST)
        runner.say(**run((await runner.hear("call")).call, copy))
        assert (await answer_of(first)).code == "OK"
        statuses = watch_health(client.channel)
        assert (await anext(statuses)).status == HealthCheckResponse.SERVING
        assert (await anext(statuses)).status == HealthCheckResponse.NOT_SERVING
        refused = await client.evaluate("example.com/test/other:v1", LIST)
        assert (refused.code, refused.reason, refused.retry_delay) == ("UNAVAILABLE", "RUNNER_SILENT", 1.0)
        assert 'function "example.com/test/other:v1"' in refused.message
        assert (await client.evaluate(IMAGE, LIST)).code == "OK", "what it had decided before goes on"
        runner.say(alive=front_pb2.Alive())
        assert (await anext(statuses)).status == HealthCheckResponse.SERVING
        again = client.start("example.com/test/other:v1", LIST)
        runner.say(**run((await runner.hear("call")).call, copy))
        assert (await answer_of(again)).code == "OK"


async def test_calls_that_wait_for_their_turn_hold_no_descriptors(front: Path, tmp_path: Path) -> None:
    held = write_function(tmp_path, "held", f"#!/bin/sh\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.05; done\nexec cat\n")
    async with played_runner(front, configuration(max_parallel=1)) as runner, Client(runner.address) as client:
        first = client.start(IMAGE, LIST)
        runner.say(**run((await runner.hear("call")).call, held))
        await eventually(lambda: any(f"{held}" in line for line in command_lines()), what="the function runs")
        before = len(open_descriptors(runner.process.pid))
        waiting = [client.start(IMAGE, LIST) for _ in range(100)]
        while (await runner.hear("load")).load.waiting < len(waiting):
            pass
        assert len(open_descriptors(runner.process.pid)) <= before
        (tmp_path / "go").touch()
        answers = [await answer_of(call) for call in (first, *waiting)]
    assert {answer.code for answer in answers} == {"OK"}


async def test_the_runner_hears_that_a_caller_went_away(runner: PlayedRunner, client: Client) -> None:
    asked = client.start(IMAGE, LIST)
    call = (await runner.hear("call")).call
    asked.cancel()
    assert (await runner.hear("gone")).gone.id == call.id


async def test_a_caller_that_goes_away_ends_its_function(runner: PlayedRunner, client: Client, tmp_path: Path) -> None:
    slow = write_function(tmp_path, "slow", "#!/bin/sh\nsleep 4711.25\n")
    asked = client.start(IMAGE, LIST)
    runner.say(**run((await runner.hear("call")).call, slow))
    await eventually(lambda: "sleep 4711.25" in command_lines(), what="the function runs")
    asked.cancel()
    ended = (await runner.hear("ended")).ended
    assert (ended.code, ended.process) == ("CANCELLED", "")
    await eventually(lambda: "sleep 4711.25" not in command_lines(), what="the function is gone")


@pytest.mark.parametrize("compression", [grpc.Compression.Gzip, grpc.Compression.Deflate])
async def test_a_compressed_request_is_understood(
    runner: PlayedRunner, client: Client, tmp_path: Path, compression: grpc.Compression
) -> None:
    copy = write_function(tmp_path, "copy", "#!/bin/sh\nexec cat\n")
    call = client.channel.unary_unary(
        METHOD,
        request_serializer=EvaluateFunctionRequest.SerializeToString,
        response_deserializer=EvaluateFunctionResponse.FromString,
    )
    large = LIST + b"# the same again\n" * 1000
    asked = asyncio.ensure_future(
        call(EvaluateFunctionRequest(image=IMAGE, resource_list=large), compression=compression)
    )
    runner.say(**run((await runner.hear("call")).call, copy))
    assert (await asked).resource_list == large
    assert len(gzip.compress(large)) < len(large) // 10


async def test_who_asks_for_too_much_is_told_both_sizes(front: Path) -> None:
    async with (
        played_runner(front, configuration(message_limit=2000)) as runner,
        Client(runner.address) as client,
    ):
        answer = await client.evaluate(IMAGE, b"x" * 5000)
        assert (answer.code, answer.reason) == ("RESOURCE_EXHAUSTED", "MESSAGE_TOO_LARGE")
        assert "more than the limit of 2000 bytes" in answer.message
        ended = (await runner.hear("ended")).ended
        assert (ended.code, ended.function, ended.request_bytes > 5000) == ("RESOURCE_EXHAUSTED", "", True)


async def test_requests_do_not_take_more_memory_than_they_may(front: Path) -> None:
    async with (
        played_runner(front, configuration(max_request_memory=3000)) as runner,
        Client(runner.address) as client,
    ):
        held = client.start(IMAGE, b"x" * 2000)
        await runner.hear("call")
        answer = await client.evaluate(IMAGE, b"x" * 2000)
        assert (answer.code, answer.reason, answer.retry_delay) == ("RESOURCE_EXHAUSTED", "OVERLOADED", 1)
        held.cancel()
        await runner.hear("gone")
        asked = client.start(IMAGE, b"x" * 2000)
        assert (await runner.hear("call")).call.image == IMAGE
        asked.cancel()


async def test_functions_and_the_front_end_with_the_runner(
    runner: PlayedRunner, client: Client, tmp_path: Path
) -> None:
    slow = write_function(tmp_path, "slow", "#!/bin/sh\nsleep 4714.25\n")
    asked = client.start(IMAGE, LIST)
    runner.say(**run((await runner.hear("call")).call, slow, standby=1))
    await eventually(lambda: "sleep 4714.25" in command_lines(), what="the function runs")
    runner.go_away()
    await runner.exit_code()
    assert (await answer_of(asked)).code in ("UNAVAILABLE", "CANCELLED")
    await eventually(lambda: "sleep 4714.25" not in command_lines(), what="the function is gone")


async def test_the_end_loses_no_call(runner: PlayedRunner, client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    waits = write_function(tmp_path, "waits", f"#!/bin/sh\nwhile [ ! -e {gate} ]; do sleep 0.02; done\nexec cat\n")
    executed, forwarded = client.start(IMAGE, LIST), client.start("example.com/test/other:v1", LIST)
    calls = [(await runner.hear("call")).call for _ in range(2)]
    by_image = {call.image: call for call in calls}
    runner.say(**run(by_image[IMAGE], waits))
    runner.say(health=front_pb2.Health(serving=False, end_standby=True))
    assert (await check_health(client.channel)).status == 2
    runner.say(drain=front_pb2.Drain())
    await eventually(lambda: not listens(runner.port), what="no new connections")
    gate.touch()
    assert (await answer_of(executed)).code == "OK"
    other = by_image["example.com/test/other:v1"]
    runner.say(refuse=front_pb2.Refuse(id=other.id, code=5, message="nobody knows it"))
    assert (await answer_of(forwarded)).code == "NOT_FOUND"
    assert await runner.exit_code() == 0


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


async def test_calls_that_take_too_long_at_the_end_are_told_so(
    runner: PlayedRunner, client: Client, tmp_path: Path
) -> None:
    slow = write_function(tmp_path, "slow", "#!/bin/sh\nsleep 4715.25\n")
    asked = client.start(IMAGE, LIST)
    runner.say(**run((await runner.hear("call")).call, slow))
    await eventually(lambda: "sleep 4715.25" in command_lines(), what="the function runs")
    runner.say(drain=front_pb2.Drain())
    runner.say(cancel_calls=front_pb2.CancelCalls())
    answer = await answer_of(asked)
    assert (answer.code, answer.reason, answer.retry_delay) == ("UNAVAILABLE", "SHUTTING_DOWN", 1)
    assert "was stopped because this runner is shutting down" in answer.message
    assert await runner.exit_code() == 0
    await eventually(lambda: "sleep 4715.25" not in command_lines(), what="the function is gone")


async def test_a_message_that_does_not_come_keeps_nobody_at_the_end(runner: PlayedRunner, client: Client) -> None:
    begun, never = asyncio.Event(), asyncio.Event()

    async def messages() -> AsyncIterator[bytes]:
        begun.set()
        await never.wait()
        yield b""

    send = cast("grpc.aio.StreamUnaryMultiCallable[bytes, bytes]", client.channel.stream_unary(METHOD))
    asked = send(messages(), timeout=60)
    await begun.wait()
    # Its headers are there once another call is.
    other = client.start(IMAGE, LIST)
    call = (await runner.hear("call")).call
    runner.say(refuse=front_pb2.Refuse(id=call.id, code=5, message="nobody knows it"))
    await answer_of(other)
    runner.say(drain=front_pb2.Drain())
    runner.say(cancel_calls=front_pb2.CancelCalls())
    with pytest.raises(grpc.aio.AioRpcError) as ended:
        await asked
    assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "because this runner is shutting down" in (ended.value.details() or "")
    assert await runner.exit_code() == 0


async def test_a_front_of_another_version_says_so_and_ends(front: Path) -> None:
    async with played_runner(front, configuration(version="0.0.0")) as runner:
        assert await runner.exit_code() == 1


async def test_by_hand_it_says_how_it_is_used(front: Path) -> None:
    process = await asyncio.create_subprocess_exec(front, stderr=asyncio.subprocess.PIPE)
    _, text = await process.communicate()
    assert process.returncode == 2
    assert b"usage: krm-front LISTENING LINK" in text
