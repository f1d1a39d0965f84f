"""grpc.health.v1: Check, Watch and List.

The servicer that comes with grpcio has no List, and holds a lock while it writes to a watcher: one watcher that does
not read would keep the status from changing. Here every watcher waits for itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable

import grpc
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN

SERVICE_NAME: str = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

# The type stubs do not know List yet.
_ListRequest: type[Message] = vars(health_pb2)["HealthListRequest"]
_ListResponse: Callable[..., Message] = vars(health_pb2)["HealthListResponse"]

_Context = grpc.aio.ServicerContext[object, object]


class Health:
    """One status for a fixed set of services; the empty name stands for the whole server."""

    def __init__(self, services: Iterable[str]) -> None:
        self._services = ("", *services)
        self._status: int = NOT_SERVING
        self._changed = asyncio.Event()
        self._closed = False

    def set_serving(self, serving: bool) -> None:
        """Change the status; watchers are told."""
        self._status = SERVING if serving else NOT_SERVING
        self._wake()

    def close(self) -> None:
        """End every Watch after its last status, so that the server can stop."""
        self._closed = True
        self._wake()

    def handler(self) -> grpc.GenericRpcHandler:
        """What the server needs to serve it."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {
                "Check": grpc.unary_unary_rpc_method_handler(
                    self._check,
                    request_deserializer=health_pb2.HealthCheckRequest.FromString,
                    response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
                ),
                "Watch": grpc.unary_stream_rpc_method_handler(
                    self._watch,
                    request_deserializer=health_pb2.HealthCheckRequest.FromString,
                    response_serializer=health_pb2.HealthCheckResponse.SerializeToString,
                ),
                "List": grpc.unary_unary_rpc_method_handler(
                    self._list,
                    request_deserializer=_ListRequest.FromString,
                    response_serializer=lambda response: response.SerializeToString(),
                ),
            },
        )

    async def _check(self, request: health_pb2.HealthCheckRequest, context: _Context) -> health_pb2.HealthCheckResponse:
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f'unknown service "{request.service}"')
        return health_pb2.HealthCheckResponse(status=self._status)

    async def _watch(
        self, request: health_pb2.HealthCheckRequest, _context: _Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        known = request.service in self._services
        sent: int | None = None
        while True:
            changed = self._changed
            status = self._status if known else SERVICE_UNKNOWN
            if status != sent:
                yield health_pb2.HealthCheckResponse(status=status)
                sent = status
                continue  # it may have changed while the watcher was reading
            if self._closed:
                return
            await changed.wait()

    async def _list(self, _request: Message, _context: _Context) -> Message:
        current = health_pb2.HealthCheckResponse(status=self._status)
        return _ListResponse(statuses=dict.fromkeys(self._services, current))

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
