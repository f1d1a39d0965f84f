"""The `results` of a ResourceList: what a function reports, and how a person reads it.

Written by functions of any quality, so every field may be missing or of the wrong type: what cannot be read is left
out, and nothing here raises.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

_MAX_RESULTS = 1000


@dataclass(frozen=True, slots=True)
class FunctionResult:
    """One result."""

    severity: str
    resource: str
    field: str
    file: str
    message: str

    @property
    def is_error(self) -> bool:
        """Whether the function calls it an error."""
        return self.severity == "error"

    def __str__(self) -> str:
        """`[severity] apiVersion/kind/namespace/name field in file: message`, as kpt's users know it."""
        where = " ".join(part for part in (self.resource, self.field, f"in {self.file}" if self.file else "") if part)
        return f"[{self.severity}] {where + ': ' if where else ''}{self.message}"


def results_from(results: object) -> tuple[FunctionResult, ...]:
    """The results in the value of the list's `results` field."""
    if isinstance(results, dict):
        # Functions of v1alpha1 report {name, items}.
        results = cast(dict[str, object], results).get("items")
    if not isinstance(results, list):
        return ()
    entries = cast(list[object], results)[:_MAX_RESULTS]
    return tuple(_result_from(cast(dict[str, object], entry)) for entry in entries if isinstance(entry, dict))


def _result_from(entry: Mapping[str, object]) -> FunctionResult:
    reference = _mapping(entry.get("resourceRef"))
    metadata = _mapping(reference.get("metadata"))
    identity = (
        _text(reference.get("apiVersion")),
        _text(reference.get("kind")),
        _text(reference.get("namespace")) or _text(metadata.get("namespace")),
        _text(reference.get("name")) or _text(metadata.get("name")),
    )
    return FunctionResult(
        severity=_text(entry.get("severity")) or "info",
        resource="/".join(part for part in identity if part),
        field=_text(_mapping(entry.get("field")).get("path")),
        file=_text(_mapping(entry.get("file")).get("path")),
        message=_text(entry.get("message")),
    )


def _mapping(value: object) -> Mapping[str, object]:
    return cast(dict[str, object], value) if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
