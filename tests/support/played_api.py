"""An API server that a test plays itself, for what a real one does too rarely or needs nodes for."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from aiohttp import web
from kubernetes_asyncio.client.configuration import Configuration

from krm_runner.kube.client import KubeClient
from support.hostile import Handler


@asynccontextmanager
async def played_api(answer: Handler, *, authority: Path | None = None) -> AsyncGenerator[KubeClient]:
    """A client whose every request is answered by the test."""
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    (host, port) = runner.addresses[0]
    try:
        configuration = Configuration(host=f"http://{host}:{port}")
        configuration.ssl_ca_cert = str(authority) if authority is not None else None
        async with KubeClient(configuration) as client:
            yield client
    finally:
        await runner.cleanup()
