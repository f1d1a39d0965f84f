"""A way to the API server, or to anything else on TCP, that one test alone uses and can close."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from types import TracebackType

_ADDRESS = "127.0.0.1"


class Relay:
    """Passes bytes on, TLS and all, between its own port on the loopback interface and a target."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._lock = threading.Lock()
        self._connections: set[socket.socket] = set()
        self._listener = self._listen(0)
        self.port: int = self._listener.getsockname()[1]

    @property
    def address(self) -> tuple[str, int]:
        return _ADDRESS, self.port

    @property
    def connections(self) -> int:
        """How many are open now."""
        with self._lock:
            return len(self._connections) // 2

    def cut(self) -> None:
        """Break every connection; new ones are accepted."""
        with self._lock:
            broken, self._connections = self._connections, set()
        for connection in broken:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Nobody is there any more: connections break, new ones are refused."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def reopen(self) -> None:
        """On the same port as before."""
        self._listener = self._listen(self.port)

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self.close()

    def _listen(self, port: int) -> socket.socket:
        listener = socket.create_server((_ADDRESS, port))
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()
        return listener

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target, timeout=10)
            except OSError:
                client.close()
                continue
            server.settimeout(None)
            with self._lock:
                self._connections |= {client, server}
            for source, sink in ((client, server), (server, client)):
                threading.Thread(target=self._pass_on, args=(source, sink), daemon=True).start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while content := source.recv(65536):
                sink.sendall(content)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._connections.discard(source)
        source.close()
