"""A YAML document that is changed in place: every change is an edit of the text, and the rest stays as it is.

`Document` parses the text once. Its mappings and sequences behave like Python's own; they remember what was changed,
and `render` turns that into replacements at the positions where the values stand. New values are written in block style
inside block style, and as JSON inside flow style, so that a JSON document stays one.

Not supported: changing what an anchor names without changing its aliases (there is one text for both).
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from collections.abc import Sequence as AbstractSequence
from typing import Any, TypeGuard, cast, overload

import yaml

from krm_function.edits import Edits, Span, compose, json_text, plain_value, yaml_text

_UNCHANGED = object()


class _Entry:
    """One key of a mapping. `new` is its new value, if it has one; without a key node it was added."""

    __slots__ = ("child", "key", "new", "removed", "value")

    def __init__(self, key: yaml.ScalarNode | None, value: yaml.Node | None, new: object = _UNCHANGED) -> None:
        self.key = key
        self.value = value
        self.new = new
        self.removed = False
        self.child: Mapping | Sequence | None = None

    @property
    def is_original(self) -> bool:
        return self.key is not None and not self.removed


class Document:
    """A text with one YAML document."""

    def __init__(self, text: str, *, mapping_type: type[Mapping] | None = None, has_word_booleans: bool = True) -> None:
        self.text = text
        self.mapping_type = mapping_type or Mapping
        root = compose(text, has_word_booleans=has_word_booleans)
        if not isinstance(root, yaml.MappingNode):
            raise ValueError("the document is not a mapping")
        self.root = self.mapping_type(self, root)

    def render(self) -> str:
        """The text with all changes."""
        if self.root.is_rewritten:
            return (json_text if self.root.in_flow else yaml_text)(self.root.plain()) + "\n"
        edits = Edits(self.text)
        self.root.collect(edits)
        return edits.apply()


class Mapping(MutableMapping[str, Any]):
    """A mapping of the document. What is read from it is a Mapping, a Sequence or a scalar; anything may be put in."""

    def __init__(self, document: Document, node: yaml.MappingNode) -> None:
        self._document = document
        self._node = node
        self._entries: dict[str, _Entry] = {}
        for key, value in cast(list[tuple[yaml.Node, yaml.Node]], node.value):
            if isinstance(key, yaml.ScalarNode):
                self._entries[key.value] = _Entry(key, value)

    def __getitem__(self, key: str) -> Any:
        entry = self._entries[key]
        if entry.removed:
            raise KeyError(key)
        if entry.new is not _UNCHANGED:
            return entry.new
        if entry.child is None:
            entry.child = _wrap(self._document, entry.value)
        return plain_value(entry.value) if entry.child is None else entry.child

    def __setitem__(self, key: str, value: object) -> None:
        entry = self._entries.get(key)
        if entry is None:
            self._entries[key] = _Entry(None, None, value)
        elif not entry.removed and entry.new is _UNCHANGED and _is_same(self[key], value):
            return
        else:
            entry.removed, entry.new, entry.child = False, value, None

    def __delitem__(self, key: str) -> None:
        entry = self._entries[key]
        if entry.removed:
            raise KeyError(key)
        if entry.key is None:
            del self._entries[key]
        else:
            entry.removed = True

    def __iter__(self) -> Iterator[str]:
        return (key for key, entry in self._entries.items() if not entry.removed)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def plain(self) -> dict[str, Any]:
        """A copy as dicts, lists and scalars."""
        return {key: as_plain(value) for key, value in self.items()}

    @property
    def in_flow(self) -> bool:
        """Whether it is written with braces."""
        return bool(self._node.flow_style)

    @property
    def line(self) -> int:
        """The line where it starts, from 1."""
        return self._node.start_mark.line + 1

    @property
    def is_rewritten(self) -> bool:
        """Nothing of the original is left, or there never was anything: it is written anew."""
        changed = any(entry.removed or entry.key is None for entry in self._entries.values())
        return changed and not any(entry.is_original for entry in self._entries.values())

    def collect(self, edits: Edits) -> None:
        """Put the changes of this mapping, and of what is in it, into `edits`."""
        in_flow = self.in_flow
        originals = [entry for entry in self._entries.values() if entry.key is not None]
        for index, entry in enumerate(originals):
            assert entry.key is not None  # noqa: S101 - originals have one
            span = edits.value_span(entry.key, cast(yaml.Node, entry.value))
            if entry.removed:
                self._collect_removal(edits, originals, index, in_flow=in_flow)
            elif entry.new is not _UNCHANGED:
                edits.replace_value(entry.key, cast(yaml.Node, entry.value), as_plain(entry.new), in_flow=in_flow)
            elif entry.child is not None:
                if entry.child.is_rewritten:
                    edits.replace_value(entry.key, cast(yaml.Node, entry.value), entry.child.plain(), in_flow=in_flow)
                elif not span.is_alias:
                    entry.child.collect(edits)
                elif entry.child.plain() != plain_value(entry.value):
                    # There is one text for the anchor and its aliases: a changed alias gets one of its own.
                    edits.replace_value(entry.key, cast(yaml.Node, entry.value), entry.child.plain(), in_flow=in_flow)
        added = {key: as_plain(entry.new) for key, entry in self._entries.items() if entry.key is None}
        if added:
            last = next(entry for entry in reversed(originals) if not entry.removed)
            edits.insert_entries(cast(yaml.ScalarNode, last.key), cast(yaml.Node, last.value), added, in_flow=in_flow)

    def _collect_removal(self, edits: Edits, originals: list[_Entry], index: int, *, in_flow: bool) -> None:
        def span(entry: _Entry) -> Span:
            key = cast(yaml.ScalarNode, entry.key)
            return Span(key.start_mark.index, edits.value_span(key, cast(yaml.Node, entry.value)).end)

        following = next((entry for entry in originals[index + 1 :] if not entry.removed), None)
        preceding = next((entry for entry in reversed(originals[:index]) if not entry.removed), None)
        edits.remove_entry(
            span(originals[index]),
            following=span(following).start if following else None,
            preceding=span(preceding).end if preceding else None,
            in_flow=in_flow,
        )


class Sequence(AbstractSequence[Any]):
    """A sequence of the document. Its mappings can be changed; entries can be appended and removed."""

    def __init__(self, document: Document, node: yaml.SequenceNode) -> None:
        self._document = document
        self._node = node
        self._nodes = cast(list[yaml.Node], node.value)
        self._children = [_wrap(document, child) for child in self._nodes]
        self._removed: set[int] = set()
        self._added: list[object] = []

    @overload
    def __getitem__(self, index: int) -> Any: ...
    @overload
    def __getitem__(self, index: slice) -> list[Any]: ...
    def __getitem__(self, index: int | slice) -> Any:
        return list(self)[index]

    def __iter__(self) -> Iterator[Any]:
        for position, (node, child) in enumerate(zip(self._nodes, self._children, strict=True)):
            if position not in self._removed:
                yield plain_value(node) if child is None else child
        yield from self._added

    def __len__(self) -> int:
        return len(self._nodes) - len(self._removed) + len(self._added)

    def append(self, value: object) -> None:
        """Add an entry at the end."""
        self._added.append(value)

    def remove(self, value: object) -> None:
        """Remove an entry; ValueError when it is not there."""
        for position, (node, child) in enumerate(zip(self._nodes, self._children, strict=True)):
            if position in self._removed:
                continue
            if plain_value(node) == value if child is None else child is value:
                self._removed.add(position)
                return
        self._added.remove(value)

    def plain(self) -> list[Any]:
        """A copy as dicts, lists and scalars."""
        return [as_plain(value) for value in self]

    @property
    def is_rewritten(self) -> bool:
        """See Mapping."""
        return bool(self._removed or self._added) and len(self._removed) == len(self._nodes)

    def collect(self, edits: Edits) -> None:
        """See Mapping."""
        in_flow = bool(self._node.flow_style)
        kept = [position for position in range(len(self._nodes)) if position not in self._removed]
        for position, (node, child) in enumerate(zip(self._nodes, self._children, strict=True)):
            if position in self._removed:
                following = next((other for other in kept if other > position), None)
                preceding = next((other for other in reversed(kept) if other < position), None)
                edits.remove_item(
                    node,
                    before=self._nodes[position - 1] if position else None,
                    following=None if following is None else self._nodes[following],
                    preceding=None if preceding is None else self._nodes[preceding],
                    in_flow=in_flow,
                )
            elif child is not None:
                if child.is_rewritten:
                    edits.replace_item(node, child.plain(), in_flow=in_flow)
                else:
                    child.collect(edits)
        if self._added:
            edits.insert_items(self._nodes[kept[-1]], [as_plain(value) for value in self._added], in_flow=in_flow)


def is_mapping(value: object) -> TypeGuard[MutableMapping[str, Any]]:
    """A mapping of the document, or one that was put into it."""
    return isinstance(value, (Mapping, dict))


def is_sequence(value: object) -> TypeGuard[AbstractSequence[Any]]:
    """A sequence of the document, or one that was put into it."""
    return isinstance(value, (Sequence, list))


def as_plain(value: object) -> Any:
    """Without anything of the document in it."""
    if isinstance(value, (Mapping, Sequence)):
        return value.plain()
    if isinstance(value, dict):
        return {str(key): as_plain(inner) for key, inner in cast(dict[object, object], value).items()}
    if isinstance(value, (list, tuple)):
        return [as_plain(inner) for inner in cast(list[object], value)]
    return value


def _wrap(document: Document, node: yaml.Node | None) -> Mapping | Sequence | None:
    if isinstance(node, yaml.MappingNode):
        return document.mapping_type(document, node)
    return Sequence(document, node) if isinstance(node, yaml.SequenceNode) else None


def _is_same(current: object, value: object) -> bool:
    if isinstance(current, (Mapping, Sequence)):
        return current is value
    return type(current) is type(value) and current == value
