"""A function's stderr, bounded: the first and the last part are kept, and a line says what was cut."""

from __future__ import annotations

LOG_LIMIT = 64 * 1024


class LogExcerpt:
    """Takes bytes as they come and never holds more than about `limit` of them."""

    def __init__(self, limit: int = LOG_LIMIT) -> None:
        self._head_limit = limit // 2
        self._tail_limit = limit - self._head_limit
        self._head = bytearray()
        self._tail = bytearray()
        self._total = 0

    def add(self, chunk: bytes) -> None:
        """Append what the function wrote."""
        self._total += len(chunk)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if chunk:
            self._tail += chunk[-self._tail_limit :]
            if len(self._tail) > 2 * self._tail_limit:
                del self._tail[: -self._tail_limit]

    def value(self) -> bytes:
        """What was kept, with a line in the middle when something was cut."""
        tail = bytes(self._tail[-self._tail_limit :])
        cut = self._total - len(self._head) - len(tail)
        if cut <= 0:
            return bytes(self._head) + tail
        return bytes(self._head) + cut_line(cut) + tail


def cut_line(count: int) -> bytes:
    """The line that stands for `count` bytes that are not there."""
    return f"\n... [{count} bytes cut] ...\n".encode()


def shorten(log: bytes, limit: int) -> bytes:
    """The log in at most `limit` bytes, by the same rule; nothing at all when there is no room for the line."""
    if len(log) <= limit:
        return log
    room = limit - len(cut_line(len(log)))
    if room <= 0:
        return b""
    head, tail = room // 2, room - room // 2
    return log[:head] + cut_line(len(log) - room) + log[len(log) - tail :]
