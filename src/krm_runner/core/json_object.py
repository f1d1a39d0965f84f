"""JSON objects of unknown shape, such as the API server's: looked into without trusting their types."""

from __future__ import annotations

from typing import cast

JsonObject = dict[str, object]


def as_object(value: object) -> JsonObject:
    """The value if it is an object, else an empty one."""
    return cast(JsonObject, value) if isinstance(value, dict) else {}


def as_list(value: object) -> list[object]:
    """The value if it is a list, else an empty one."""
    return cast("list[object]", value) if isinstance(value, list) else []


def as_text(value: object) -> str:
    """The value if it is text, else nothing."""
    return value if isinstance(value, str) else ""
