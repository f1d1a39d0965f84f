"""Merge keys that refer to another place of the document: the whole of it is composed, and its top level flattened.

Only for small documents that are known to be well-formed and not nested too deep. Aliases of aliases of aliases stand
for more than any memory holds: nobody follows them to the end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import yaml
from yaml import CBaseLoader, MappingNode, Node, ScalarNode, SequenceNode

MERGE = "<<"
NULL_TAG = "tag:yaml.org,2002:null"
NULLS = frozenset({"", "~", "null", "Null", "NULL"})

_MAX_STEPS = 100_000
_MAX_VALUE_DEPTH = 16
_MAX_MERGE_DEPTH = 100
"""A mapping that merges one that merges one: each level costs stack, and one may merge itself."""

_Entries = list[tuple[Node, Node]]


class _BeyondMeasureError(Exception):
    """Somebody would have to follow too many aliases, or merges what cannot be merged."""


def load_merged(data: bytes) -> dict[str, object] | None:
    """The top level of the first mapping of the stream, merge keys resolved; None if that cannot be done."""
    try:
        roots = cast(Iterator[Node], yaml.compose_all(data, Loader=CBaseLoader))  # pyright: ignore[reportUnknownMemberType] - untyped in the stubs
        for root in roots:
            if isinstance(root, MappingNode):
                return _Reader().fields(root)
    except (yaml.YAMLError, _BeyondMeasureError):
        pass
    return None


class _Reader:
    def __init__(self) -> None:
        self._steps = 0

    def fields(self, mapping: MappingNode) -> dict[str, object]:
        pairs = [(self._value(key, 0), self._value(value, 0)) for key, value in self._flatten(mapping, 0)]
        return {key: value for key, value in pairs if isinstance(key, str)}

    def _step(self) -> None:
        self._steps += 1
        if self._steps > _MAX_STEPS:
            raise _BeyondMeasureError

    def _flatten(self, mapping: MappingNode, depth: int) -> _Entries:
        """The entries with those that are merged in before them, so that the last of a key counts."""
        if depth > _MAX_MERGE_DEPTH:
            raise _BeyondMeasureError
        merged: _Entries = []
        own: _Entries = []
        for key, value in cast(_Entries, mapping.value):
            self._step()
            if not (isinstance(key, ScalarNode) and key.value == MERGE and not key.style):
                own.append((key, value))
                continue
            sources = list(reversed(cast(list[Node], value.value))) if isinstance(value, SequenceNode) else [value]
            for source in sources:
                if not isinstance(source, MappingNode):
                    raise _BeyondMeasureError
                merged += self._flatten(source, depth + 1)
        return merged + own

    def _value(self, node: Node, depth: int) -> object:
        """As strings, lists and dicts; what is nested too deep is left out."""
        self._step()
        if isinstance(node, ScalarNode):
            text = cast(str, node.value)
            is_null = node.tag == NULL_TAG or (not node.style and text in NULLS)
            return None if is_null else text
        if depth >= _MAX_VALUE_DEPTH:
            return None
        if isinstance(node, SequenceNode):
            return [self._value(item, depth + 1) for item in cast(list[Node], node.value)]
        pairs = [
            (self._value(key, depth + 1), self._value(value, depth + 1)) for key, value in cast(_Entries, node.value)
        ]
        return {key: value for key, value in pairs if isinstance(key, str)}
