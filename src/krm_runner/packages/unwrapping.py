"""A function's ResourceList back into the files of a package: what changed, and nothing else.

A resource that a function did not change keeps its text to the byte, whatever the function's YAML writer does to it.
One that was changed gets its changed values written into the old text, so that comments, order and style stay; only
when the function wrote comments of its own is its text taken. One that loses comments does not make the package lose
them.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from collections.abc import Sequence as AbstractSequence
from dataclasses import dataclass, field
from typing import Any, cast

import yaml

from krm_function.document import Document, as_plain, is_mapping, is_sequence
from krm_function.document import Mapping as DocumentMapping
from krm_function.document import Sequence as DocumentSequence
from krm_function.edits import compose, plain_value, yaml_text
from krm_runner.core.errors import ConfigurationError
from krm_runner.packages.files import PackageFile
from krm_runner.packages.wrapping import INDEX_ANNOTATIONS, PATH_ANNOTATIONS

_OWN_ANNOTATIONS = (*PATH_ANNOTATIONS, *INDEX_ANNOTATIONS, "internal.config.kubernetes.io/seqindent")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*$", re.MULTILINE)
_QUOTED = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|'[^'\n]*'")


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
    items: dict[str, list[_Item]] = {}
    for item in _items(output):
        items.setdefault(item.path, []).append(item)
    written: dict[str, str] = {}
    deleted: list[str] = []
    for path in sorted(sources.keys() | items.keys()):
        source = sources.get(path)
        if path not in items and source and not any(document.is_resource for document in source.documents):
            continue
        text = _file_text(source, items.get(path, []))
        if text is None:
            deleted.append(path)
        elif source is None or text != source.text:
            written[path] = text
    return Changes(written, tuple(deleted))


def unwrap(output: str) -> str:
    """The resources of the function's output as YAML documents."""
    return "---\n".join(item.text for item in _items(output))


def _file_text(source: PackageFile | None, items: list[_Item]) -> str | None:
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
            text = _document_text(document.text, by_index[index])
        # A separator that nothing comes before any more goes with what it separated.
        separator = document.separator if texts or index == 0 else ""
        texts.append(separator + text)
    if not added and not "".join(texts).strip("- \r\n"):
        return None
    for item in added:
        texts.append(("---\n" if texts else "") + item.text)
    return "".join(text if text.endswith("\n") or position == len(texts) - 1 else text + "\n"
                   for position, text in enumerate(texts))  # fmt: skip


def _document_text(old: str, item: _Item) -> str:
    """The new text of a document: the old one if nothing changed, else the old one with the changes in it."""
    document = Document(old)
    before = document.root.plain()
    wanted = _with_empty_annotations_of(before, item.data)
    if before == wanted and _same_types(before, wanted):
        return old
    if _comments(item.text) - _comments(old):
        return item.text
    _merge(document.root, wanted)
    merged = document.render()
    # Should an edit in place ever miss its aim, the function's own text is right.
    return merged if _load(merged) == wanted else item.text


def _with_empty_annotations_of(before: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    """Our own annotations made a mapping where there was an empty one, and took it away again: put it back."""
    metadata = before.get("metadata")
    if not isinstance(metadata, dict):
        return data | ({"metadata": metadata} if "metadata" in before and "metadata" not in data else {})
    empty = cast(dict[str, Any], metadata).get("annotations", ...)
    if empty not in ({}, None):
        return data
    inner = cast(dict[str, Any], data.get("metadata") or {})
    return data | {"metadata": {"annotations": empty} | inner}


def _load(text: str) -> object:
    try:
        return yaml.load(text, Loader=yaml.CSafeLoader)
    except yaml.YAMLError:
        return None


def _merge(target: DocumentMapping, wanted: Mapping[str, Any]) -> None:
    for key in [key for key in target if key not in wanted]:
        del target[key]
    for key, value in wanted.items():
        current = target.get(key)
        if key in target and as_plain(current) == value and _same_types(as_plain(current), value):
            continue
        if isinstance(current, DocumentMapping) and is_mapping(value) and len(value) > 0:
            _merge(current, value)
        elif isinstance(current, DocumentSequence) and is_sequence(value) and _can_merge(current, value):
            for old, new in zip(current, value, strict=True):
                if isinstance(old, DocumentMapping):
                    _merge(old, new)
        else:
            target[key] = value


def _can_merge(current: DocumentSequence, wanted: AbstractSequence[Any]) -> bool:
    """Entry by entry: as many as before, and only mappings differ."""
    return len(current) == len(wanted) and all(
        (isinstance(old, DocumentMapping) and is_mapping(new) and len(new) > 0) or as_plain(old) == new
        for old, new in zip(current, wanted, strict=True)
    )


def _same_types(left: object, right: object) -> bool:
    """Equal is not enough: 1 and True are equal."""
    if is_mapping(left) and is_mapping(right):
        return all(_same_types(left[key], right[key]) for key in left)
    if is_sequence(left) and is_sequence(right):
        return all(map(_same_types, left, right))
    return isinstance(left, bool) == isinstance(right, bool)


def _comments(text: str) -> Counter[str]:
    return Counter(comment.strip() for comment in _COMMENT.findall(_QUOTED.sub('""', text)))


# --- the function's output ----------------------------------------------------------------------------------------


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
    while end > 0:
        start = output.rfind("\n", 0, end) + 1
        line = output[start:end].strip()
        if not line.startswith("#"):
            break
        comments.insert(0, line)
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
    return path, int(index) if index.isdigit() else -1


def _new_path(data: Mapping[str, Any]) -> str:
    """Where a new resource goes that names no file."""
    metadata = data.get("metadata")
    name = str(cast(dict[str, Any], metadata).get("name", "")) if isinstance(metadata, dict) else ""
    stem = f"{data.get('kind', 'resource')}_{name or 'unnamed'}".lower()
    return re.sub(r"[^a-z0-9_.-]", "-", stem) + ".yaml"
