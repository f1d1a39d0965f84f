"""Where a test plays the front of a runner: `played_front.py` is the program, and the test says its lines."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from krm_runner import __version__
from krm_runner.front.link import frame
from krm_runner.rpc._generated import front_pb2 as protocol
from krm_runner.rpc._generated.front_pb2 import FromFront, ToFront

PROGRAM = Path(__file__).parent / "played_front.py"
PATIENCE = 60.0


class FrontStage:
    """One front, once its runner has started it."""

    def __init__(self, path: Path) -> None:
        self.flag = f"--front={PROGRAM}"
        self.environment = {"PLAYED_FRONT": str(path)}
        self._entered: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.get_running_loop().create_future()
        )

    def entered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._entered.set_result((reader, writer))

    async def hear(self, kind: str) -> ToFront:
        """The runner's next message, which must be of this kind; that it is alive, it says all the time."""
        message = await self._next()
        assert message is not None
        assert message.WhichOneof("message") == kind, message
        return message

    async def hear_nothing_more(self) -> None:
        """The runner has closed the link."""
        assert await self._next() is None

    async def _next(self) -> ToFront | None:
        async with asyncio.timeout(PATIENCE):
            reader, _ = await self._entered
            while prefix := await reader.read(4):
                (size,) = struct.unpack(">I", prefix + await reader.readexactly(4 - len(prefix)))
                message = ToFront.FromString(await reader.readexactly(size))
                if not message.HasField("alive"):
                    return message
        return None

    async def say(self, *messages: FromFront) -> None:
        """All of them in one go."""
        _, writer = await self._entered
        writer.write(b"".join(frame(message) for message in messages))
        await writer.drain()

    async def say_bytes(self, content: bytes) -> None:
        _, writer = await self._entered
        writer.write(content)

    async def leave(self) -> None:
        """The front ends."""
        if self._entered.done():
            _, writer = self._entered.result()
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def get_ready(self, version: str = __version__) -> protocol.Configure:
        """As soon as the runner has said what there is, and that it serves."""
        configure = (await self.hear("configure")).configure
        assert (await self.hear("health")).health.serving
        await self.say(FromFront(ready=protocol.Ready(version=version)))
        return configure


@asynccontextmanager
async def front_stage() -> AsyncGenerator[FrontStage]:
    # Not in the test's own folder: the name of a Unix socket is short.
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "stage"
        stage = FrontStage(path)
        server = await asyncio.start_unix_server(stage.entered, path)
        try:
            yield stage
        finally:
            await stage.leave()
            server.close()
            await server.wait_closed()
