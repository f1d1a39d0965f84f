"""Every flag of `krm-runner serve`: name, default, meaning. docs/configuration.md is held against this table."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from krm_runner.core.duration import duration, positive_duration
from krm_runner.core.function_table import MAX_STANDBY
from krm_runner.core.wrapper_delivery import DELIVERIES
from krm_runner.settings.go_flags import Flag, boolean, choice, integer
from krm_runner.settings.registries import REGISTRY_FLAGS
from krm_runner.settings.security import SECURITY_FLAGS
from krm_runner.settings.wrapper import RETIRED_DELIVERY

RUNTIMES = ("exec", "pod")

GENERIC = "Generic"
EXEC = "Exec runtime"
POD = "Pod runtime"

POD_ADDRESSES = ("service-name", "cluster-ip", "pod-ip")

_MAX_INT32 = 2**31 - 1
_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_NAMESPACE = re.compile(_LABEL)
_OBJECT = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")


def _runtimes(text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    if not names <= set(RUNTIMES):
        raise ValueError("runtimes separated by commas, of " + ", ".join(RUNTIMES))
    return names


def _front(text: str) -> Literal["auto", "off"] | Path:
    if text == "auto":
        return "auto"
    if text == "off":
        return "off"
    if not text:
        raise ValueError("auto, off or the path of krm-front")
    return Path(text)


def _delivery(text: str) -> str:
    return text if text == RETIRED_DELIVERY else choice(*DELIVERIES)(text)


def _name(pattern: re.Pattern[str], longest: int, *, may_be_empty: bool = False) -> Callable[[str], str]:
    """A name as Kubernetes allows it: found out now, and not by every call's refusal later."""

    def parse(text: str) -> str:
        if (text or not may_be_empty) and (len(text) > longest or not pattern.fullmatch(text)):
            dots = ", dots" if pattern is _OBJECT else ""
            raise ValueError(f"a Kubernetes name: lower-case letters, digits{dots} and -, at most {longest} of them")
        return text

    return parse


SERVE_FLAGS: tuple[Flag, ...] = (
    Flag("port", GENERIC, "9445", "port of the gRPC server (0: any free one)", integer(0, 65535)),
    Flag("disable-runtimes", GENERIC, "", "runtimes not to use: exec, pod, or exec,pod", _runtimes),
    Flag("log-level", GENERIC, "2", "0 errors, 1 warnings, 2 a line per call, 3-5 more and more", integer(0, 5)),
    Flag("log-format", GENERIC, "text", "text (key=value) or json", choice("text", "json")),
    Flag("default-timeout", GENERIC, "10m", "deadline of a call that sets none itself", positive_duration),
    Flag("shutdown-delay", GENERIC, "3s", "after SIGTERM: how long new calls are still accepted", duration),
    Flag("shutdown-timeout", GENERIC, "25s", "after SIGTERM: when calls under way are cancelled", duration),
    Flag(
        "default-image-prefix",
        GENERIC,
        "ghcr.io/kptdev/krm-functions-catalog",
        "put before an image without registry and path",
    ),
    Flag(
        "max-queue-length",
        GENERIC,
        "1000",
        "calls of one function that may wait; one more is refused",
        integer(0, 1_000_000),
    ),
    Flag(
        "max-request-memory",
        GENERIC,
        "0",
        "bytes of all requests under way (0: a quarter of this container's memory)",
        integer(0, 1 << 50),
    ),
    Flag(
        "front", GENERIC, "auto", "program that has the port: auto (krm-front if it is there), off, or its path", _front
    ),
    Flag("functions", EXEC, "./functions", "directory of the executables"),
    Flag("config", EXEC, "./config.yaml", "file that says which executable serves which image"),
    Flag(
        "max-parallel-executions",
        EXEC,
        "0",
        "processes at once (0: twice the CPUs of this container)",
        integer(0, 4096),
    ),
    Flag(
        "max-function-memory",
        EXEC,
        "0",
        "bytes of processes at once, as expected (0: half of this container's memory)",
        integer(0, 1 << 50),
    ),
    Flag(
        "standby",
        EXEC,
        "0",
        "processes of a function that wait for their input, where --config says nothing",
        integer(0, MAX_STANDBY),
    ),
    Flag("standby-max-age", EXEC, "5m", "when such a process is replaced by a new one", positive_duration),
    Flag("standby-idle", EXEC, "10m", "how long after its last call a function has them", positive_duration),
    Flag(
        "pod-cache-config",
        POD,
        "/pod-cache-config/pod-cache-config.yaml",
        "functions to warm up, and their limits",
    ),
    Flag("warm-up-pod-cache", POD, "true", "start the pods of that file at once", boolean, is_boolean=True),
    Flag(
        "wait-for-warm-up",
        POD,
        "false",
        "say that the service is ready only when they were started",
        boolean,
        is_boolean=True,
    ),
    Flag("pod-namespace", POD, "porch-fn-system", "namespace of the function pods", _name(_NAMESPACE, 63)),
    Flag("pod-ttl", POD, "30m", "how long an unused pod lives", positive_duration),
    Flag("pod-start-timeout", POD, "60s", "how long a pod may take until it answers", positive_duration),
    Flag(
        "pod-address",
        POD,
        "service-name",
        "where pods are called: service-name, cluster-ip or pod-ip",
        choice(*POD_ADDRESSES),
    ),
    Flag(
        "retry-lost-calls",
        POD,
        "true",
        "run a call once more whose pod was lost while its function ran",
        boolean,
        is_boolean=True,
    ),
    Flag(
        "spare-pods",
        POD,
        "0",
        "pods without a function, kept ready for first calls of any (0: none)",
        integer(0, 1000),
    ),
    Flag("scan-interval", POD, "1m", "how often expired pods are collected", positive_duration),
    Flag(
        "function-pod-template",
        POD,
        "",
        "ConfigMap with the pod and service templates (empty: built in)",
        _name(_OBJECT, 253, may_be_empty=True),
    ),
    Flag(
        "wrapper-delivery",
        POD,
        DELIVERIES[0],
        f"how pods get the wrapper: {', '.join(DELIVERIES)}",
        _delivery,
    ),
    Flag(
        "max-request-body-size",
        POD,
        "6291456",
        "largest message in bytes, both ways, of every runtime; as in Porch",
        integer(1024, _MAX_INT32),
    ),
    Flag("max-waitlist-length", POD, "2", "calls per pod before another pod is started", integer(1, 1_000_000)),
    Flag("max-parallel-pods-per-function", POD, "1", "pods that one function may have", integer(1, 10_000)),
    *REGISTRY_FLAGS,
    *SECURITY_FLAGS,
)
