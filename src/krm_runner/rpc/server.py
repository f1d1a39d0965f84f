"""The gRPC server as a whole: one port, three services, and an end that loses no call.

It serves plain text; krm-front is needed for TLS, callers' tokens and --health-port.
"""

from __future__ import annotations

import asyncio
import socket

import grpc
import structlog

from krm_runner.core.errors import ServeError
from krm_runner.rpc import evaluate
from krm_runner.rpc import health as health_service
from krm_runner.rpc.evaluate import EvaluateHandler
from krm_runner.rpc.health import Health
from krm_runner.rpc.reflection import Reflection

_log = structlog.get_logger("krm_runner.rpc")

_CLEAR_REFUSAL_LIMIT = 64 * 1024 * 1024
"""Messages up to here are received although they are over the limit, so that their sender gets our own message with
both sizes and the name of the flag; what is larger still is cut off by gRPC, with its message."""

_MAX_INT = 2**31 - 1
_LAST_GRACE = 0.5
# Two runners on one port would share its calls without a word.
_ALONE_ON_THE_PORT = ("grpc.so_reuseport", 0)


class GrpcServer:
    """Listens on one port, in plain text, as Porch speaks it."""

    def __init__(
        self,
        evaluate_handler: EvaluateHandler,
        *,
        port: int,
        message_limit: int,
    ) -> None:
        self._evaluate = evaluate_handler
        self._health = Health([evaluate.SERVICE_NAME])
        self._reflection = Reflection([evaluate.SERVICE_NAME, health_service.SERVICE_NAME])
        self._server = grpc.aio.server(
            options=(
                ("grpc.max_receive_message_length", min(_MAX_INT, max(2 * message_limit, _CLEAR_REFUSAL_LIMIT))),
                ("grpc.max_send_message_length", -1),
                _ALONE_ON_THE_PORT,
                # Porch keeps one connection for ever and may ping it while it is idle.
                ("grpc.http2.min_ping_interval_without_data_ms", 5000),
                ("grpc.keepalive_permit_without_calls", 1),
            )
        )
        self._server.add_generic_rpc_handlers(
            (
                evaluate_handler.handler(),
                self._health.handler(),
                *self._reflection.handlers(),
            )
        )
        self.port = _listen(self._server, port)

    async def start(self) -> None:
        """Accept connections; health says NOT_SERVING until it is told otherwise."""
        await self._server.start()

    def set_serving(self, serving: bool) -> None:
        """What health answers."""
        self._health.set_serving(serving)

    async def stop(self, *, lame_duck: float, total: float) -> None:
        """Stop without losing a call: see docs/architecture.md, "The end".

        For `lame_duck` seconds the server says NOT_SERVING and goes on accepting; then it takes no new call and waits
        for those under way; after `total` seconds it cancels them.
        """
        self.set_serving(False)
        await asyncio.sleep(lame_duck)
        self._health.close()
        self._reflection.close()
        remaining = max(0.0, total - lame_duck)
        async with asyncio.TaskGroup() as group:
            # Returns as soon as nothing is under way, requests that are still being received included.
            stopping = group.create_task(self._server.stop(grace=remaining + _LAST_GRACE))
            done, _ = await asyncio.wait([stopping], timeout=remaining)
            if not done:
                _log.warning("time is over: calls are cancelled", calls=self._evaluate.calls_under_way)
                self._evaluate.stop_calls()


def _listen(server: grpc.aio.Server, port: int) -> int:
    """Return the port that was bound (useful with port 0). ServeError when it cannot be had."""
    if port and not _is_free(port):
        # gRPC would say so, too, in lines of its own on stderr.
        raise ServeError(cannot_listen(port))
    try:
        return server.add_insecure_port(f"[::]:{port}")
    except RuntimeError as error:
        raise ServeError(cannot_listen(port)) from error


def _is_free(port: int) -> bool:
    has_ipv6 = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if has_ipv6 else socket.AF_INET
    try:
        socket.create_server(("", port), family=family, dualstack_ipv6=has_ipv6).close()
    except OSError:
        return False
    return True


def cannot_listen(port: int) -> str:
    """In words."""
    return f"cannot listen on port {port}: it is in use, or not allowed to this user"
