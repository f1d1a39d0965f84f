"""Read and write fields as the catalog's functions do, for the functions here that reproduce them.

A field that is missing reads as empty text. One that is there and is not text is an error in some places and empty text
in others: `text_at` is the strict way to read, `Resource.at` the lenient one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, MutableMapping
from typing import Any

from krm_function.document import is_mapping
from krm_function.function import FunctionError
from krm_function.package import Resource

DEPENDS_ON = "config.kubernetes.io/depends-on"
_NAMESPACED_REFERENCE = re.compile(r"[-.\w]*/namespaces/[-.\w]*/[-.\w]*/[-.\w]*", re.ASCII)


class UnmatchedFieldError(FunctionError):
    """A field is not of the type that it must have."""

    def __init__(self, *path: str) -> None:
        super().__init__(f"SubObject has unmatched field type: `{'/'.join(path)}")


def text_at(holder: Mapping[str, Any], *path: str) -> str:
    """Return the text at a path of keys; empty if it is missing, UnmatchedFieldError if it is something else."""
    value: object = holder
    for key in path:
        if not is_mapping(value):
            raise UnmatchedFieldError(*path)
        if key not in value:
            return ""
        value = value[key]
    if not isinstance(value, str):
        raise UnmatchedFieldError(*path)
    return value


def set_text(holder: MutableMapping[str, Any], value: str, *path: str) -> None:
    """Set the text at a path of keys. Adds mappings that are missing; UnmatchedFieldError if one is no mapping."""
    for key in path[:-1]:
        if key not in holder:
            holder[key] = {}
        inner: object = holder[key]
        if not is_mapping(inner):
            raise UnmatchedFieldError(*path)
        holder = inner
    holder[path[-1]] = value


def dependency_of(resource: Resource) -> list[str]:
    """Return the parts of a depends-on annotation that names a namespaced resource: group, "namespaces", namespace,
    kind and name. Empty without such an annotation."""
    reference = resource.at("metadata", "annotations", DEPENDS_ON)
    if not isinstance(reference, str) or not _NAMESPACED_REFERENCE.fullmatch(reference):
        return []
    return reference.split("/")


def quoted(text: str) -> str:
    """Return a text in double quotes, as messages have it."""
    return json.dumps(text, ensure_ascii=False)
