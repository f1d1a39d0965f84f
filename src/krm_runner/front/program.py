"""The front's process: its port and its end of the link are made here, and its end is noticed.

It is in a session of its own, so that a key pressed in a terminal reaches the runner alone; it ends by itself when the
link is closed, whatever became of the runner.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from krm_runner.core.errors import ServeError
from krm_runner.core.verdict import signal_name
from krm_runner.process.orphans import adopt_orphans, kill_orphans
from krm_runner.rpc.server import cannot_listen

_BACKLOG = 1024
_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})


def listen(port: int) -> socket.socket:
    """On all addresses; ServeError when that port cannot be had."""
    try:
        try:
            return _listening(socket.AF_INET6, "::", port)
        except OSError as error:
            if error.errno not in _NO_IPV6:
                raise
            return _listening(socket.AF_INET, "", port)
    except OSError as error:
        raise ServeError(cannot_listen(port)) from error


def _listening(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family is socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        listener.bind((address, port))
        listener.listen(_BACKLOG)
    except OSError:
        listener.close()
        raise
    return listener


class FrontProgram:
    """Runs from when it is made."""

    def __init__(self, path: Path, *, sockets: Sequence[socket.socket], environment: Mapping[bytes, bytes]) -> None:
        """Start it with its sockets: the port, the link and, if there is one, the health port. The caller closes them.
        Functions get the environment as well.

        ServeError when it cannot be started.
        """
        adopt_orphans()
        self.ended: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        """Has a result when the process has ended: its exit code, or minus the number of the signal that killed it."""
        descriptors = [socket.fileno() for socket in sockets]
        try:
            self._process = subprocess.Popen(
                [path, *map(str, descriptors)],
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,
                env=environment,
            )
        except OSError as error:
            raise ServeError(f"the front cannot be started: {path}: {error.strerror or error}") from error
        self._pidfd = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(self._pidfd, self._on_end)

    def kill(self) -> None:
        """Now; its functions die with it."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(signal.SIGKILL)

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        code = self._process.wait()
        if code != 0:
            # It may not have ended its functions itself, and they are ours now.
            kill_orphans(self._process.pid)
        if not self.ended.done():
            self.ended.set_result(code)


def describe_end(code: int) -> str:
    """In words."""
    return f"exit code {code}" if code >= 0 else f"killed by {signal_name(-code)}"
