"""How the wrapper server comes into function pods, as far as the command line says it."""

from __future__ import annotations

from typing import Literal, cast

from krm_runner.core.errors import ConfigurationError
from krm_runner.settings.go_flags import ParsedFlags

DeliveryName = Literal["init-container", "image-volume"]
RETIRED_DELIVERY = "config-map"
"""Accepted for one release."""


def retired_delivery(flags: ParsedFlags) -> dict[str, str]:
    """Return the flag and what is done instead, if it asks for a way that there is no longer."""
    if flags.values["wrapper-delivery"] != RETIRED_DELIVERY:
        return {}
    return {
        f"wrapper-delivery={RETIRED_DELIVERY}": "an init container delivers the wrapper server; for quick first calls "
        "keep spare pods (--spare-pods)"
    }


def wrapper_delivery(flags: ParsedFlags) -> DeliveryName:
    """ConfigurationError when it is asked for together with a template, which says itself how that is done."""
    name = cast(DeliveryName, flags.values["wrapper-delivery"])
    if retired_delivery(flags):
        return "init-container"
    if name != "init-container" and flags.values["function-pod-template"]:
        raise ConfigurationError(
            f"--wrapper-delivery={name} is for the built-in pod template only, "
            "and --function-pod-template names another: leave out one of the two"
        )
    return name
