"""Server reflection, so that grpcurl and its like need no proto file.

The library serves grpc.reflection.v1alpha only. Version 1 has the same messages under another name, and newer clients
ask for it first: the same servicer answers to both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha._async import ReflectionServicer

NAMES = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")


def reflection_handlers(services: Iterable[str]) -> list[grpc.GenericRpcHandler]:
    """Handlers that describe `services` and reflection itself."""
    servicer = ReflectionServicer([*services, *NAMES])
    method = grpc.stream_stream_rpc_method_handler(
        cast(Callable[..., Any], servicer.ServerReflectionInfo),  # pyright: ignore[reportUnknownMemberType] - untyped
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return [grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method}) for name in NAMES]
