"""Certificates and private keys in PEM, checked before krm-front or gRPC (for `krm-runner eval`) uses them.

OpenSSL checks them here, so that an error names the file and the reason. Text around the PEM blocks is ignored.
"""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from krm_runner.core.errors import ConfigurationError

_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
# A block without an end is included, so that OpenSSL rejects it.
_BLOCK = re.compile(rb"^-----BEGIN CERTIFICATE-----.*?(?:^-----END CERTIFICATE-----|\Z)", re.DOTALL | re.MULTILINE)
_KEY = re.compile(rb"-----BEGIN ([A-Z]+ )*PRIVATE KEY-----")
_WORDS = {
    "KEY_VALUES_MISMATCH": "the key is not that of the certificate",
    "KEY_TYPE_MISMATCH": "the key is not that of the certificate",
}


@dataclass(frozen=True, slots=True)
class KeyPair:
    """Which belong together."""

    chain: bytes
    """The certificate first, and then those that lead to its CA."""
    key: bytes

    def __repr__(self) -> str:
        return "KeyPair([hidden])"


def key_pair(contents: Sequence[bytes], *, certificate: Path, key: Path) -> KeyPair:
    """The pair of the two files with these contents; ConfigurationError says what is wrong with them."""
    pair = KeyPair(contents[0], contents[1])
    if _CERTIFICATE not in pair.chain:
        raise ConfigurationError(f"{certificate} has no certificate in PEM")
    if not _KEY.search(pair.key):
        raise ConfigurationError(f"{key} has no private key in PEM")
    if b"ENCRYPTED" in pair.key:
        raise ConfigurationError(f"{key} is encrypted; a key without a password is needed")
    try:
        _trusting(pair.chain)
        _load(pair)
    except (ssl.SSLError, ValueError) as error:
        why = _WORDS.get(getattr(error, "reason", None) or "") or f"they cannot be read ({_in_a_line(error)})"
        raise ConfigurationError(f"{certificate} and {key}: {why}") from error
    return pair


def check_cas(content: bytes, *, path: Path) -> bytes:
    """The certificates of CAs in a file; ConfigurationError when there are none."""
    if _CERTIFICATE not in content:
        raise ConfigurationError(f"{path} has no certificate in PEM")
    try:
        _trusting(content)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigurationError(f"{path}: its certificates cannot be read ({_in_a_line(error)})") from error
    return content


def trust_problem(pair: KeyPair) -> str:
    """Return why no client will accept a server's certificate, such as "certificate has expired"; empty if one may.

    Names and the CA are not checked: a handshake in memory, with a client that trusts this very certificate.
    """
    client_context = _trusting(pair.chain)
    client_context.check_hostname = False
    client_context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(to_client, to_server)
    server = _load(pair).wrap_bio(to_server, to_client, server_side=True)
    for side in (client, server, client):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
        except ssl.SSLError as error:
            return _in_a_line(error)
    return ""


def _trusting(content: bytes) -> ssl.SSLContext:
    """Return a client's context that trusts the certificates in a file. Raises SSLError or ValueError if one is broken.

    Python takes only ASCII, so it gets the PEM blocks without the text around them.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=b"\n".join(_BLOCK.findall(content)).decode("ascii"))
    return context


def _load(pair: KeyPair) -> ssl.SSLContext:
    """Load it into OpenSSL, which takes files only: one in memory, so that the key is written nowhere."""
    descriptor = os.memfd_create("key-pair")
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(pair.chain + b"\n" + pair.key)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=b"")
        return context
    finally:
        os.close(descriptor)


def _in_a_line(error: Exception) -> str:
    reason = getattr(error, "reason", None)
    return str(reason or error).lower().replace("_", " ")
