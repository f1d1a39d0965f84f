"""What a person sees while a command works: lines that stay, and on a terminal one that moves.

Everything goes to stderr, so that stdout is for the result alone.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

_FRAMES = "|/-\\"
_LIVE_INTERVAL = 0.1
_PLAIN_INTERVAL = 10.0
_COLORS = {"PASS": "32", "FAIL": "31", "RUNNING": "36"}


class Terminal:
    """Writes to stderr."""

    def __init__(self) -> None:
        self._stream = sys.stderr
        self._is_live = self._stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"
        self._has_colors = self._is_live and not os.environ.get("NO_COLOR")
        self._shown = ""
        self._last = 0.0

    def line(self, text: str = "") -> None:
        """A line that stays."""
        self._clear()
        self._stream.write(text + "\n")
        self._stream.flush()

    def tagged(self, tag: str, text: str) -> None:
        """`[TAG] text`, the tag in colour where there are colours."""
        shown = f"\x1b[{_COLORS[tag]}m[{tag}]\x1b[0m" if self._has_colors else f"[{tag}]"
        self.line(f"{shown} {text}")

    def status(self, text: str) -> None:
        """The line that moves; nothing where there is no terminal."""
        if not self._is_live:
            return
        text = text[: shutil.get_terminal_size().columns - 1]
        self._stream.write("\r" + text + " " * (len(self._shown) - len(text)))
        self._stream.flush()
        self._shown = text

    def progress(self, what: str) -> Progress:
        """A callback that shows how far something is."""
        return Progress(self, what)

    def due(self) -> bool:
        """Whether the moving line may be written again: not more often than an eye can follow."""
        now = time.monotonic()
        if now - self._last < _LIVE_INTERVAL:
            return False
        self._last = now
        return True

    @asynccontextmanager
    async def waiting(self, what: str) -> AsyncGenerator[None]:
        """Shows that something takes its time: a moving line on a terminal, a line now and then elsewhere."""
        task = asyncio.create_task(self._tick(what))
        try:
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            self._clear()

    async def _tick(self, what: str) -> None:
        started = time.monotonic()
        number = 0
        while True:
            await asyncio.sleep(_LIVE_INTERVAL if self._is_live else _PLAIN_INTERVAL)
            seconds = time.monotonic() - started
            if self._is_live:
                self.status(f"{_FRAMES[number % len(_FRAMES)]} {what} {seconds:.1f}s")
            else:
                self.line(f"still {what} after {seconds:.0f}s")
            number += 1

    def _clear(self) -> None:
        if self._shown:
            self._stream.write("\r" + " " * len(self._shown) + "\r")
            self._shown = ""


class Progress:
    """`what 12/1000`, on the moving line."""

    def __init__(self, terminal: Terminal, what: str) -> None:
        self._terminal = terminal
        self._what = what

    def __call__(self, done: int, total: int) -> None:
        if done == total or self._terminal.due():
            self._terminal.status(f"{self._what} {done}/{total}")
