"""Flags that mean nothing here and are accepted all the same. Their values are not looked at.

Those of other versions of Porch's Function Runner, so that its manifests start; and those of an earlier version of this
runner, for one release. The service logs one line for each that is given, with what there is instead.
"""

from __future__ import annotations

from krm_runner.settings.go_flags import Flag

_PORCH, _RETIRED = "Porch", "Retired"

PORCH_FLAGS: tuple[Flag, ...] = (
    Flag("max-grpc-retries", _PORCH, "", "a call whose pod was lost is retried by --retry-lost-calls"),
    Flag("base-pod-template-name", _PORCH, "", "pods are made by --function-pod-template, or the built-in template"),
    Flag("base-service-template-name", _PORCH, "", "Services are made by --function-pod-template, or built in"),
    Flag("skip-template-creation", _PORCH, "", "no template objects are created", is_boolean=True),
    Flag("template-wait-timeout", _PORCH, "", "no template objects are waited for"),
)
"""The help of each says what this service does instead."""

RETIRED_FLAGS: tuple[Flag, ...] = (
    Flag("announce-address", _RETIRED, "", "pods no longer announce themselves; keep spare pods (--spare-pods)"),
    Flag("wrapper-file", _RETIRED, "", "ConfigMaps no longer deliver the wrapper; keep spare pods (--spare-pods)"),
)
"""The help of each says what to use instead."""

ACCEPTED_FLAGS = (*PORCH_FLAGS, *RETIRED_FLAGS)
