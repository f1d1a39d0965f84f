"""YAML as Kubernetes reads it: a document that JSON could have said, of a bounded size.

PyYAML makes dates of `2020-01-01` and numbers of `12:30`; for Kubernetes both are text. Keys are text always. Refuses
what JSON cannot say, and documents that are small on paper but large in memory (aliases of aliases).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import cast

import yaml

from krm_runner.core.errors import ConfigurationError

_MAX_NODES = 20_000
_MAX_DEPTH = 100
_NUMBERS = [
    ("tag:yaml.org,2002:int", re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)\Z")),
    (
        "tag:yaml.org,2002:float",
        re.compile(
            r"(?:[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+"
            r"|\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN)\Z"
        ),
    ),
]
_READ_OTHERWISE = {"tag:yaml.org,2002:timestamp", *(tag for tag, _ in _NUMBERS)}


class _Loader(yaml.SafeLoader):
    """Not the C loader: it recurses without a limit, and a file that is nested deep enough would end the process."""


_Loader.yaml_implicit_resolvers = {
    first: [resolver for resolver in resolvers if resolver[0] not in _READ_OTHERWISE]
    + (_NUMBERS if first in "-+.0123456789" else [])
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def load(text: str | bytes, *, source: str) -> object:
    """The document; ConfigurationError names `source` and the reason."""
    try:
        document: object = yaml.load(text, Loader=_Loader)  # noqa: S506 - a SafeLoader
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigurationError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from error
    return _plain(document, source, iter(range(_MAX_NODES)), _MAX_DEPTH)


def text_of(value: object) -> str | None:
    """A scalar as Kubernetes would write it; None when it is a mapping or a list."""
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value)
        case _:
            return None


def _plain(value: object, source: str, room: Iterator[int], depth: int) -> object:
    if depth == 0 or next(room, None) is None:
        raise ConfigurationError(f"{source}: the document is too large or nested too deeply")
    match value:
        case dict():
            fields = cast(dict[object, object], value)
            return {_key(key, source): _plain(field, source, room, depth - 1) for key, field in fields.items()}
        case list():
            return [_plain(entry, source, room, depth - 1) for entry in cast(list[object], value)]
        case float() if not math.isfinite(value):
            raise ConfigurationError(f"{source}: {value} is no number that Kubernetes knows")
        case None | str() | int() | float():
            return value
        case _:
            raise ConfigurationError(f"{source}: a {type(value).__name__} is nothing that JSON could say")


def _key(key: object, source: str) -> str:
    text = text_of(key)
    if text is None:
        raise ConfigurationError(f"{source}: a key must be text")
    return text
