"""Health and reflection, which the runner and the wrapper server answer alike."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2
from grpc_health.v1.health_pb2 import HealthCheckResponse as HealthResponse
from grpc_reflection.v1alpha import reflection_pb2

from integration.conftest import Installation
from support.client import Client, check_health, watch_health
from support.server import ServerProcess
from support.wrapper import WrapperProcess


@pytest.fixture(params=["runner", "wrapper"])
def server(request: pytest.FixtureRequest, installation: Installation) -> Iterator[ServerProcess]:
    if request.param == "runner":
        yield installation.start()
        return
    program = cast(Path, request.getfixturevalue("wrapper_server"))
    with WrapperProcess("--", "cat", program=str(program)) as wrapper:
        yield wrapper


async def test_health_check_list_and_unknown_service(server: ServerProcess) -> None:
    async with Client(server.address) as client:
        for service in ("", "evaluator.FunctionEvaluator"):
            assert (await check_health(client.channel, service)).status == HealthResponse.SERVING
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await check_health(client.channel, "unknown.Service")
        assert refusal.value.code() == grpc.StatusCode.NOT_FOUND
        listing = cast(
            "grpc.aio.UnaryUnaryMultiCallable[bytes, Any]",
            client.channel.unary_unary(
                "/grpc.health.v1.Health/List", response_deserializer=vars(health_pb2)["HealthListResponse"].FromString
            ),
        )
        statuses = (await listing(b"", timeout=10)).statuses
        assert {name: entry.status for name, entry in statuses.items()} == {
            "": HealthResponse.SERVING,
            "evaluator.FunctionEvaluator": HealthResponse.SERVING,
        }


async def test_health_watch(server: ServerProcess) -> None:
    async with Client(server.address) as client:
        known, unknown = watch_health(client.channel), watch_health(client.channel, "unknown.Service")
        assert (await anext(known)).status == HealthResponse.SERVING
        assert (await anext(unknown)).status == HealthResponse.SERVICE_UNKNOWN


@pytest.mark.parametrize("version", ["v1", "v1alpha"])
async def test_reflection_describes_the_services(server: ServerProcess, version: str) -> None:
    async with Client(server.address) as client:
        reflect = client.channel.stream_stream(
            f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo",
            request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
            response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
        )
        requests = iter(
            [
                reflection_pb2.ServerReflectionRequest(list_services=""),
                reflection_pb2.ServerReflectionRequest(file_containing_symbol="evaluator.FunctionEvaluator"),
                reflection_pb2.ServerReflectionRequest(file_containing_symbol="grpc.health.v1.Health"),
            ]
        )
        answers = [answer async for answer in reflect(requests, timeout=10)]
    services = {service.name for service in answers[0].list_services_response.service}
    assert {"evaluator.FunctionEvaluator", "grpc.health.v1.Health"} <= services
    assert b"EvaluateFunctionRequest" in answers[1].file_descriptor_response.file_descriptor_proto[0]
    assert b"HealthListResponse" in answers[2].file_descriptor_response.file_descriptor_proto[0]


async def test_an_unknown_method_is_unimplemented(server: ServerProcess) -> None:
    async with Client(server.address) as client:
        for service in ("evaluator.FunctionEvaluator", "grpc.health.v1.Health", "nonsense.Service"):
            method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = client.channel.unary_unary(f"/{service}/Nonsense")
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await method(b"", timeout=10)
            assert refusal.value.code() == grpc.StatusCode.UNIMPLEMENTED
