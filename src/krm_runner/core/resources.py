"""Requests and limits of a container: read from a file, and put over those that a template has."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast

from krm_runner.core.json_object import JsonObject, as_object
from krm_runner.core.kubernetes_yaml import text_of

_QUANTITY = re.compile(r"\+?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[KMGTPE]i|[numkMGTPE]|[eE][-+]?[0-9]{1,3})?")
_NAME = re.compile(r"(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class Resources:
    """Quantities by resource, in Kubernetes' own words (`cpu: 100m`)."""

    requests: Mapping[str, str] = field(default_factory=dict[str, str])
    limits: Mapping[str, str] = field(default_factory=dict[str, str])

    def over(self, others: object) -> JsonObject:
        """The `resources` of a container that has `others`: ours count where both say something."""
        merged = dict(as_object(others))
        for name, ours in (("requests", self.requests), ("limits", self.limits)):
            if ours:
                merged[name] = {**as_object(merged.get(name)), **ours}
        return merged


NO_RESOURCES = Resources()


def parse_resources(value: object) -> Resources:
    """Of a `resources` field; ValueError names the part of it that is wrong."""
    if value is None:
        return NO_RESOURCES
    if not isinstance(value, dict):
        raise ValueError("resources must be a mapping with requests and limits")
    fields = cast(JsonObject, value)
    for name in fields:
        if name not in ("requests", "limits"):
            raise ValueError(f'resources: "{name}" is not known; it takes requests, limits')
    return Resources(_quantities(fields.get("requests"), "requests"), _quantities(fields.get("limits"), "limits"))


def _quantities(value: object, place: str) -> dict[str, str]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise ValueError(f"resources.{place} must be a mapping such as {{cpu: 100m, memory: 256Mi}}")
    quantities: dict[str, str] = {}
    for name, quantity in cast(JsonObject, value).items():
        if not _NAME.fullmatch(name):
            raise ValueError(f'resources.{place}: "{name}" is no resource such as cpu or memory')
        text = "" if isinstance(quantity, bool) else (text_of(quantity) or "")
        if not _QUANTITY.fullmatch(text):
            raise ValueError(f'resources.{place}.{name}: "{text}" is no quantity such as 100m or 256Mi')
        quantities[name] = text
    return quantities
