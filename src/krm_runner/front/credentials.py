"""Who may call: certificates and tokens in files, read here and sent to the front again whenever they change."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from krm_runner.core.bearer_tokens import BearerTokens
from krm_runner.files.kept_files import KeptFiles
from krm_runner.rpc._generated.front_pb2 import Credentials
from krm_runner.rpc.key_pair import KeyPair, check_cas, key_pair, trust_problem

_log = structlog.get_logger("krm_runner.front")


@dataclass(frozen=True, slots=True)
class _Identity:
    pair: KeyPair
    client_cas: bytes


class CallerCredentials:
    """The certificate of the server, the CAs of its callers and their tokens, as far as there are any."""

    def __init__(self, *, pair: tuple[Path, Path] | None, client_cas: Path | None, tokens: Path | None) -> None:
        """Read the files, `pair` being a certificate and its key. Raises ConfigurationError if one is broken."""
        self._client_cas = client_cas
        self._identity = None if pair is None else self._identity_in(*pair)
        self._tokens = (
            None
            if tokens is None
            else KeptFiles([tokens], parse=lambda found: BearerTokens.parse(found[0], source=str(tokens)))
        )

    @property
    def summary(self) -> str:
        """What callers need, for the log."""
        transport = "plain text"
        if self._identity is not None:
            transport = "mutual TLS" if self._client_cas is not None else "TLS"
        return transport if self._tokens is None else f"{transport}, tokens"

    def message(self) -> Credentials:
        """The contents of the files, for the front."""
        identity = self._identity.current if self._identity is not None else _Identity(KeyPair(b"", b""), b"")
        return Credentials(
            certificate_chain=identity.pair.chain,
            private_key=identity.pair.key,
            client_cas=identity.client_cas,
            token_digests=self._tokens.current.digests if self._tokens is not None else (),
        )

    def loops(self, changed: Callable[[], None]) -> dict[str, Coroutine[object, object, None]]:
        """The loops that follow the files, by name, and call `changed` after a change. They never return."""
        loops: dict[str, Coroutine[object, object, None]] = {}
        if self._identity is not None:
            loops["TLS files"] = self._identity.keep(changed)
        if self._tokens is not None:
            loops["caller tokens"] = self._tokens.keep(changed)
        return loops

    def _identity_in(self, certificate: Path, key: Path) -> KeptFiles[_Identity]:
        cas = self._client_cas

        def parse(contents: Sequence[bytes]) -> _Identity:
            pair = key_pair(contents, certificate=certificate, key=key)
            client_cas = check_cas(contents[2], path=cas) if cas is not None else b""
            if problem := trust_problem(pair):
                _log.warning("callers will not trust the certificate", path=str(certificate), why=problem)
            return _Identity(pair, client_cas)

        paths = [certificate, key, *([cas] if cas is not None else [])]
        return KeptFiles(paths, parse=parse)
