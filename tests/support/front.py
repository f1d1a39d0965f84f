"""The real front, and a runner that is played: a test decides what becomes of calls."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Literal

from krm_runner import __version__
from krm_runner.rpc._generated import front_pb2
from support.machine import PROGRAMS, missing

FRONT = PROGRAMS / "krm-front"
_PATIENCE = 30

Kind = Literal["ready", "call", "ended", "forwarded", "gone", "load", "health_answer", "served"]


def built_front() -> Path:
    """The program, as `make test` builds it where there is a cargo."""
    if not FRONT.exists():
        missing("the front is not built (make programs; it needs cargo)")
    return FRONT


def configuration(**changes: object) -> front_pb2.Configure:
    """What the runner says first, in a test."""
    values: dict[str, object] = {
        "version": __version__,
        "message_limit": 6291456,
        "default_timeout_seconds": 600,
        "max_parallel": 4,
        "max_waiting": 1000,
        "max_function_memory": 1 << 40,
        "max_request_memory": 1 << 30,
        "cpus": 2,
        "standby_max_age_seconds": 300,
        "standby_idle_seconds": 600,
        "verbosity": 2,
        "longest_silence_seconds": 600,
    }
    return front_pb2.Configure(**(values | changes))  # type: ignore[arg-type]  # values of many types


class PlayedRunner:
    """Speaks to one front; `port` is where callers find it."""

    def __init__(
        self, process: asyncio.subprocess.Process, streams: tuple[asyncio.StreamReader, asyncio.StreamWriter], port: int
    ) -> None:
        self.process = process
        self.port = port
        self._reader, self._writer = streams
        self._news: list[front_pb2.FromFront] = []

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def say(self, **message: object) -> None:
        """One message: its field and its content."""
        self.send(front_pb2.ToFront(**message))  # type: ignore[arg-type]  # one of many fields

    def send(self, message: front_pb2.ToFront) -> None:
        """One that is made already."""
        content = message.SerializeToString()
        self._writer.write(struct.pack(">I", len(content)) + content)

    async def hear(self, *kinds: Kind) -> front_pb2.FromFront:
        """The next message of one of these kinds; others are kept for later."""
        for message in self._news:
            if message.WhichOneof("message") in kinds:
                self._news.remove(message)
                return message
        while True:
            async with asyncio.timeout(_PATIENCE):
                (size,) = struct.unpack(">I", await self._reader.readexactly(4))
                message = front_pb2.FromFront.FromString(await self._reader.readexactly(size))
            if message.WhichOneof("message") in kinds:
                return message
            self._news.append(message)

    def go_away(self) -> None:
        """The runner is gone, without a word."""
        self._writer.close()

    async def exit_code(self) -> int:
        """Of the front, once it has ended."""
        async with asyncio.timeout(_PATIENCE):
            return await self.process.wait()


@contextlib.asynccontextmanager
async def played_runner(program: Path, configure: front_pb2.Configure | None = None) -> AsyncGenerator[PlayedRunner]:
    """A front that serves, and its runner; killed at the end if it still lives."""
    ours, theirs = socket.socketpair()
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as listening, theirs:
        port: int = listening.getsockname()[1]
        descriptors = (listening.fileno(), theirs.fileno())
        process = await asyncio.create_subprocess_exec(program, *map(str, descriptors), pass_fds=descriptors)
    reader, writer = await asyncio.open_connection(sock=ours)
    runner = PlayedRunner(process, (reader, writer), port)
    try:
        runner.say(configure=configure or configuration())
        await runner.hear("ready")
        runner.say(health=front_pb2.Health(serving=True))
        yield runner
    finally:
        writer.close()
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
