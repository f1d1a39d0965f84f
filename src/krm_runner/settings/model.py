"""The settings of the service: what each component gets, and nothing else of the command line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar, cast

from krm_runner.core import image_ref
from krm_runner.core.errors import ConfigurationError
from krm_runner.settings.accepted_flags import ACCEPTED_FLAGS, PORCH_FLAGS, RETIRED_FLAGS
from krm_runner.settings.go_flags import ParsedFlags, parse_flags
from krm_runner.settings.registries import RegistrySettings, registry_settings
from krm_runner.settings.security import SecuritySettings, optional_path, security_settings
from krm_runner.settings.serve_flags import SERVE_FLAGS
from krm_runner.settings.wrapper import DeliveryName, retired_delivery, wrapper_delivery
from krm_runner.telemetry.exporters import (
    METRICS_EXPORTERS,
    OTLP_PROTOCOLS,
    TRACES_EXPORTERS,
    ExporterChoice,
    Sampler,
)

T = TypeVar("T")

FrontChoice = Literal["auto", "off"] | Path
"""Which program has the port: krm-front if it is there, none, or the one at this path."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """The gRPC server and what is common to all runtimes."""

    port: int
    max_message_bytes: int
    max_request_memory: int
    """Of all requests under way; 0: a share of what there is."""
    default_timeout: float
    shutdown_delay: float
    shutdown_timeout: float
    default_image_prefix: str
    front: FrontChoice


@dataclass(frozen=True, slots=True)
class LogSettings:
    """How much is logged, and in which shape."""

    level: int
    format: Literal["text", "json"]


@dataclass(frozen=True, slots=True)
class StandbySettings:
    """Processes that wait for their input."""

    default: int
    """How many, of a function of which the configuration file does not say it."""
    max_age: float
    idle: float


@dataclass(frozen=True, slots=True)
class ExecSettings:
    """The exec runtime."""

    functions: Path
    config: Path
    config_is_required: bool
    max_parallel: int
    max_waiting: int
    max_memory: int
    standby: StandbySettings


@dataclass(frozen=True, slots=True)
class PodSettings:
    """The pod runtime."""

    wrapper_image: str
    cache_config: Path
    warm_up: bool
    namespace: str
    ttl: float
    scan_interval: float
    template_config_map: str
    wrapper_delivery: DeliveryName
    max_waitlist_length: int
    max_parallel_pods: int
    max_calls: int
    """Calls of one function that may be under way, but for one per pod."""
    start_timeout: float
    address: Literal["service-name", "cluster-ip", "pod-ip"]
    retry_lost_calls: bool
    wait_for_warm_up: bool
    """Only ever true when there is a warm-up."""
    token_keys: Path | None
    """Where there is one, pods want tokens."""
    spare_pods: int


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything; a runtime that is disabled has no settings."""

    server: ServerSettings
    log: LogSettings
    exporters: ExporterChoice
    exec: ExecSettings | None
    pod: PodSettings | None
    registries: RegistrySettings
    security: SecuritySettings
    ignored: Mapping[str, str] = field(default_factory=dict[str, str])
    """Flags of Porch's that were given and mean nothing here, and what there is instead."""
    retired: Mapping[str, str] = field(default_factory=dict[str, str])
    """Flags of an earlier version that were given and will be refused by the next, and what there is instead."""

    @property
    def needs_front(self) -> str:
        """The flag that only krm-front can serve; empty when there is none."""
        if self.security.certificates is not None:
            return "--tls-cert-file"
        if self.security.tokens is not None:
            return "--auth-token-file"
        return "--health-port" if self.security.health_port else ""


def parse_settings(argv: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """The settings of `krm-runner serve ARGV`; ConfigurationError with one line when they make no sense."""
    flags = parse_flags((*SERVE_FLAGS, *ACCEPTED_FLAGS), argv)

    def value(name: str, kind: type[T]) -> T:
        del kind  # only says what the flag's own parser returns
        return cast(T, flags.values[name])

    server = ServerSettings(
        port=value("port", int),
        max_message_bytes=value("max-request-body-size", int),
        max_request_memory=value("max-request-memory", int),
        default_timeout=value("default-timeout", float),
        shutdown_delay=value("shutdown-delay", float),
        shutdown_timeout=value("shutdown-timeout", float),
        default_image_prefix=value("default-image-prefix", str),
        front=cast(FrontChoice, flags.values["front"]),
    )
    _check_server(server)
    disabled = cast(frozenset[str], flags.values["disable-runtimes"])
    found = Settings(
        server=server,
        log=LogSettings(level=value("log-level", int), format=cast(Literal["text", "json"], value("log-format", str))),
        exporters=_exporters(environment),
        exec=None if "exec" in disabled else _exec_settings(flags),
        pod=None if "pod" in disabled else _pod_settings(flags, environment),
        registries=registry_settings(flags),
        security=security_settings(flags, port=server.port),
        ignored={flag.name: flag.help for flag in PORCH_FLAGS if flag.name in flags.given},
        retired={flag.name: flag.help for flag in RETIRED_FLAGS if flag.name in flags.given} | retired_delivery(flags),
    )
    if server.front == "off" and found.needs_front:
        raise ConfigurationError(f"--front=off cannot be used with {found.needs_front}: only krm-front serves that")
    return found


def _check_server(server: ServerSettings) -> None:
    if server.shutdown_delay > server.shutdown_timeout:
        raise ConfigurationError("--shutdown-delay must not be longer than --shutdown-timeout")
    if server.default_image_prefix:
        try:
            image_ref.parse(f"{server.default_image_prefix.rstrip('/')}/function")
        except image_ref.ImageRefError as error:
            raise ConfigurationError(
                f'invalid value "{server.default_image_prefix}" for --default-image-prefix: {error}'
            ) from error


def _exec_settings(flags: ParsedFlags) -> ExecSettings:
    return ExecSettings(
        functions=Path(cast(str, flags.values["functions"])),
        config=Path(cast(str, flags.values["config"])),
        config_is_required="config" in flags.given,
        max_parallel=cast(int, flags.values["max-parallel-executions"]),
        max_waiting=cast(int, flags.values["max-queue-length"]),
        max_memory=cast(int, flags.values["max-function-memory"]),
        standby=StandbySettings(
            default=cast(int, flags.values["standby"]),
            max_age=cast(float, flags.values["standby-max-age"]),
            idle=cast(float, flags.values["standby-idle"]),
        ),
    )


def _pod_settings(flags: ParsedFlags, environment: Mapping[str, str]) -> PodSettings:
    wrapper_image = environment.get("WRAPPER_SERVER_IMAGE", "")
    if not wrapper_image:
        raise ConfigurationError(
            "the pod runtime needs the environment variable WRAPPER_SERVER_IMAGE; "
            "set it, or start with --disable-runtimes=pod"
        )
    try:
        # As the kubelet reads it: the default image prefix is for functions.
        image_ref.parse(wrapper_image)
    except image_ref.ImageRefError as error:
        why = " ".join(str(error).split())
        raise ConfigurationError(
            f"invalid value {json.dumps(wrapper_image)} for WRAPPER_SERVER_IMAGE: {why}"
        ) from error
    warm_up = cast(bool, flags.values["warm-up-pod-cache"])
    return PodSettings(
        wrapper_image=wrapper_image,
        cache_config=Path(cast(str, flags.values["pod-cache-config"])),
        warm_up=warm_up,
        namespace=cast(str, flags.values["pod-namespace"]),
        ttl=cast(float, flags.values["pod-ttl"]),
        scan_interval=cast(float, flags.values["scan-interval"]),
        template_config_map=cast(str, flags.values["function-pod-template"]),
        wrapper_delivery=wrapper_delivery(flags),
        max_waitlist_length=cast(int, flags.values["max-waitlist-length"]),
        max_parallel_pods=cast(int, flags.values["max-parallel-pods-per-function"]),
        max_calls=cast(int, flags.values["max-queue-length"]),
        start_timeout=cast(float, flags.values["pod-start-timeout"]),
        address=cast(Literal["service-name", "cluster-ip", "pod-ip"], flags.values["pod-address"]),
        retry_lost_calls=cast(bool, flags.values["retry-lost-calls"]),
        wait_for_warm_up=warm_up and cast(bool, flags.values["wait-for-warm-up"]),
        token_keys=optional_path(flags, "pod-token-key-file"),
        spare_pods=cast(int, flags.values["spare-pods"]),
    )


def _exporters(environment: Mapping[str, str]) -> ExporterChoice:
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ExporterChoice()

    def one_of(name: str, allowed: Sequence[str]) -> str:
        text = environment.get(name, "").strip() or allowed[0]
        if text not in allowed:
            raise ConfigurationError(f'invalid value "{text}" for {name}: it takes one of {", ".join(allowed)}')
        return text

    def protocol(signal: str) -> str:
        own = f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL"
        return one_of(own if environment.get(own) else "OTEL_EXPORTER_OTLP_PROTOCOL", OTLP_PROTOCOLS)

    port = environment.get("OTEL_EXPORTER_PROMETHEUS_PORT", "") or "9464"
    if not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise ConfigurationError(f'invalid value "{port}" for OTEL_EXPORTER_PROMETHEUS_PORT: it takes a port')
    traces = one_of("OTEL_TRACES_EXPORTER", TRACES_EXPORTERS)
    return ExporterChoice(
        metrics=one_of("OTEL_METRICS_EXPORTER", METRICS_EXPORTERS),
        traces=traces,
        prometheus_host=environment.get("OTEL_EXPORTER_PROMETHEUS_HOST", "") or "localhost",
        prometheus_port=int(port),
        metrics_protocol=protocol("METRICS"),
        traces_protocol=protocol("TRACES"),
        sampler=Sampler() if traces == "none" else _sampler(environment),
    )


def _sampler(environment: Mapping[str, str]) -> Sampler:
    """By OpenTelemetry's rules."""
    name = environment.get("OTEL_TRACES_SAMPLER", "").strip() or "parentbased_always_on"
    text = environment.get("OTEL_TRACES_SAMPLER_ARG", "").strip() or "1"
    root = name.removeprefix("parentbased_")
    shares = {"always_on": "1", "always_off": "0", "traceidratio": text}
    if root not in shares:
        allowed = ", ".join(f"{prefix}{root}" for prefix in ("", "parentbased_") for root in shares)
        raise ConfigurationError(f'invalid value "{name}" for OTEL_TRACES_SAMPLER: it takes one of {allowed}')
    try:
        share = float(shares[root])
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise ConfigurationError(
            f'invalid value "{text}" for OTEL_TRACES_SAMPLER_ARG: it takes a share of all traces, from 0 to 1'
        )
    return Sampler(follows_caller=root != name, share=share)
