"""Every flag of `krm-runner doctor`, and the settings that they make.

It takes the flags of the runner that it looks at: those of the command line, over those that the runner itself was
started with where both are in one container.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from krm_runner.core import image_ref
from krm_runner.core.duration import positive_duration
from krm_runner.core.errors import ConfigurationError
from krm_runner.core.image_ref import ImageRef
from krm_runner.settings.accepted_flags import ACCEPTED_FLAGS
from krm_runner.settings.go_flags import Flag, parse_flags
from krm_runner.settings.registries import RegistrySettings, registry_settings
from krm_runner.settings.serve_flags import SERVE_FLAGS
from krm_runner.settings.wrapper import DeliveryName, wrapper_delivery

_WHAT = "What to look at"
_SHOWN = (
    "pod-namespace", "function-pod-template", "wrapper-delivery", "spare-pods", "enable-private-registries",
    "image-platform",
)  # fmt: skip

DOCTOR_FLAGS: tuple[Flag, ...] = (
    Flag("address", _WHAT, "", "a runner (host:port) that is to evaluate a function"),
    Flag("image", _WHAT, "", "the function to look up and evaluate (empty: set-namespace:v0.4.1)", short="i"),
    Flag("account", _WHAT, "", "whose rights, as namespace/name of a ServiceAccount (empty: one's own)"),
    Flag("runner-namespace", _WHAT, "", "where the runner runs (empty: here, outside a cluster porch-system)"),
    Flag("timeout", _WHAT, "60s", "how long the function may take, its pod's start included", positive_duration),
)
_ALL = (*DOCTOR_FLAGS, *SERVE_FLAGS, *ACCEPTED_FLAGS)
SHOWN_FLAGS: tuple[Flag, ...] = (*DOCTOR_FLAGS, *(flag for flag in SERVE_FLAGS if flag.name in _SHOWN))
"""What its help shows."""
DEFAULT_IMAGE = "set-namespace:v0.4.1"
"""What is evaluated when no function is named. The runner uses whichever runtime serves it."""


@dataclass(frozen=True, slots=True)
class DoctorSettings:
    """One look at an installation."""

    address: str
    image: str
    reference: ImageRef
    looks_up_image: bool
    account: tuple[str, str] | None
    runner_namespace: str
    """Empty: find out."""
    timeout: float
    has_pod_runtime: bool
    """Without it the runner needs no cluster and no registry."""
    pod_namespace: str
    template_config_map: str
    wrapper_delivery: DeliveryName
    wrapper_image: str
    spare_pods: int
    max_message_bytes: int
    default_image_prefix: str
    registries: RegistrySettings


def parse_doctor_settings(
    argv: Sequence[str], environment: Mapping[str, str], runner_arguments: Sequence[str] = ()
) -> DoctorSettings:
    """The settings of `krm-runner doctor ARGV`; ConfigurationError with one line when they make no sense."""
    flags = parse_flags(_ALL, [*runner_arguments, *argv])
    text = {name: value for name, value in flags.values.items() if isinstance(value, str)}
    image, prefix = text["image"] or DEFAULT_IMAGE, text["default-image-prefix"]
    try:
        reference = image_ref.parse(image, default_prefix=prefix)
    except image_ref.ImageRefError as error:
        raise ConfigurationError(f'"{image}" is no valid image: {error}') from error
    return DoctorSettings(
        address=text["address"],
        image=image,
        reference=reference,
        looks_up_image=bool(text["image"]),
        account=_account(text["account"]),
        runner_namespace=text["runner-namespace"],
        timeout=cast(float, flags.values["timeout"]),
        has_pod_runtime="pod" not in cast(frozenset[str], flags.values["disable-runtimes"]),
        pod_namespace=text["pod-namespace"],
        template_config_map=text["function-pod-template"],
        wrapper_delivery=wrapper_delivery(flags),
        wrapper_image=environment.get("WRAPPER_SERVER_IMAGE", ""),
        spare_pods=cast(int, flags.values["spare-pods"]),
        max_message_bytes=cast(int, flags.values["max-request-body-size"]),
        default_image_prefix=prefix,
        registries=registry_settings(flags),
    )


def _account(text: str) -> tuple[str, str] | None:
    if not text:
        return None
    namespace, slash, name = text.partition("/")
    if not (slash and namespace and name):
        raise ConfigurationError(f'--account: "{text}" is not written as namespace/name')
    return namespace, name
