"""A package's documents as one ResourceList: every text stays as it is, indented under `items`.

Each resource is marked with the file and the position that it comes from, in the annotations that every KRM function
knows. What else is done to a text is undone by `unwrapping`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from krm_function.document import Document
from krm_function.edits import block_text
from krm_function.package import Resource
from krm_runner.core.errors import ConfigurationError
from krm_runner.packages.files import PackageFile

PATH_ANNOTATIONS = ("config.kubernetes.io/path", "internal.config.kubernetes.io/path")
INDEX_ANNOTATIONS = ("config.kubernetes.io/index", "internal.config.kubernetes.io/index")

_END_MARKER = re.compile(r"\.\.\.(?:\s|$)")
_HEAD = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\n"


def to_resource_list(files: Iterable[PackageFile], function_config: Mapping[str, Any] | None) -> str:
    """The ResourceList that a function gets."""
    parts = [_HEAD, config_section(function_config)]
    items = [
        _item(file, index) for file in files for index, document in enumerate(file.documents) if document.is_resource
    ]
    parts += ["items:\n", *items] if items else ["items: []\n"]
    return "".join(parts)


def _item(file: PackageFile, index: int) -> str:
    try:
        return as_item(marked(file.documents[index].text, file.path, index))
    except ValueError as error:
        raise ConfigurationError(f"{file.path}: {error}") from error


def config_section(function_config: Mapping[str, Any] | None) -> str:
    """The `functionConfig` field, as lines of the list."""
    return f"functionConfig:\n{block_text(dict(function_config), 2)}\n" if function_config else ""


def config_map(settings: Mapping[str, str]) -> dict[str, Any]:
    """The function config that key=value arguments stand for."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "function-input"},
        "data": dict(settings),
    }


def marked(text: str, path: str, index: int) -> str:
    """The document with the annotations that say where it comes from."""
    document = Document(text, mapping_type=Resource)
    annotations = cast(Resource, document.root).annotations
    for names, value in ((PATH_ANNOTATIONS, path), (INDEX_ANNOTATIONS, str(index))):
        for name in names:
            annotations[name] = value
    return document.render()


def as_item(text: str) -> str:
    """A document as an entry of a sequence. Comments above it stay above it."""
    lines = [line for line in text.replace("\r\n", "\n").removesuffix("\n").split("\n") if not _END_MARKER.match(line)]
    first = next(number for number, line in enumerate(lines) if line.strip() and not line.lstrip().startswith("#"))
    column = len(lines[first]) - len(lines[first].lstrip(" "))
    indented = ["  " + line.removeprefix(" " * column) if line else "" for line in lines[first:]]
    comments = [line.strip() for line in lines[:first] if line.strip()]
    return "\n".join([*comments, "- " + indented[0][2:], *indented[1:]]) + "\n"
