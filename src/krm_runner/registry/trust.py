"""Whom a TLS connection trusts: the system's CAs, and for private registries the mounted one besides.

TLS 1.2 at least, certificates and names always checked. A CA file that is missing or broken is reported and left out:
what the system trusts still works.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import structlog

from krm_runner.files.watched_file import Signature, signature_of

_log = structlog.get_logger("krm_runner.registry")
_CA_FILES = ("ca.crt", "ca.pem")


class Trust:
    """Makes the TLS contexts, and makes the private one again when the CA file changes."""

    def __init__(self, ca_directory: Path | None) -> None:
        self._ca_directory = ca_directory
        self._system = _context()
        self._private: ssl.SSLContext | None = None
        self._signature: tuple[str, Signature] | None = None

    def contexts(self, *, private: bool) -> list[ssl.SSLContext]:
        """The contexts to try, in order; the last one always is that of the system's CAs alone."""
        if not private or self._ca_directory is None:
            return [self._system]
        extended = self._private_context(self._ca_directory)
        return [self._system] if extended is None else [extended, self._system]

    def _private_context(self, directory: Path) -> ssl.SSLContext | None:
        path = next((directory / name for name in _CA_FILES if (directory / name).exists()), directory / _CA_FILES[0])
        signature = str(path), signature_of(path)
        if signature != self._signature:
            self._signature = signature
            self._private = _extended_context(path)
        return self._private


def _context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _extended_context(path: Path) -> ssl.SSLContext | None:
    context = _context()
    # Private CAs are often made without the extensions that newer Pythons insist on.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    try:
        context.load_verify_locations(cafile=path)
    except OSError as error:  # ssl.SSLError is one
        why = getattr(error, "reason", None) or error.strerror or "no certificate in it"
        _log.warning(
            "CA of private registries not read, only the system's CAs count",
            path=str(path),
            error=why,
            hint="--tls-secret-path needs ca.crt or ca.pem with certificates in PEM",
        )
        return None
    return context
