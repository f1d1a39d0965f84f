"""The flags of transport security, all off by default, and the settings that they make."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from krm_runner.core.errors import ConfigurationError
from krm_runner.settings.go_flags import Flag, ParsedFlags, integer

SECURITY = "Transport security"

SECURITY_FLAGS: tuple[Flag, ...] = (
    Flag("tls-cert-file", SECURITY, "", "serve with TLS: certificate in PEM, and those that lead to its CA"),
    Flag("tls-key-file", SECURITY, "", "its private key"),
    Flag("tls-client-ca-file", SECURITY, "", "callers must show a certificate that one of these CAs signed"),
    Flag("health-port", SECURITY, "0", "health, alone and in plain text, for probes (0: none)", integer(0, 65535)),
    Flag("auth-token-file", SECURITY, "", "callers must show one of these bearer tokens, one a line"),
    Flag("pod-token-key-file", SECURITY, "", "function pods want a token made with the first of these keys"),
)


@dataclass(frozen=True, slots=True)
class CertificateFiles:
    """A certificate and its key."""

    certificate: Path
    key: Path


@dataclass(frozen=True, slots=True)
class SecuritySettings:
    """How callers reach the service."""

    certificates: CertificateFiles | None
    client_cas: Path | None
    health_port: int
    tokens: Path | None


def security_settings(flags: ParsedFlags, *, port: int) -> SecuritySettings:
    """Of `krm-runner serve`; ConfigurationError when one flag needs another."""
    certificates = certificate_files(flags)
    client_cas = optional_path(flags, "tls-client-ca-file")
    if client_cas is not None and certificates is None:
        raise ConfigurationError("--tls-client-ca-file needs --tls-cert-file and --tls-key-file")
    health_port = cast(int, flags.values["health-port"])
    if health_port and health_port == port:
        raise ConfigurationError("--health-port must be another port than --port")
    return SecuritySettings(certificates, client_cas, health_port, optional_path(flags, "auth-token-file"))


def certificate_files(flags: ParsedFlags) -> CertificateFiles | None:
    """Both or none."""
    certificate, key = optional_path(flags, "tls-cert-file"), optional_path(flags, "tls-key-file")
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        given, missing = ("cert", "key") if key is None else ("key", "cert")
        raise ConfigurationError(f"--tls-{given}-file needs --tls-{missing}-file")
    return CertificateFiles(certificate, key)


def optional_path(flags: ParsedFlags, name: str) -> Path | None:
    """Of a flag that may be empty."""
    text = cast(str, flags.values[name])
    return Path(text) if text else None
