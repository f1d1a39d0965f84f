"""Server reflection, so that grpcurl and its like need no proto file.

The library serves grpc.reflection.v1alpha only. Version 1 has the same messages under another name, and newer clients
ask for it first: the same servicer answers to both, and describes both.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, cast

import grpc
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

_OLD, _NEW = "grpc.reflection.v1alpha", "grpc.reflection.v1"
NAMES = (f"{_NEW}.ServerReflection", f"{_OLD}.ServerReflection")

_Context = grpc.aio.ServicerContext[object, object]


class Reflection:
    """Describes services; its streams last as long as their clients want, or until it is closed."""

    def __init__(self, services: Iterable[str]) -> None:
        _describe_version_1()
        self._servicer = ReflectionServicer([*services, *NAMES])
        self._streams: set[asyncio.Task[Any]] = set()

    def handlers(self) -> list[grpc.GenericRpcHandler]:
        """What the server needs to serve it."""
        method = grpc.stream_stream_rpc_method_handler(
            self._serve,
            request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
            response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
        )
        return [grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method}) for name in NAMES]

    def close(self) -> None:
        """End every stream, so that the server can stop."""
        for stream in self._streams:
            stream.cancel()

    async def _serve(
        self, requests: AsyncIterator[reflection_pb2.ServerReflectionRequest], context: _Context
    ) -> AsyncIterator[reflection_pb2.ServerReflectionResponse]:
        stream = cast("asyncio.Task[Any]", asyncio.current_task())
        self._streams.add(stream)
        try:
            answers = cast(
                AsyncIterator[reflection_pb2.ServerReflectionResponse],
                self._servicer.ServerReflectionInfo(requests, context),  # pyright: ignore[reportUnknownMemberType] - untyped
            )
            async for answer in answers:
                yield answer
        finally:
            self._streams.discard(stream)


def _describe_version_1() -> None:
    """Puts a description of version 1 beside that of v1alpha: the same messages under the other name."""
    file = FileDescriptorProto()
    reflection_pb2.DESCRIPTOR.CopyToProto(file)
    file.name = "grpc/reflection/v1/reflection.proto"
    file.package = _NEW
    for message in file.message_type:
        for field in message.field:
            if field.HasField("type_name"):
                field.type_name = field.type_name.replace(f".{_OLD}.", f".{_NEW}.")
    for service in file.service:
        for method in service.method:
            method.input_type = method.input_type.replace(f".{_OLD}.", f".{_NEW}.")
            method.output_type = method.output_type.replace(f".{_OLD}.", f".{_NEW}.")
    descriptor_pool.Default().Add(file)
