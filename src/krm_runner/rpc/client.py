"""Calling a runner: the other end of `rpc.evaluate`, for `krm-runner eval`."""

from __future__ import annotations

import asyncio
import re
from types import TracebackType
from typing import cast

import grpc

from krm_runner.core.errors import RemoteError
from krm_runner.core.evaluation import EvaluationRequest, EvaluationResult
from krm_runner.rpc import wire
from krm_runner.rpc.evaluate import METHOD

_NO_LIMITS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class RemoteEvaluator:
    """A runner at an address, behind the protocol of an evaluator. The server's limits are the server's business."""

    runtime = "remote"

    def __init__(self, address: str) -> None:
        self._address = address
        self._channel = grpc.aio.insecure_channel(address, options=_NO_LIMITS)
        self._call = cast("grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]", self._channel.unary_unary(METHOD))

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        """See `core.evaluation.Evaluator`; whatever the runner answers but OK is a RemoteError."""
        timeout = request.deadline - asyncio.get_running_loop().time()
        try:
            response = await self._call(wire.encode_request(request.image, request.resource_list), timeout=timeout)
        except grpc.aio.AioRpcError as error:
            message = error.details() or ""
            if error.code() == grpc.StatusCode.UNAVAILABLE and re.search("connect|resol", message):
                message = f"cannot reach a runner at {self._address}; is it running there?"
            raise RemoteError(request.image, code=error.code().name, message=message) from error
        resource_list, log = wire.decode_response(response)
        return EvaluationResult(resource_list=bytes(resource_list), log=bytes(log), runtime=self.runtime)

    async def __aenter__(self) -> RemoteEvaluator:
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        await self._channel.close()
