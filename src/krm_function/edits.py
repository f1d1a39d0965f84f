"""Replacements in a YAML text, by the positions of its nodes.

Knows where a value begins and ends in the text (libyaml's marks say where a block collection's *next* token begins,
which is too far), how a new value is written at a place, and how lines are added and taken away. Knows nothing of what
is changed or why.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import yaml

_ALIAS = re.compile(r"\s*(?:#[^\n]*\n\s*)*(\*[^\s,\]}]+)")
_UNLIMITED = 1_000_000
_KEEPS_BREAKS = re.compile(r"(?:[&!]\S+\s+)*[|>][1-9]?\+")
_NOT_AS_IS = re.compile("[\x7f-\x9f\u2028\u2029\ufeff]")
_TEXT_TAG = "tag:yaml.org,2002:str"
_BOOL_TAG = "tag:yaml.org,2002:bool"


class Span(NamedTuple):
    """From the first character to after the last."""

    start: int
    end: int
    is_alias: bool = False


class Edits:
    """Collects replacements of one text, and applies them all at once."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._break = "\r\n" if "\r\n" in text else "\n"
        self._edits: list[tuple[int, int, int, str]] = []

    def apply(self) -> str:
        """The text after all replacements. Those at one place keep the order in which they came."""
        pieces: list[str] = []
        position = 0
        for start, end, _order, replacement in sorted(self._edits):
            if start < position and end <= position:
                # Inside something that is gone already.
                continue
            pieces += [self._text[position:start], replacement]
            position = end
        return "".join([*pieces, self._text[position:]])

    # --- where things are -----------------------------------------------------------------------------------------

    def value_span(self, key: yaml.Node, value: yaml.Node) -> Span:
        """Where the value of a key stands. An alias is where it is written, not where its anchor is."""
        colon = self._after_colon(key)
        if value.start_mark.index < key.end_mark.index:
            alias = _ALIAS.match(self._text, colon)
            if alias is not None:
                return Span(alias.start(1), alias.end(1), is_alias=True)
        if self._is_empty(value):
            return Span(colon, colon)
        return Span(value.start_mark.index, max(colon, self._end(value)))

    def _after_colon(self, key: yaml.Node) -> int:
        return self._text.index(":", key.end_mark.index) + 1

    def _end(self, node: yaml.Node) -> int:
        """After the last character of the node itself, without the comments and blank lines that follow it."""
        if isinstance(node, yaml.CollectionNode) and not node.flow_style:
            if isinstance(node, yaml.SequenceNode):
                last = cast(list[yaml.Node], node.value)[-1]
                return self._end(last) if last.start_mark.index >= node.start_mark.index else self._line_end(last)
            key, value = cast(list[tuple[yaml.Node, yaml.Node]], node.value)[-1]
            return self.value_span(key, value).end
        if not self._is_block_scalar(node):
            return node.end_mark.index
        end = node.end_mark.index
        if _KEEPS_BREAKS.match(self._text, node.start_mark.index):
            return end - 1 if self._text[end - 1] == "\n" else end
        while self._text[end - 1].isspace():
            end -= 1
        return end

    def _line_start(self, position: int) -> int:
        return self._text.rfind("\n", 0, position) + 1

    def _line_end(self, position: int | yaml.Node) -> int:
        """The line break that ends the line, or the end of the text."""
        index = position if isinstance(position, int) else position.end_mark.index
        found = self._text.find("\n", index)
        return len(self._text) if found < 0 else found

    @staticmethod
    def _is_empty(node: yaml.Node) -> bool:
        return isinstance(node, yaml.ScalarNode) and node.start_mark.index == node.end_mark.index

    @staticmethod
    def _is_block_scalar(node: yaml.Node) -> bool:
        return isinstance(node, yaml.ScalarNode) and node.style in ("|", ">")

    # --- replacing ------------------------------------------------------------------------------------------------

    def replace_value(self, key: yaml.Node, value: yaml.Node, new: object, *, in_flow: bool) -> None:
        """Another value for a key."""
        span = self.value_span(key, value)
        colon = self._after_colon(key)
        if in_flow:
            self._add(span.start, span.end, json_text(new) if span.start > colon else " " + json_text(new))
        elif new and isinstance(new, (dict, list)):
            column = key.start_mark.column
            lines = block_text(cast(object, new), column if isinstance(new, list) else column + 2)
            self._add(colon, span.end, "\n" + lines)
        elif isinstance(value, yaml.CollectionNode) and not value.flow_style and not span.is_alias:
            self._add(colon, span.end, " " + inline_text(new))
        else:
            style = value.style if isinstance(value, yaml.ScalarNode) and not span.is_alias else None
            text = self._anchor(span) + inline_text(new, style=style)
            self._add(span.start, span.end, text if span.start > colon else " " + text)

    def replace_item(self, item: yaml.Node, new: object, *, in_flow: bool) -> None:
        """Another value for an entry of a sequence."""
        text = (
            json_text(new) if in_flow else block_text(new, item.start_mark.column).lstrip() if new else inline_text(new)
        )
        self._add(item.start_mark.index, self._end(item), text)

    def _anchor(self, span: Span) -> str:
        """`&name ` of a value that has an anchor: its aliases go on finding it."""
        found = re.match(r"&[^\s,\]}]+\s+", self._text[span.start : span.end])
        return found.group() if found else ""

    # --- adding ---------------------------------------------------------------------------------------------------

    def insert_entries(self, key: yaml.Node, value: yaml.Node, new: Mapping[str, object], *, in_flow: bool) -> None:
        """New keys after an existing one."""
        end = self.value_span(key, value).end
        if in_flow:
            self._add(end, end, "".join(f", {json.dumps(name)}: {json_text(entry)}" for name, entry in new.items()))
        else:
            self._add_lines(end, block_text(dict(new), key.start_mark.column))

    def insert_items(self, last: yaml.Node, new: list[Any], *, in_flow: bool) -> None:
        """New entries of a sequence after an existing one."""
        end = self._end(last)
        if in_flow:
            self._add(end, end, "".join(f", {json_text(entry)}" for entry in new))
        else:
            self._add_lines(end, block_text(new, self._dash(last) - self._line_start(self._dash(last))))

    def _add_lines(self, after: int, lines: str) -> None:
        end = self._line_end(after)
        self._add(end, end, "\n" + lines)

    def _dash(self, item: yaml.Node) -> int:
        return self._text.rindex("-", 0, item.start_mark.index)

    # --- removing -------------------------------------------------------------------------------------------------

    def remove_entry(self, entry: Span, *, following: int | None, preceding: int | None, in_flow: bool) -> None:
        """A key and its value; `following` is where the next key begins, `preceding` where the last value ends."""
        line_start = self._line_start(entry.start)
        if in_flow:
            if following is not None:
                self._add(entry.start, following, "")
            elif preceding is not None:
                self._add(preceding, entry.end, "")
        elif self._text[line_start : entry.start].strip():
            # Behind the dash of a sequence's entry: the next key takes its place.
            if following is not None:
                self._add(entry.start, following, "")
        else:
            self._remove_lines(line_start, entry.end)

    def remove_item(
        self,
        item: yaml.Node,
        *,
        before: yaml.Node | None,
        following: yaml.Node | None,
        preceding: yaml.Node | None,
        in_flow: bool,
    ) -> None:
        """An entry of a sequence, with the comments right above it."""
        if in_flow:
            if following is not None:
                self._add(item.start_mark.index, following.start_mark.index, "")
            elif preceding is not None:
                self._add(self._end(preceding), self._end(item), "")
            return
        start = self._line_start(self._dash(item))
        floor = 0 if before is None else self._line_end(self._end(before))
        while start - 1 > floor and self._text[self._line_start(start - 1) : start].lstrip(" ").startswith("#"):
            start = self._line_start(start - 1)
        self._remove_lines(start, self._end(item))

    def _remove_lines(self, start: int, last: int) -> None:
        """With the line break before them, so that lines can still be added where they end."""
        end = self._line_end(last)
        if start > 0:
            self._add(start - 1, end, "")
        else:
            self._add(0, min(len(self._text), end + 1), "")

    def _add(self, start: int, end: int, replacement: str) -> None:
        if self._break != "\n":
            # Positions of lines' ends are before the \n: the \r there belongs to the line that is added.
            replacement = replacement.replace("\n", self._break)
            if start == end and replacement.startswith(self._break) and self._text[start - 1 : start] == "\r":
                start = end = start - 1
        self._edits.append((start, end, len(self._edits), replacement))


# --- writing values -----------------------------------------------------------------------------------------------


def inline_text(value: object, *, style: str | None = None) -> str:
    """A scalar or an empty collection on one line, in the style of the value it replaces."""
    if isinstance(value, str):
        if style == '"' or "\n" in value or not value.isprintable():
            return json_text(value)
        if style == "'":
            return "'" + value.replace("'", "''") + "'"
    text: str = yaml.dump(value, Dumper=yaml.CSafeDumper, allow_unicode=True, width=_UNLIMITED)
    return text.removesuffix("...\n").rstrip("\n")


def json_text(value: object) -> str:
    """A value in flow style that is JSON too."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return _NOT_AS_IS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def block_text(value: object, column: int) -> str:
    """A collection in block style, every line indented, without a line break at the end."""
    indent = " " * column
    return "\n".join(indent + line if line else line for line in yaml_text(value).split("\n"))


def yaml_text(value: object) -> str:
    """A value in block style, without a line break at the end."""
    text: str = yaml.dump(
        value,
        Dumper=yaml.CSafeDumper,
        allow_unicode=True,
        default_flow_style=False,
        sort_keys=False,
        width=_UNLIMITED,
    )
    return text.rstrip("\n")


def compose(text: str, *, has_word_booleans: bool = True) -> yaml.Node | None:
    """The node tree of the one document in `text`. With `has_word_booleans`, yes, no, on and off are booleans."""
    loader = yaml.CSafeLoader if has_word_booleans else _WordLoader
    return cast("yaml.Node | None", yaml.compose(text, Loader=loader))  # pyright: ignore[reportUnknownMemberType] - untyped


class _WordLoader(yaml.CSafeLoader):
    """Takes yes, no, on and off as text."""


_WordLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _BOOL_TAG or first in "tTfF"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


def plain_value(node: yaml.Node | None) -> Any:
    """A node as Python's own types; a tag that nobody knows leaves text."""
    if node is None:
        return None
    if isinstance(node, yaml.ScalarNode) and node.tag == _TEXT_TAG:
        return cast(str, node.value)
    return _Constructor().construct_document(node)  # pyright: ignore[reportUnknownMemberType] - untyped


class _Constructor(yaml.constructor.SafeConstructor):
    """What cannot be a number or a date, or has a tag that nobody knows, is taken as it is written."""

    def construct_or_text(self, node: yaml.Node) -> Any:
        known = cast(Any, yaml.constructor.SafeConstructor.yaml_constructors)[node.tag]
        try:
            return known(self, node)
        except (ValueError, OverflowError):
            return cast(str, node.value)

    def construct_unknown(self, node: yaml.Node) -> Any:
        if isinstance(node, yaml.MappingNode):
            return self.construct_mapping(node, deep=True)  # pyright: ignore[reportUnknownMemberType] - untyped
        if isinstance(node, yaml.SequenceNode):
            return self.construct_sequence(node, deep=True)  # pyright: ignore[reportUnknownMemberType] - untyped
        return cast(str, node.value)


for _name in ("int", "float", "timestamp"):
    cast(Any, _Constructor).add_constructor(f"tag:yaml.org,2002:{_name}", _Constructor.construct_or_text)
cast(Any, _Constructor).add_constructor(None, _Constructor.construct_unknown)
