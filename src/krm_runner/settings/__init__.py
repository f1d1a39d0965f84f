"""Command line and environment, parsed once into frozen dataclasses. Pure: reads no file, starts nothing."""

from krm_runner.settings.model import (
    ExecSettings,
    FrontChoice,
    PodSettings,
    ServerSettings,
    Settings,
    StandbySettings,
    parse_settings,
)
from krm_runner.settings.registries import RegistrySettings
from krm_runner.settings.security import CertificateFiles, SecuritySettings
from krm_runner.settings.serve_flags import SERVE_FLAGS

__all__ = [
    "SERVE_FLAGS",
    "CertificateFiles",
    "ExecSettings",
    "FrontChoice",
    "PodSettings",
    "RegistrySettings",
    "SecuritySettings",
    "ServerSettings",
    "Settings",
    "StandbySettings",
    "parse_settings",
]
