"""A stock gRPC client: generated messages, default limits, nothing of the runner's own code but the proto."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from types import TracebackType
from urllib.parse import quote

import grpc
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse

from krm_runner.rpc._generated.evaluator_pb2 import EvaluateFunctionRequest, EvaluateFunctionResponse

METHOD = "/evaluator.FunctionEvaluator/EvaluateFunction"
DETAILS_KEY = "grpc-status-details-bin"


@dataclass(frozen=True)
class Answer:
    """What came back, whether it is a response or an error."""

    code: str
    message: str = ""
    resource_list: bytes = b""
    log: bytes = b""
    reason: str = ""
    facts: dict[str, str] | None = None
    retry_delay: float | None = None
    trailers_size: int = 0


class Client:
    """Calls EvaluateFunction on one connection."""

    def __init__(
        self,
        address: str,
        options: tuple[tuple[str, int], ...] = (),
        *,
        credentials: grpc.ChannelCredentials | None = None,
        token: str = "",
    ) -> None:
        # A subchannel pool of its own: otherwise clients to one address share a connection.
        options = (("grpc.use_local_subchannel_pool", 1), *options)
        self._channel = (
            grpc.aio.insecure_channel(address, options=options)
            if credentials is None
            else grpc.aio.secure_channel(address, credentials, options=options)
        )
        self.metadata: tuple[tuple[str, str], ...] = (("authorization", f"Bearer {token}"),) if token else ()
        self._call: grpc.aio.UnaryUnaryMultiCallable[EvaluateFunctionRequest, EvaluateFunctionResponse] = (
            self._channel.unary_unary(
                METHOD,
                request_serializer=lambda request: request.SerializeToString(),
                response_deserializer=EvaluateFunctionResponse.FromString,
            )
        )

    @property
    def channel(self) -> grpc.aio.Channel:
        return self._channel

    def start(
        self, image: str, resource_list: bytes, *, timeout: float | None = 60
    ) -> grpc.aio.UnaryUnaryCall[EvaluateFunctionRequest, EvaluateFunctionResponse]:
        """A call under way."""
        request = EvaluateFunctionRequest(image=image, resource_list=resource_list)
        return self._call(request, timeout=timeout, metadata=self.metadata)

    async def evaluate(self, image: str, resource_list: bytes, *, timeout: float | None = 60) -> Answer:
        """The answer of one call."""
        return await answer_of(self.start(image, resource_list, timeout=timeout))

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._channel.close()


async def answer_of(call: grpc.aio.UnaryUnaryCall[EvaluateFunctionRequest, EvaluateFunctionResponse]) -> Answer:
    """Waits for a call's answer; an error is an answer too."""
    try:
        response = await call
    except grpc.aio.AioRpcError as error:
        return _answer_of_error(error)
    return Answer("OK", resource_list=response.resource_list, log=response.log)


def _answer_of_error(error: grpc.aio.AioRpcError) -> Answer:
    message = error.details() or ""
    trailers = [(str(key), value) for key, value in error.trailing_metadata()]
    # As HTTP/2 counts: the status line and the two fields that the library hides come on top.
    size = sum(32 + len(name) + count for name, count in ((":status", 3), ("content-type", 16), ("grpc-status", 2)))
    size += 32 + len("grpc-message") + len(quote(message, safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"))
    reason, facts, retry_delay = "", None, None
    for key, value in trailers:
        size += 32 + len(key) + (-(-len(value) * 4 // 3) if key.endswith("-bin") else len(value))
        if key == DETAILS_KEY:
            assert isinstance(value, bytes)
            status = Status.FromString(value)
            assert (status.code, status.message) == (error.code().value[0], message)
            for detail in status.details:
                info, retry = ErrorInfo(), RetryInfo()
                if detail.Unpack(info):
                    reason, facts = info.reason, dict(info.metadata)
                elif detail.Unpack(retry):
                    retry_delay = retry.retry_delay.ToTimedelta().total_seconds()
    return Answer(error.code().name, message, reason=reason, facts=facts, retry_delay=retry_delay, trailers_size=size)


async def check_health(channel: grpc.aio.Channel, service: str = "") -> HealthCheckResponse:
    """One answer of Check."""
    call = channel.unary_unary(
        "/grpc.health.v1.Health/Check",
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )
    return await call(HealthCheckRequest(service=service), timeout=10)


def watch_health(channel: grpc.aio.Channel, service: str = "") -> AsyncIterator[HealthCheckResponse]:
    """The answers of Watch."""
    call = channel.unary_stream(
        "/grpc.health.v1.Health/Watch",
        request_serializer=HealthCheckRequest.SerializeToString,
        response_deserializer=HealthCheckResponse.FromString,
    )
    return aiter(call(HealthCheckRequest(service=service)))
