"""The server's certificate, and the CAs of the clients that it lets in, from files that may be replaced at any time.

Every new connection gets the newest; those that are open stay as they are. gRPC asks for them in a thread of its own
before each handshake, and is told only when there are others: it makes them ready once, not for every connection.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import grpc

from krm_runner.files.kept_files import KeptFiles
from krm_runner.rpc.key_pair import KeyPair, check_cas, key_pair


@dataclass(frozen=True, slots=True)
class _Identity:
    pair: KeyPair
    client_cas: bytes | None


class ServerCertificates:
    """With the CAs of clients, these must show a certificate that one of them signed."""

    def __init__(self, certificate: Path, key: Path, client_cas: Path | None) -> None:
        """ConfigurationError when something is missing or broken, or when the key is that of another certificate."""
        self._certificate, self._key, self._client_cas = certificate, key, client_cas
        paths = [certificate, key, *([client_cas] if client_cas else [])]
        self._files = KeptFiles(paths, parse=self._parse)
        self._used = self._files.current
        self._lock = threading.Lock()

    @property
    def wants_clients_certificates(self) -> bool:
        """Whether clients must show one."""
        return self._client_cas is not None

    async def keep(self) -> None:
        """Follow the files; never returns."""
        await self._files.keep()

    def credentials(self) -> grpc.ServerCredentials:
        """What a port is opened with."""
        # The stubs do not know that the fetcher may say: no change.
        fetcher = cast("Callable[[], grpc.ServerCertificateConfiguration]", self._replacement)
        return grpc.dynamic_ssl_server_credentials(_configuration(self._used), fetcher, self.wants_clients_certificates)

    def _replacement(self) -> grpc.ServerCertificateConfiguration | None:
        """Called by gRPC's threads."""
        with self._lock:
            current = self._files.current
            if current is self._used:
                return None
            self._used = current
        return _configuration(current)

    def _parse(self, contents: Sequence[bytes]) -> _Identity:
        pair = key_pair(contents, certificate=self._certificate, key=self._key)
        return _Identity(pair, check_cas(contents[2], path=self._client_cas) if self._client_cas else None)


def _configuration(identity: _Identity) -> grpc.ServerCertificateConfiguration:
    pair = identity.pair
    return grpc.ssl_server_certificate_configuration([(pair.key, pair.chain)], root_certificates=identity.client_cas)
