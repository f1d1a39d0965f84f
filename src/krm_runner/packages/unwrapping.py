"""A function's ResourceList back into the files of a package: what changed, and nothing else.

What a function returned is compared with what it was given. A resource that it did not change keeps its text to the
byte, whatever the function's YAML writer does to it. One that was changed gets its changes written into the old text,
so that comments, order and style stay; only when the function wrote comments of its own, or kept some that the old text
would lose, is its text taken. One that loses comments does not make the package lose them.
"""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, field
from typing import Any, cast

import yaml

from krm_function.document import Document, is_mapping, is_sequence
from krm_function.document import Mapping as DocumentMapping
from krm_function.document import Sequence as DocumentSequence
from krm_function.edits import compose, plain_value, yaml_text
from krm_runner.core.errors import ConfigurationError
from krm_runner.packages.files import PackageFile
from krm_runner.packages.wrapping import INDEX_ANNOTATIONS, PATH_ANNOTATIONS, as_item, marked, to_resource_list

_OWN_ANNOTATIONS = (*PATH_ANNOTATIONS, *INDEX_ANNOTATIONS, "internal.config.kubernetes.io/seqindent")
_DIRECTIVES = re.compile(r"^%[^\n]*", re.MULTILINE)
_Origin = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Changes:
    """What to write and what to delete, by path in the package."""

    written: dict[str, str] = field(default_factory=dict[str, str])
    deleted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Item:
    """A resource of the function's output: where it belongs, what it says, and how the function wrote it."""

    path: str
    index: int
    data: dict[str, Any]
    text: str


def to_changes(files: Iterable[PackageFile], output: str) -> Changes:
    """Compare the function's output with the files that it was given."""
    sources = {file.path: file for file in files}
    sent = dict(_data(to_resource_list(sources.values(), None)))
    items: dict[str, list[_Item]] = {}
    for item in _items(output):
        items.setdefault(item.path, []).append(item)
    written: dict[str, str] = {}
    deleted: list[str] = []
    for path in sorted(sources.keys() | items.keys()):
        source = sources.get(path)
        if path not in items and source and not any(document.is_resource for document in source.documents):
            continue
        text = _file_text(source, items.get(path, []), sent)
        if text is None:
            deleted.append(path)
        elif source is None or text != source.text:
            written[path] = text
    return Changes(written, tuple(deleted))


def unwrap(output: str) -> str:
    """The resources of the function's output as YAML documents."""
    return "---\n".join(item.text for item in _items(output))


def _file_text(source: PackageFile | None, items: list[_Item], sent: Mapping[_Origin, dict[str, Any]]) -> str | None:
    """The file's new text; None when nothing is left in it."""
    by_index: dict[int, _Item] = {}
    added: list[_Item] = []
    documents = source.documents if source else ()
    for item in items:
        known = 0 <= item.index < len(documents) and documents[item.index].is_resource
        if known and item.index not in by_index:
            by_index[item.index] = item
        else:
            added.append(item)
    texts: list[str] = []
    for index, document in enumerate(documents):
        text = document.text
        if document.is_resource:
            if index not in by_index:
                continue
            text = _document_text(document.text, by_index[index], sent[by_index[index].path, index])
        # A separator that nothing comes before any more goes with what it separated.
        separator = document.separator if texts or index == 0 else ""
        if separator.endswith((" ", "\t")) and index in by_index and text is by_index[index].text:
            # The document began on the line of its marker, where the function's own text may not.
            separator = separator.rstrip(" \t") + "\n"
        texts.append(separator + text)
    if not added and not _DIRECTIVES.sub("", "".join(texts)).strip("- \r\n"):
        return None
    for item in added:
        texts.append(("---\n" if texts else "") + item.text)
    return "".join(text if text.endswith("\n") or position == len(texts) - 1 else text + "\n"
                   for position, text in enumerate(texts))  # fmt: skip


def _document_text(old: str, item: _Item, sent: dict[str, Any]) -> str:
    """The new text of a document: the old one if nothing changed, else the old one with the changes in it."""
    if item.data == sent and _same_types(item.data, sent):
        return old
    if _comments(item.text) - _comments(old):
        return item.text
    document = Document(old)
    _merge(document.root, item.data, sent)
    merged = document.render()
    # Should an edit in place ever miss its aim, or lose what the function has kept, the function's own text is right.
    if _comments(item.text) - _comments(merged) or not _says(merged, item):
        return item.text
    return merged


def _says(text: str, item: _Item) -> bool:
    """Whether the function, given this text, would be given what it has returned."""
    try:
        return [data for _, data in _data("items:\n" + as_item(marked(text, item.path, item.index)))] == [item.data]
    except (ValueError, yaml.YAMLError, ConfigurationError):
        return False


def _load(text: str) -> object:
    try:
        return plain_value(compose(text))
    except yaml.YAMLError:
        return None


def _merge(target: DocumentMapping, wanted: Mapping[str, Any], sent: Mapping[str, Any]) -> None:
    """Change what the function has changed of what it was given. What it was not given stays."""
    for key in [key for key in target if key in sent and key not in wanted]:
        del target[key]
    for key, value in wanted.items():
        before = sent.get(key)
        if key in sent and before == value and _same_types(before, value):
            continue
        current = target.get(key)
        if isinstance(current, DocumentMapping) and is_mapping(before) and is_mapping(value) and len(value) > 0:
            _merge(current, value, before)
        elif (
            isinstance(current, DocumentSequence)
            and is_sequence(before)
            and is_sequence(value)
            and _can_merge(current, before, value)
        ):
            for old, was, new in zip(list(current), before, value, strict=False):
                if isinstance(old, DocumentMapping):
                    _merge(old, new, was)
            for new in value[len(before) :]:
                current.append(new)
        else:
            target[key] = value


def _can_merge(current: DocumentSequence, sent: AbstractSequence[Any], wanted: AbstractSequence[Any]) -> bool:
    """Entry by entry: at least as many as before, and of the old ones only mappings differ."""
    return 0 < len(current) == len(sent) <= len(wanted) and all(
        (isinstance(old, DocumentMapping) and is_mapping(was) and is_mapping(new) and len(new) > 0) or was == new
        for old, was, new in zip(current, sent, wanted, strict=False)
    )


def _same_types(left: object, right: object) -> bool:
    """Equal is not enough: 1 and True are equal."""
    if is_mapping(left) and is_mapping(right):
        return all(_same_types(left[key], right[key]) for key in left)
    if is_sequence(left) and is_sequence(right):
        return all(map(_same_types, left, right))
    return isinstance(left, bool) == isinstance(right, bool)


def _comments(text: str) -> Counter[str]:
    """What stands between the tokens; a # inside of a text is none."""
    found: Counter[str] = Counter()
    position = 0
    tokens = cast("Iterator[yaml.Token]", yaml.scan(text, Loader=yaml.CSafeLoader))  # pyright: ignore[reportUnknownMemberType] - untyped
    for token in tokens:
        found.update(comment.strip() for comment in re.findall("#.*", text[position : token.start_mark.index]))
        position = max(position, token.end_mark.index)
    return found


# --- the function's output ----------------------------------------------------------------------------------------


def _data(text: str) -> Iterator[tuple[_Origin, dict[str, Any]]]:
    """The items of a list, by where they come from."""
    for node in _item_nodes(compose(text)):
        data = cast(dict[str, Any], plain_value(node))
        yield _take_origin(data), data


def _items(output: str) -> Iterator[_Item]:
    try:
        root = compose(output)
    except yaml.YAMLError as error:
        raise ConfigurationError(f"the function's output is not valid YAML: {' '.join(str(error).split())}") from error
    for node in _item_nodes(root):
        data = cast(dict[str, Any], plain_value(node))
        path, index = _take_origin(data)
        yield _Item(path or _new_path(data), index, data, _item_text(output, node, data))


def _item_nodes(root: yaml.Node | None) -> list[yaml.MappingNode]:
    if isinstance(root, yaml.MappingNode):
        for key, value in cast(list[tuple[yaml.Node, yaml.Node]], root.value):
            if key.value == "items" and isinstance(value, yaml.SequenceNode):
                return [node for node in cast(list[yaml.Node], value.value) if isinstance(node, yaml.MappingNode)]
    return []


def _item_text(output: str, node: yaml.MappingNode, data: dict[str, Any]) -> str:
    """The text of an item as a document of its own, with the comments above it and without our annotations."""
    if not node.flow_style:
        column = node.start_mark.column
        lines = (" " * column + output[node.start_mark.index : node.end_mark.index]).split("\n")
        own = [line[column:] for line in lines if not line.strip() or line.startswith(" " * column)]
        text = "\n".join([*_comments_above(output, node), *own]).rstrip() + "\n"
        try:
            document = Document(text)
        except (ValueError, yaml.YAMLError):
            return yaml_text(data) + "\n"
        _take_origin(document.root)
        text = document.render()
        if _load(text) == data:
            return text
    return yaml_text(data) + "\n"


def _comments_above(output: str, node: yaml.Node) -> list[str]:
    """Comment lines right above the item's dash."""
    comments: list[str] = []
    dash = output.rindex("-", 0, node.start_mark.index)
    end = output.rfind("\n", 0, dash)
    indent = output[end + 1 : dash]
    while end > 0:
        start = output.rfind("\n", 0, end) + 1
        line = output[start:end]
        if not line.startswith(indent + "#"):
            break
        comments.insert(0, line.strip())
        end = start - 1
    return comments


def _take_origin(resource: MutableMapping[str, Any]) -> tuple[str, int]:
    """Path and index of a resource, whose annotations are taken out again."""
    metadata = resource.get("metadata")
    if not is_mapping(metadata):
        return "", -1
    annotations = metadata.get("annotations")
    if not is_mapping(annotations):
        return "", -1
    found = {name: str(annotations.pop(name)) for name in _OWN_ANNOTATIONS if name in annotations}
    if found and not annotations:
        del metadata["annotations"]
        if not metadata:
            del resource["metadata"]
    path = next((found[name] for name in reversed(PATH_ANNOTATIONS) if name in found), "")
    index = next((found[name] for name in reversed(INDEX_ANNOTATIONS) if name in found), "")
    if path.startswith("/") or ".." in path.split("/"):
        raise ConfigurationError(f'the function wants to write to "{path}", outside of the package')
    path = posixpath.normpath(path) if path else ""
    if any(part.startswith(".") for part in path.split("/")):
        raise ConfigurationError(f'the function wants to write to "{path}": hidden files are no part of a package')
    return path, int(index) if index.isdigit() else -1


def _new_path(data: Mapping[str, Any]) -> str:
    """Where a new resource goes that names no file."""
    metadata = data.get("metadata")
    name = str(cast(dict[str, Any], metadata).get("name", "")) if isinstance(metadata, dict) else ""
    stem = f"{data.get('kind', 'resource')}_{name or 'unnamed'}".lower()
    return re.sub(r"[^a-z0-9_.-]", "-", stem) + ".yaml"
