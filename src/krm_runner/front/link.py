"""The link to the front: messages over one end of a socket pair, each after its length in four bytes.

Whatever arrives at once is read at once, and what is answered to it leaves together. What is no message, or is larger
than any of ours, ends the link: both ends are of one version, so it can only be a defect. What the messages mean is not
known here.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable
from typing import cast

from google.protobuf.message import DecodeError

from krm_runner.rpc._generated.front_pb2 import FromFront, ToFront

MAX_MESSAGE_BYTES = 1024 * 1024
"""Resource lists never come this way."""
MAX_UNSENT_BYTES = 64 * 1024 * 1024
"""That krm-front has not read: far more than it ever leaves unread while it runs."""

_LENGTH = struct.Struct(">I")


class LinkError(Exception):
    """What came is no message of the front."""


class Frames:
    """Cuts what arrives, in whatever portions, into the messages that were sent."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The messages that are complete now; LinkError when one is too large."""
        if self._rest:
            data = self._rest + data
        frames: list[bytes] = []
        start = 0
        while len(data) - start >= _LENGTH.size:
            (size,) = cast("tuple[int]", _LENGTH.unpack_from(data, start))
            if size > MAX_MESSAGE_BYTES:
                raise LinkError(f"a message of {size} bytes, more than {MAX_MESSAGE_BYTES}")
            end = start + _LENGTH.size + size
            if end > len(data):
                break
            frames.append(data[start + _LENGTH.size : end])
            start = end
        self._rest = data[start:]
        return frames


def frame(message: ToFront | FromFront) -> bytes:
    """A message as it is sent."""
    content = message.SerializeToString()
    return _LENGTH.pack(len(content)) + content


class Link(asyncio.Protocol):
    """One end of the socket pair; made before it is there, for those who will send."""

    def __init__(self) -> None:
        self._received: Callable[[FromFront], None] | None = None
        self._frames = Frames()
        self._transport: asyncio.WriteTransport | None = None
        self._outbox: list[bytes] | None = None
        """What is to leave together, while messages are read."""
        self.closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Has a result when nothing comes any more: what was wrong, or nothing when the other end closed it."""

    async def open(self, end: socket.socket, received: Callable[[FromFront], None]) -> None:
        """Takes the socket over; `received` is called with every message, in their order."""
        self._received = received
        await asyncio.get_running_loop().create_connection(lambda: self, sock=end)

    def send(self, message: ToFront) -> None:
        """Nothing happens while the link is not open: nobody has the other end, or no longer."""
        if self._outbox is not None:
            self._outbox.append(frame(message))
        else:
            self._write(frame(message))

    def close(self) -> None:
        """The front ends by itself when it sees that."""
        if self._transport is not None:
            self._transport.abort()

    # --- asyncio.Protocol -----------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def data_received(self, data: bytes) -> None:
        assert self._received is not None  # noqa: S101 - the link is open
        self._outbox = []
        try:
            for content in self._frames.feed(data):
                self._received(FromFront.FromString(content))
        except (LinkError, DecodeError) as error:
            self._end(f"what it says makes no sense: {error}")
            self.close()
        finally:
            outbox, self._outbox = self._outbox, None
            if outbox:
                self._write(b"".join(outbox))

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(str(exc) if exc is not None and not isinstance(exc, ConnectionError) else "")

    def _write(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._transport.write(data)
        if (unsent := self._transport.get_write_buffer_size()) > MAX_UNSENT_BYTES:
            self._end(f"it does not read its messages: {unsent} bytes wait, more than {MAX_UNSENT_BYTES}")
            self.close()

    def _end(self, why: str) -> None:
        if not self.closed.done():
            self.closed.set_result(why)
