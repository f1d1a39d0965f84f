"""Load for the runner where there is no Go to build bench/load: the same arguments, the same report, more CPU time."""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import cycle, islice
from pathlib import Path

import grpc

from krm_runner.core.duration import duration
from krm_runner.rpc import wire

_METHOD = "/evaluator.FunctionEvaluator/EvaluateFunction"
_CALL_SECONDS = 120
_MAX_SECONDS = 600
_MAX_CALLS = 1_000_000
_MAX_MESSAGE_BYTES = 64 << 20

_Method = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]


class _Load:
    """Callers that send the same request again and again, each to one of the servers."""

    def __init__(self, methods: Sequence[_Method], request: bytes) -> None:
        self._methods = methods
        self._request = request
        self._latencies: list[float] = []
        self._failures: list[str] = []

    async def run(self, *, callers: int, pause: float, seconds: float) -> dict[str, object]:
        """The report."""
        started, cpu = time.monotonic(), time.process_time()
        async with asyncio.TaskGroup() as group:
            for method in islice(cycle(self._methods), callers):
                group.create_task(self._call_until(method, started + seconds, pause))
        elapsed, cpu = time.monotonic() - started, time.process_time() - cpu
        ordered = sorted(self._latencies)
        last = len(ordered) - 1
        return {
            "calls": len(ordered),
            "failures": len(self._failures),
            "failure": self._failures[-1] if self._failures else "",
            "seconds": elapsed,
            "p50_ms": ordered[last // 2] * 1e3,
            "p99_ms": ordered[last * 99 // 100] * 1e3,
            "cpu_seconds": cpu,
        }

    async def _call(self, method: _Method) -> None:
        """One call; failures are counted."""
        try:
            if not await method(self._request, timeout=_CALL_SECONDS):
                self._failures.append("an empty answer")
        except grpc.aio.AioRpcError as error:
            self._failures.append(f"{error.code().name}: {error.details()}")

    async def _call_until(self, method: _Method, end: float, pause: float) -> None:
        began = time.monotonic()
        while began < end and len(self._latencies) < _MAX_CALLS:
            await self._call(method)
            now = time.monotonic()
            self._latencies.append(now - began)
            if pause:
                await asyncio.sleep(pause)
                now = time.monotonic()
            began = now


async def _main(arguments: argparse.Namespace) -> None:
    request = wire.encode_request(arguments.image, arguments.input.read_bytes())
    options = (
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    )
    async with AsyncExitStack() as stack:
        methods: list[_Method] = []
        for address in arguments.addresses.split(","):
            channel = await stack.enter_async_context(grpc.aio.insecure_channel(address, options=options))
            methods.append(channel.unary_unary(_METHOD))
            await methods[-1](request, timeout=_CALL_SECONDS)  # pays for the connection
        seconds = min(arguments.seconds, _MAX_SECONDS)
        load = _Load(methods, request)
        print(json.dumps(await load.run(callers=arguments.callers, pause=duration(arguments.pause), seconds=seconds)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-addresses", required=True)
    parser.add_argument("-seconds", type=float, default=1)
    parser.add_argument("-callers", type=int, default=1)
    parser.add_argument("-pause", default="0")
    parser.add_argument("-image", required=True)
    parser.add_argument("-input", type=Path, required=True)
    asyncio.run(_main(parser.parse_args()))
