"""YAML as Kubernetes reads it: one document that JSON could express, of a bounded size.

Every file that a user writes in YAML comes through here. Dates and `12:30` are text, keys are text always. Whatever a
file holds, the result is a document or a ConfigurationError with the position: it is built from libyaml's events, so
that no constructor of a tag runs, recursion is bounded by us, and aliases cost what they stand for.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Mapping
from typing import cast

import yaml
from yaml import CBaseLoader

from krm_runner.core.errors import ConfigurationError

MAX_NODES = 100_000
"""Scalars, lists and mappings, those of aliases counted each time."""
_MAX_DEPTH = 100
_MAX_DIGITS = 400
_LONGEST_WORD = 60
_PREFIX = "tag:yaml.org,2002:"
_MERGE = "<<"
_BOOLEANS = {
    **dict.fromkeys(("yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"), True),
    **dict.fromkeys(("no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"), False),
}
_NULLS = frozenset({"", "~", "null", "Null", "NULL"})
_INTEGER = re.compile(r"[-+]?(?:0b[01_]+|0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)")
_FLOAT = re.compile(
    r"(?:[-+]?(?:(?:[0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+"
    r"|\.inf|\.Inf|\.INF)|\.nan|\.NaN|\.NAN)"
)

_Scalar = str | int | float | bool | None


def load(text: str | bytes, *, source: str, max_nodes: int = MAX_NODES) -> object:
    """Return the document, which may have at most so many values; None if it is empty.

    Raises ConfigurationError, on one line, with `source`, the position and the reason.
    """
    loader = None
    try:
        loader = CBaseLoader(text)
        return _Builder(loader, source, max_nodes).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        reason = ": ".join(each for each in (error.context, error.problem) if each)
        raise ConfigurationError(f"{source}: not valid YAML: {where}{reason}") from error
    except (yaml.YAMLError, UnicodeError) as error:
        raise ConfigurationError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from error
    finally:
        if loader is not None:
            loader.dispose()


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


class _Builder:
    """Builds one document from events."""

    def __init__(self, loader: CBaseLoader, source: str, max_nodes: int) -> None:
        self._loader = loader
        self._source = source
        self._max_nodes = max_nodes
        self._nodes = 0
        self._deepest = 0
        """The deepest level since this was last set to 0."""
        self._anchored: dict[str, tuple[object, int, int]] = {}
        """Values by their anchors, how many nodes each has, and how many levels."""

    def document(self) -> object:
        self._next()  # the start of the stream
        if not isinstance(self._next(), yaml.DocumentStartEvent):
            return None
        value = self._value(self._next(), 0)
        self._next()  # the end of the document
        event = self._next()
        if not isinstance(event, yaml.StreamEndEvent):
            raise self._error(event, "there is a second document, and one is expected")
        return value

    def _next(self) -> yaml.Event:
        return cast(yaml.Event, self._loader.get_event())  # pyright: ignore[reportUnknownMemberType] - untyped in the stubs

    def _value(self, event: yaml.Event, depth: int) -> object:
        before = self._nodes
        self._count(event, 1)
        self._descend(event, depth)
        if isinstance(event, yaml.AliasEvent):
            return self._aliased(event, depth)
        above, self._deepest = self._deepest, depth
        anchor = cast(str | None, getattr(event, "anchor", None))
        value: object
        if isinstance(event, yaml.ScalarEvent):
            value = self._scalar(event)
        elif isinstance(event, yaml.SequenceStartEvent):
            self._check_tag(event, "seq")
            value = self._sequence(depth)
        else:
            self._check_tag(cast(yaml.MappingStartEvent, event), "map")
            value = self._mapping(depth)
        if anchor:
            self._anchored[anchor] = value, self._nodes - before, self._deepest - depth
        self._deepest = max(above, self._deepest)
        return value

    def _descend(self, event: yaml.Event, depth: int) -> None:
        if depth >= _MAX_DEPTH:
            raise self._error(
                event, f"it is nested deeper than {_MAX_DEPTH} levels, those of aliases counted each time"
            )
        self._deepest = max(self._deepest, depth)

    def _aliased(self, event: yaml.AliasEvent, depth: int) -> object:
        found = self._anchored.get(event.anchor or "")
        if found is None:
            raise self._error(event, f"the alias *{event.anchor} refers to nothing before it, or to itself")
        value, nodes, levels = found
        self._count(event, nodes)
        self._descend(event, depth + levels)
        return copy.deepcopy(value)

    def _sequence(self, depth: int) -> list[object]:
        found: list[object] = []
        while not isinstance(event := self._next(), yaml.SequenceEndEvent):
            found.append(self._value(event, depth + 1))
        return found

    def _mapping(self, depth: int) -> dict[str, object]:
        own: dict[str, object] = {}
        merged: dict[str, object] = {}
        while not isinstance(event := self._next(), yaml.MappingEndEvent):
            is_merge = isinstance(event, yaml.ScalarEvent) and event.implicit[0] and event.value == _MERGE
            key = text_of(self._value(event, depth + 1))
            if key is None:
                raise self._error(event, "a key must be text")
            following = self._next()
            value = self._value(following, depth + 1)
            if is_merge:
                self._merge(merged, following, value)
            else:
                own[key] = value
        return merged | own

    def _merge(self, merged: dict[str, object], event: yaml.Event, value: object) -> None:
        """Add what a merge key brings in: of several mappings, the first that has a key decides."""
        for each in cast(list[object], value) if isinstance(value, list) else [value]:
            if not isinstance(each, dict):
                raise self._error(event, "a merge key takes a mapping, or a list of mappings")
            for key, item in cast(dict[str, object], each).items():
                merged.setdefault(key, item)

    def _scalar(self, event: yaml.ScalarEvent) -> _Scalar:
        text, tag = event.value, event.tag
        if tag in (None, "!"):
            if tag is None and event.implicit[0]:
                return self._resolved(event, text)
            return text
        if tag == f"{_PREFIX}str":
            return text
        value = self._resolved(event, text)
        kinds: Mapping[str, type] = {"null": type(None), "bool": bool, "int": int, "float": float}
        kind = kinds.get(tag.removeprefix(_PREFIX)) if tag.startswith(_PREFIX) else None
        if kind is None:
            raise self._error(event, f"the tag {_shown(tag)} is not supported")
        if kind is float and type(value) is int:
            return float(value)
        if type(value) is not kind:
            raise self._error(event, f'"{_cut(text)}" is not what its tag {_shown(tag)} says')
        return value

    def _resolved(self, event: yaml.ScalarEvent, text: str) -> _Scalar:
        """A plain scalar as YAML 1.1 has it, but for dates and sexagesimal numbers."""
        if text in _NULLS:
            return None
        if text in _BOOLEANS:
            return _BOOLEANS[text]
        if _INTEGER.fullmatch(text):
            return self._integer(event, text)
        if _FLOAT.fullmatch(text):
            return self._float(event, text)
        return text

    def _integer(self, event: yaml.ScalarEvent, text: str) -> int:
        digits = text.replace("_", "")
        if len(digits) > _MAX_DIGITS:
            raise self._error(event, f"a number has more than {_MAX_DIGITS} digits")
        sign = -1 if digits.startswith("-") else 1
        digits = digits.lstrip("+-")
        for prefix, base in (("0b", 2), ("0x", 16), ("0", 8)):
            if digits.startswith(prefix):
                return sign * int(digits.removeprefix(prefix) or "0", base)
        return sign * int(digits)

    def _float(self, event: yaml.ScalarEvent, text: str) -> float:
        # Python writes infinity and "not a number" without the dot.
        plain = re.sub(r"\.(?=inf|nan)", "", text.lower().replace("_", ""))
        value = float(plain)
        if not math.isfinite(value):
            raise self._error(event, f"{_cut(text)} is no number that Kubernetes knows")
        return value

    def _check_tag(self, event: yaml.SequenceStartEvent | yaml.MappingStartEvent, kind: str) -> None:
        if event.tag not in (None, "!", f"{_PREFIX}{kind}"):
            raise self._error(event, f"the tag {_shown(event.tag)} is not supported")

    def _count(self, event: yaml.Event, nodes: int) -> None:
        self._nodes += nodes
        if self._nodes > self._max_nodes:
            raise self._error(event, f"it has more than {self._max_nodes} values, those of aliases counted each time")

    def _error(self, event: yaml.Event, why: str) -> ConfigurationError:
        mark = event.start_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        return ConfigurationError(f"{self._source}: {where}{why}")


def _shown(tag: str) -> str:
    return _cut(f"!!{tag.removeprefix(_PREFIX)}" if tag.startswith(_PREFIX) else tag)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_WORD else f"{text[:_LONGEST_WORD]}…"
