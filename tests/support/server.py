"""A server in a process of its own, with its log at hand."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self, cast

START_SECONDS = 60


def free_port() -> int:
    """A port that was free a moment ago, on all addresses."""
    with socket.socket(socket.AF_INET6) as probe:
        probe.bind(("::", 0))
        return cast(int, probe.getsockname()[1])


def listens(address: str) -> bool:
    """Whether somebody takes connections at host:port."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


class ServerProcess:
    """Started on a port, with its log lines at hand; killed at the end, whatever happens."""

    def __init__(
        self,
        program: Sequence[str],
        *,
        port: int,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        pass_fds: Iterable[int] = (),
    ) -> None:
        self.port = port
        self.process = subprocess.Popen(
            program,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            cwd=cwd,
            env=dict(os.environ) | dict(environment or {}),
            pass_fds=tuple(pass_fds),
        )
        self.lines: list[str] = []
        self._arrival = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        try:
            self._wait_until_listening()
        except AssertionError:
            self.process.kill()
            self._close()
            raise

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def address(self) -> str:
        return f"localhost:{self.port}"

    def wait_for_line(self, pattern: str, seconds: float = START_SECONDS) -> re.Match[str]:
        """The first log line that matches, waiting for it if need be."""
        end = time.monotonic() + seconds
        with self._arrival:
            seen = 0
            while True:
                for line in self.lines[seen:]:
                    if match := re.search(pattern, line):
                        return match
                seen = len(self.lines)
                if not self._reader.is_alive() or not self._arrival.wait(max(0.0, end - time.monotonic())):
                    raise AssertionError(f"no line {pattern!r} in the log:\n" + "\n".join(self.lines))

    def stop(self, number: int = signal.SIGTERM, seconds: float = 40) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.process.send_signal(number)
        return self.wait(seconds)

    def wait(self, seconds: float = 40) -> int:
        code = self.process.wait(seconds)
        self._reader.join(5)
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        if self.process.poll() is None:
            # Twice: the second signal ends at once and takes the functions along.
            self.process.send_signal(signal.SIGTERM)
            time.sleep(0.05)
            self.process.send_signal(signal.SIGTERM)
        self._close()

    def _close(self) -> None:
        self.wait()
        assert self.process.stderr is not None
        self.process.stderr.close()

    def _wait_until_listening(self) -> None:
        end = time.monotonic() + START_SECONDS
        while True:
            if listens(f"localhost:{self.port}"):
                return
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError("the server does not listen:\n" + "\n".join(self.lines))
            time.sleep(0.02)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            with self._arrival:
                self.lines.append(line.rstrip("\n"))
                self._arrival.notify_all()
        with self._arrival:
            self._arrival.notify_all()
