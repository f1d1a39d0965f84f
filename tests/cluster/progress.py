"""One line on standard error for every step, with the seconds since the beginning."""

from __future__ import annotations

import sys
import time


class Progress:
    def __init__(self) -> None:
        self._start = time.monotonic()

    def note(self, text: str) -> None:
        print(f"{time.monotonic() - self._start:7.1f} s  {text}", file=sys.stderr, flush=True)
