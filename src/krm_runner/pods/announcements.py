"""Hears from pods that they serve: the socket to `core.announcement`.

One datagram is looked at per turn of the event loop, so that whoever sends many does not keep calls waiting.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import structlog

from krm_runner.core.announcement import Announcement, parse, plain_ip
from krm_runner.core.errors import ConfigurationError

_log = structlog.get_logger("krm_runner.pods")
Heard = Callable[[Announcement, str], None]
"""Told of an announcement, and of the address it came from."""


@asynccontextmanager
async def hear_announcements(host: str, port: int, heard: Heard) -> AsyncGenerator[str]:
    """Listens as long as it is open; gives the address for pods, with the port that was free if any may be used."""
    loop = asyncio.get_running_loop()
    try:
        transport, _ = await loop.create_datagram_endpoint(lambda: _Ear(heard), local_addr=(host, port))
    except OSError as error:
        why = error.strerror or str(error)
        raise ConfigurationError(f"cannot listen on {_joined(host, port)} (--announce-address): {why}") from error
    address = _joined(host, transport.get_extra_info("sockname")[1])
    _log.info("listening for pods", address=address)
    try:
        yield address
    finally:
        transport.close()


class _Ear(asyncio.DatagramProtocol):
    def __init__(self, heard: Heard) -> None:
        self._heard = heard

    def datagram_received(self, data: bytes, addr: tuple[str | object, ...]) -> None:
        announcement, ip = parse(data), plain_ip(str(addr[0]))
        if announcement is not None and ip:
            self._heard(announcement, ip)


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
