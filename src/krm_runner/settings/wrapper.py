"""How the wrapper server comes into function pods, as far as the command line says it."""

from __future__ import annotations

from typing import Literal, cast

from krm_runner.core.errors import ConfigurationError
from krm_runner.settings.go_flags import ParsedFlags

DeliveryName = Literal["init-container", "config-map", "image-volume"]


def wrapper_delivery(flags: ParsedFlags) -> DeliveryName:
    """ConfigurationError when it is asked for together with a template, which says itself how that is done."""
    name = cast(DeliveryName, flags.values["wrapper-delivery"])
    if name != "init-container" and flags.values["function-pod-template"]:
        raise ConfigurationError(
            f"--wrapper-delivery={name} is for the built-in pod template only, "
            "and --function-pod-template names another: leave out one of the two"
        )
    return name
