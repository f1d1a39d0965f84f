"""Reading a YAML stream by libyaml's events, for a few fields of each document's top level.

Nothing else is built, so that megabytes cost no memory; the interpreter is held for one event at a time, so that other
threads go on; and what is nested without measure is refused before it costs anything. Knows nothing of what the fields
mean.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import cast

import yaml
from yaml import CBaseLoader
from yaml.reader import ReaderError

from krm_runner.core.yaml_merge import MERGE, NULL_TAG, NULLS, load_merged

_MAX_DEPTH = 1000
_MAX_VALUE_DEPTH = 16
_MAX_MERGED = 256 * 1024
"""Merge keys that refer to another place are resolved in documents up to this size: it takes a whole parse."""


class UnreadableError(ValueError):
    """The bytes are no YAML, or nobody should read them; the message says why, on one line."""


def read_documents(data: bytes, names: Collection[str], is_cancelled: Callable[[], bool]) -> list[object]:
    """Every document that is not empty: of a mapping the fields called `names`, of a sequence nothing, else its text.

    The whole stream is read before anything is returned: a syntax error anywhere is an UnreadableError.
    """
    loader = CBaseLoader(data)
    try:
        reader = _EventReader(loader, is_cancelled)
        documents = [document for document in _documents(reader, names) if document is not None]
    except yaml.YAMLError as error:
        raise UnreadableError(_reason_of(error)) from error
    finally:
        loader.dispose()
    if reader.merges_elsewhere and len(documents) == 1 and len(data) <= _MAX_MERGED:
        merged = load_merged(data)
        return documents if merged is None else [merged]
    return documents


def _documents(reader: _EventReader, names: Collection[str]) -> Iterator[object]:
    """See read_documents; an empty one is None."""
    while (event := reader.next()) is not None:
        if isinstance(event, yaml.DocumentStartEvent):
            root = reader.expect()
            if isinstance(root, yaml.MappingStartEvent):
                yield _read_fields(reader, names)
            elif isinstance(root, yaml.SequenceStartEvent):
                reader.skip(root)
                yield []
            else:
                yield reader.value(root)


class _EventReader:
    """Walks the events of libyaml; remembers anchored scalars, since a kind may be an alias."""

    def __init__(self, loader: CBaseLoader, is_cancelled: Callable[[], bool]) -> None:
        self._loader = loader
        self._is_cancelled = is_cancelled
        self._anchored: dict[str, object] = {}
        self._depth = 0
        self.merges_elsewhere = False
        """Whether the top level takes fields from a mapping that stands at another place."""

    def next(self) -> yaml.Event | None:
        if not self._loader.check_event():  # pyright: ignore[reportUnknownMemberType] - untyped in the stubs
            return None
        event = cast(yaml.Event, self._loader.get_event())
        if isinstance(event, yaml.ScalarEvent):
            if event.anchor:
                self._anchored[event.anchor] = _scalar(event)
            return event
        self._depth += _nesting(event)
        if self._depth > _MAX_DEPTH:
            # The parser's time grows with the square of the depth, and nobody reads such a document.
            raise UnreadableError(f"it is nested deeper than {_MAX_DEPTH} levels")
        if self._is_cancelled():
            raise UnreadableError("nobody waits for it any more")
        return event

    def expect(self) -> yaml.Event:
        event = self.next()
        if event is None:
            raise UnreadableError("it ends in the middle of a document")
        return event

    def skip(self, event: yaml.Event) -> None:
        """Read to the end of the node that starts with `event`."""
        depth = _nesting(event)
        while depth > 0:
            depth += _nesting(self.expect())

    def value(self, event: yaml.Event, depth: int = 0) -> object:
        """The node that starts with `event` as strings, lists and dicts; what is nested too deep is left out."""
        if isinstance(event, yaml.ScalarEvent):
            return _scalar(event)
        if isinstance(event, yaml.AliasEvent):
            return self._anchored.get(event.anchor or "")
        if depth >= _MAX_VALUE_DEPTH:
            self.skip(event)
            return None
        if isinstance(event, yaml.SequenceStartEvent):
            return [self.value(item, depth + 1) for item in self._until(yaml.SequenceEndEvent)]
        pairs = [
            (self.value(key, depth + 1), self.value(self.expect(), depth + 1))
            for key in self._until(yaml.MappingEndEvent)
        ]
        return {key: value for key, value in pairs if isinstance(key, str)}

    def _until(self, end: type[yaml.Event]) -> Iterator[yaml.Event]:
        while not isinstance(event := self.expect(), end):
            yield event


def _scalar(event: yaml.ScalarEvent) -> str | None:
    """Its text; nothing for the ways to write null."""
    is_plain = event.style in (None, "") and event.tag is None
    return None if event.tag == NULL_TAG or (is_plain and event.value in NULLS) else event.value


def _nesting(event: yaml.Event) -> int:
    if isinstance(event, yaml.CollectionStartEvent):
        return 1
    return -1 if isinstance(event, yaml.CollectionEndEvent) else 0


def _read_fields(reader: _EventReader, names: Collection[str], *, is_merged: bool = False) -> dict[str, object]:
    """The fields that are asked for, to the end of the mapping."""
    fields: dict[str, object] = {}
    merged: dict[str, object] = {}
    while not isinstance(event := reader.expect(), yaml.MappingEndEvent):
        key = reader.value(event)
        value = reader.expect()
        if key == MERGE and not is_merged:
            if isinstance(value, yaml.MappingStartEvent):
                merged = _read_fields(reader, names, is_merged=True) | merged
            else:
                reader.merges_elsewhere = True
                reader.skip(value)
        elif isinstance(key, str) and key in names:
            fields[key] = reader.value(value)
        else:
            reader.skip(value)
    return merged | fields


def _reason_of(error: yaml.YAMLError) -> str:
    """libyaml's reason on one line."""
    if isinstance(error, ReaderError):
        # It is -1 where there is no character to speak of.
        character = cast(int, error.character)
        shown = f" #x{character:04x}" if character >= 0 else ""
        return f"yaml: byte {error.position + 1}: {error.reason}{shown}"
    if isinstance(error, yaml.MarkedYAMLError) and error.problem:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        context = f"{error.context}: " if error.context else ""
        # libyaml's own slip, which the wrapper server's translation of it has mended.
        problem = error.problem.replace("hexdecimal", "hexadecimal")
        return f"yaml: {where}{context}{problem}"
    return "yaml: " + " ".join(str(error).split())
