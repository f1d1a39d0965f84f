"""Every flag of `krm-runner eval`, and the settings that they make."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from krm_runner.core import image_ref
from krm_runner.core.duration import positive_duration
from krm_runner.core.errors import ConfigurationError
from krm_runner.core.image_ref import ImageRef
from krm_runner.settings.go_flags import Flag, ParsedFlags, boolean, parse_flags
from krm_runner.settings.security import CertificateFiles, certificate_files, optional_path

_WHAT = "What to run"
_WHERE = "Where to run it"
_SAFELY = "How to reach the runner"
_RESULT = "What to do with the result"

EVAL_FLAGS: tuple[Flag, ...] = (
    Flag("image", _WHAT, "", "image of the function", short="i"),
    Flag("fn-config", _WHAT, "", "file with the function config, instead of key=value arguments"),
    Flag("include-meta-resources", _WHAT, "false", "give the function the Kptfile too", boolean, is_boolean=True),
    Flag("timeout", _WHAT, "5m", "how long it may take", positive_duration),
    Flag("address", _WHERE, "", "a runner (host:port); without one the function runs here, as an executable"),
    Flag("functions", _WHERE, "./functions", "without a runner: directory of the executables"),
    Flag("config", _WHERE, "./config.yaml", "without a runner: which executable serves which image"),
    Flag(
        "default-image-prefix",
        _WHERE,
        "ghcr.io/kptdev/krm-functions-catalog",
        "put before an image without registry and path",
    ),
    Flag("tls", _SAFELY, "false", "by TLS, trusting the CAs of this system", boolean, is_boolean=True),
    Flag("tls-ca-file", _SAFELY, "", "by TLS, trusting the CAs of this file instead"),
    Flag("tls-server-name", _SAFELY, "", "by TLS, to a runner whose certificate has this name, not the address's"),
    Flag("tls-cert-file", _SAFELY, "", "by TLS, with this certificate of our own"),
    Flag("tls-key-file", _SAFELY, "", "its private key"),
    Flag("token-file", _SAFELY, "", "file with a bearer token in its first line"),
    Flag("output", _RESULT, "", "stdout, unwrap (documents), or a new folder; empty: the package itself", short="o"),
    Flag("results-dir", _RESULT, "", "folder for results.yaml, a FunctionResultList"),
)


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """How a runner is reached: in plain text, unless something is set."""

    tls: bool = False
    cas: Path | None = None
    """None: those of the system."""
    server_name: str = ""
    certificates: CertificateFiles | None = None
    token: Path | None = None


@dataclass(frozen=True, slots=True)
class EvalSettings:
    """One evaluation."""

    package: str
    """A folder, or - for a ResourceList on stdin."""
    image: str
    reference: ImageRef
    config_values: dict[str, str]
    config_file: Path | None
    include_meta: bool
    timeout: float
    address: str
    security: ClientSecurity
    functions: Path
    function_table: Path
    function_table_is_required: bool
    default_image_prefix: str
    output: str
    results_dir: Path | None


def parse_eval_settings(argv: Sequence[str]) -> EvalSettings:
    """The settings of `krm-runner eval ARGV`; ConfigurationError with one line when they make no sense."""
    flags = parse_flags(EVAL_FLAGS, argv, takes_arguments=True)
    text = {name: value for name, value in flags.values.items() if isinstance(value, str)}
    if not flags.arguments:
        raise ConfigurationError("name a package folder, or - for a ResourceList on stdin")
    package, *pairs = flags.arguments
    if not text["image"]:
        raise ConfigurationError("name the function's image with --image")
    try:
        reference = image_ref.parse(text["image"], default_prefix=text["default-image-prefix"])
    except image_ref.ImageRefError as error:
        raise ConfigurationError(f'"{text["image"]}" is no valid image: {error}') from error
    if pairs and text["fn-config"]:
        raise ConfigurationError("give the function config as key=value or by --fn-config, not both")
    return EvalSettings(
        package=package,
        image=text["image"],
        reference=reference,
        config_values=_key_values(pairs),
        config_file=Path(text["fn-config"]) if text["fn-config"] else None,
        include_meta=cast(bool, flags.values["include-meta-resources"]),
        timeout=cast(float, flags.values["timeout"]),
        address=text["address"],
        security=_security(flags),
        functions=Path(text["functions"]),
        function_table=Path(text["config"]),
        function_table_is_required="config" in flags.given,
        default_image_prefix=text["default-image-prefix"],
        output=text["output"] or ("stdout" if package == "-" else ""),
        results_dir=Path(text["results-dir"]) if text["results-dir"] else None,
    )


def _security(flags: ParsedFlags) -> ClientSecurity:
    cas, certificates = optional_path(flags, "tls-ca-file"), certificate_files(flags)
    server_name = cast(str, flags.values["tls-server-name"])
    security = ClientSecurity(
        tls=bool(flags.values["tls"] or cas or certificates or server_name),
        cas=cas,
        server_name=server_name,
        certificates=certificates,
        token=optional_path(flags, "token-file"),
    )
    if security != ClientSecurity() and not flags.values["address"]:
        raise ConfigurationError("--tls... and --token-file are for a runner; name it with --address")
    return security


def _key_values(pairs: Sequence[str]) -> dict[str, str]:
    values: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigurationError(f'unexpected argument "{pair}"; settings of the function are written as key=value')
        if not pair.isprintable() and pair != pair.encode(errors="ignore").decode():
            raise ConfigurationError(f"the value of {key} is not UTF-8 text")
        values[key] = value
    return values
