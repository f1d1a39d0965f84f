"""Load for the runner where no cargo can build rust/load: the same arguments, the same report, more CPU time."""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from itertools import cycle, islice
from pathlib import Path

import grpc

from krm_runner.core.duration import duration
from krm_runner.rpc import wire
from krm_runner.rpc.remote_status import details_of

_METHOD = "/evaluator.FunctionEvaluator/EvaluateFunction"
_MAX_TIMEOUT = 120
_MAX_SECONDS = 600
_MAX_CALLS = 1_000_000
_MAX_OUTSTANDING = 20_000
_MAX_MESSAGE_BYTES = 64 << 20

_Method = grpc.aio.UnaryUnaryMultiCallable[bytes, bytes]


class _Load:
    """The same request again and again, to the servers in turns, and what became of it."""

    def __init__(self, methods: Sequence[_Method], request: bytes, *, timeout: float) -> None:
        self._methods = methods
        self._request = request
        self._timeout = timeout
        self._answered: list[float] = []
        self._refused: list[float] = []
        self._failures: list[str] = []
        self._good = 0
        self._late = 0

    @property
    def _calls(self) -> int:
        return len(self._answered) + len(self._refused) + len(self._failures) + self._late

    async def closed(self, *, callers: int, pause: float, seconds: float) -> dict[str, object]:
        """Callers that wait for their answers; the report."""
        started, cpu = time.monotonic(), time.process_time()
        async with asyncio.TaskGroup() as group:
            for method in islice(cycle(self._methods), callers):
                group.create_task(self._call_until(method, started + seconds, pause))
        return self._report(time.monotonic() - started, time.process_time() - cpu)

    async def open(self, *, rate: float, seconds: float) -> dict[str, object]:
        """Calls at a rate, whatever comes of them; a call's time counts from when it was due."""
        started, cpu = time.monotonic(), time.process_time()
        arrivals = random.Random(1)  # the same load each time
        end, due, count = started + seconds, started, 0
        async with asyncio.TaskGroup() as group:
            while due < end and count < _MAX_CALLS:
                await asyncio.sleep(due - time.monotonic())
                group.create_task(self._call_once(self._methods[count % len(self._methods)], due, end))
                due += arrivals.expovariate(rate)
                count += 1
        return self._report(seconds, time.process_time() - cpu)

    async def _call_until(self, method: _Method, end: float, pause: float) -> None:
        began = time.monotonic()
        while began < end and self._calls < _MAX_CALLS:
            try:
                answer = await method(self._request, timeout=self._timeout)
                self._note(answer, began, end)
            except grpc.aio.AioRpcError as error:
                self._fail(error)
            if pause:
                await asyncio.sleep(pause)
            began = time.monotonic()

    async def _call_once(self, method: _Method, due: float, end: float) -> None:
        """Of a load that is meant to be too much: to be refused, or late, is no failure."""
        try:
            answer = await method(self._request, timeout=due + self._timeout - time.monotonic())
            self._note(answer, due, end)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                self._late += 1
            elif error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and _says_when_to_retry(error):
                self._refused.append(time.monotonic() - due)
            else:
                self._fail(error)

    def _note(self, answer: bytes, began: float, end: float) -> None:
        now = time.monotonic()
        if not answer:
            self._failures.append("an empty answer")
            return
        self._answered.append(now - began)
        self._good += now < end

    def _fail(self, error: grpc.aio.AioRpcError) -> None:
        self._failures.append(f"{error.code().name}: {error.details()}")

    def _report(self, seconds: float, cpu: float) -> dict[str, object]:
        (p50, p99), (refused_p50, refused_p99) = _percentiles(self._answered), _percentiles(self._refused)
        return {
            "calls": self._calls,
            "failures": len(self._failures),
            "failure": self._failures[-1] if self._failures else "",
            "seconds": seconds,
            "p50_ms": p50,
            "p99_ms": p99,
            "cpu_seconds": cpu,
            "good": self._good,
            "refused": len(self._refused),
            "refused_p50_ms": refused_p50,
            "refused_p99_ms": refused_p99,
            "late": self._late,
        }


def _percentiles(latencies: Sequence[float]) -> tuple[float, float]:
    """50 and 99, in milliseconds."""
    ordered = sorted(latencies) or [0.0]
    last = len(ordered) - 1
    return ordered[last // 2] * 1e3, ordered[last * 99 // 100] * 1e3


def _says_when_to_retry(error: grpc.aio.AioRpcError) -> bool:
    details = details_of((str(name), value) for name, value in error.trailing_metadata())
    return details is not None and details.retry_after is not None


async def _main(arguments: argparse.Namespace) -> None:
    timeout = duration(arguments.timeout)
    if not 0 < timeout <= _MAX_TIMEOUT or arguments.rate * timeout > _MAX_OUTSTANDING:
        sys.exit(f"a timeout of at most {_MAX_TIMEOUT}s, and with -rate at most {_MAX_OUTSTANDING} calls in that time")
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
            await methods[-1](request, timeout=_MAX_TIMEOUT)  # pays for the connection
        seconds = min(arguments.seconds, _MAX_SECONDS)
        load = _Load(methods, request, timeout=timeout)
        if arguments.rate:
            report = await load.open(rate=arguments.rate, seconds=seconds)
        else:
            report = await load.closed(callers=arguments.callers, pause=duration(arguments.pause), seconds=seconds)
        print(json.dumps(report))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-addresses", required=True)
    parser.add_argument("-seconds", type=float, default=1)
    parser.add_argument("-callers", type=int, default=1)
    parser.add_argument("-pause", default="0")
    parser.add_argument("-rate", type=float, default=0)
    parser.add_argument("-timeout", default=f"{_MAX_TIMEOUT}s")
    parser.add_argument("-image", required=True)
    parser.add_argument("-input", type=Path, required=True)
    asyncio.run(_main(parser.parse_args()))
