"""Flags of other versions of Porch's Function Runner that mean nothing here: accepted, so that its manifests start.

Their values are not looked at. The service logs one line for each that is given, with what to do instead.
"""

from __future__ import annotations

from krm_runner.settings.go_flags import Flag

_PORCH = "Porch"

PORCH_FLAGS: tuple[Flag, ...] = (
    Flag("max-grpc-retries", _PORCH, "", "a call whose pod was lost is retried by --retry-lost-calls"),
    Flag("base-pod-template-name", _PORCH, "", "pods are made by --function-pod-template, or the built-in template"),
    Flag("base-service-template-name", _PORCH, "", "Services are made by --function-pod-template, or built in"),
    Flag("skip-template-creation", _PORCH, "", "no template objects are created", is_boolean=True),
    Flag("template-wait-timeout", _PORCH, "", "no template objects are waited for"),
)
"""The help of each says what this service does instead."""
