"""A CA of our own, and certificates that it signs, by openssl."""

from __future__ import annotations

import subprocess
from pathlib import Path


class Authority:
    """A CA in a directory."""

    def __init__(self, directory: Path, name: str = "test-ca") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self.certificate = directory / f"{name}.crt"
        self._key = directory / f"{name}.key"
        _openssl(
            "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2",
            "-subj", f"/CN={name}", "-keyout", str(self._key), "-out", str(self.certificate),
        )  # fmt: skip

    def sign(
        self, name: str, *, subject_names: str = "DNS:localhost,IP:127.0.0.1", usage: str = "serverAuth"
    ) -> tuple[Path, Path]:
        """A server's certificate and key, or a client's (clientAuth)."""
        request, key = self._directory / f"{name}.csr", self._directory / f"{name}.key"
        certificate, extensions = self._directory / f"{name}.crt", self._directory / f"{name}.ext"
        extensions.write_text(f"subjectAltName={subject_names}\nextendedKeyUsage={usage}\n")
        _openssl(
            "req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-subj", f"/CN={name}",
            "-keyout", str(key), "-out", str(request),
        )  # fmt: skip
        _openssl(
            "x509", "-req", "-in", str(request), "-CA", str(self.certificate), "-CAkey", str(self._key),
            "-set_serial", "2", "-days", "2", "-extfile", str(extensions), "-out", str(certificate),
        )  # fmt: skip
        return certificate, key


def self_signed(directory: Path, *, start: str = "2001", end: str = "2099", curve: str = "P-256") -> tuple[Path, Path]:
    """A server's certificate and key, valid between two years."""
    directory.mkdir(parents=True)
    configuration, request = directory / "ca.conf", directory / "request"
    certificate, key = directory / "tls.crt", directory / "tls.key"
    configuration.write_text(
        f"[ca]\ndefault_ca = own\n[own]\ndatabase = {directory}/index\nnew_certs_dir = {directory}\nrand_serial = yes\n"
        "default_md = sha256\npolicy = any\nx509_extensions = server\n[any]\ncommonName = supplied\n"
        "[server]\nsubjectAltName = DNS:localhost\n"
    )
    (directory / "index").touch()
    _openssl(
        "req", "-newkey", "ec", "-pkeyopt", f"ec_paramgen_curve:{curve}", "-nodes", "-subj", "/CN=localhost",
        "-keyout", str(key), "-out", str(request),
    )  # fmt: skip
    _openssl(
        "ca", "-batch", "-config", str(configuration), "-selfsign", "-in", str(request), "-keyfile", str(key),
        "-notext", "-startdate", f"{start}0101000000Z", "-enddate", f"{end}0101000000Z", "-out", str(certificate),
    )  # fmt: skip
    return certificate, key


def convert_key(key: Path, *arguments: str) -> Path:
    """The same key in another form."""
    converted = key.with_suffix(".converted.key")
    _openssl("pkey", "-in", str(key), "-out", str(converted), *arguments)
    return converted


class Signer:
    """A key that signs tokens, and its self-signed certificate."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.certificate, self._key = directory / "token.crt", directory / "token.key"
        _openssl(
            "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=token-server",
            "-keyout", str(self._key), "-out", str(self.certificate),
        )  # fmt: skip

    def sign(self, message: bytes) -> bytes:
        """RSA with SHA-256."""
        return _openssl("dgst", "-sha256", "-sign", str(self._key), stdin=message)

    def der(self) -> bytes:
        """The certificate in DER."""
        return _openssl("x509", "-in", str(self.certificate), "-outform", "DER")


def _openssl(*arguments: str, stdin: bytes = b"") -> bytes:
    return subprocess.run(["openssl", *arguments], input=stdin, check=True, capture_output=True, timeout=60).stdout
