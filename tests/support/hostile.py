"""Registries that misbehave, on loopback, in the test's own event loop; they write down what they were asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Server:
    """Its address, and the requests so far: `GET /path` and the Authorization header."""

    address: str
    requests: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def image(self, reference: str = "fn:v1") -> str:
        return f"{self.address}/{reference}"


@asynccontextmanager
async def serving(handler: Handler, *, host: str = "127.0.0.1") -> AsyncGenerator[Server]:
    """An HTTP server with one handler for everything."""
    server = Server("")

    async def handle(request: web.Request) -> web.StreamResponse:
        server.requests.append((f"{request.method} {request.path_qs}", request.headers.get("Authorization", "")))
        return await handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, host, 0)
        await site.start()
        server.address = f"{host}:{runner.addresses[0][1]}"
        yield server
    finally:
        await runner.cleanup()


@asynccontextmanager
async def speaking(*words: bytes, pause: float = 0.0, repeat_last: bool = False) -> AsyncGenerator[Server]:
    """A server that reads a request and then says what it is told to, byte for byte, and hangs up."""
    server = Server("")
    has_ended = asyncio.Event()
    talks: set[asyncio.Task[None]] = set()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readexactly(1)
            if head == b"\x16":
                return  # a TLS greeting: like some plain servers, hang up on it
            head += await reader.readuntil(b"\r\n\r\n")
            server.requests.append((head.split(b" HTTP/")[0].decode(), ""))
            for word in words:
                writer.write(word)
                await writer.drain()
                await asyncio.sleep(pause)
            while repeat_last and not has_ended.is_set():
                writer.write(words[-1])
                await writer.drain()
                await asyncio.sleep(pause)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        finally:
            writer.close()

    def start(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(talk(reader, writer))
        talks.add(task)
        task.add_done_callback(talks.discard)

    listener = await asyncio.start_server(start, "127.0.0.1", 0)
    server.address = f"127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        has_ended.set()
        listener.close()
        await asyncio.gather(*talks)
        await listener.wait_closed()
