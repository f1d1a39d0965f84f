"""Documents that are changed in place: the data changes as asked, and the rest of the text stays as it is."""

from __future__ import annotations

import copy
import json
from typing import Any, cast

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from krm_function.document import Document, Sequence, is_mapping, is_sequence

TEXT = """\
# head
apiVersion: apps/v1 # version
kind: Deployment
metadata:
  name: web # kept
  labels: {}
  annotations:   # why
    a: "1"
    b: two

  # foot of metadata
spec:
  empty:
  text: |
    hello
    world
  containers:
  # the first
  - name: nginx # c
    image: 'nginx:1'
    args: ["a", "b"]
  - image: busybox
    name: bb
  flow: {x: 1, y: [2, 3]}
# end
"""


def changed(path: str, value: object) -> list[tuple[str, str]]:
    """The lines that differ after a value is set."""
    document = Document(TEXT)
    *parents, last = path.split(".")
    target: Any = document.root
    for key in parents:
        target = target[int(key) if isinstance(target, Sequence) else key]
    if value is ...:
        del target[last]
    else:
        target[last] = value
    result = document.render()
    assert yaml.safe_load(result) == document.root.plain()
    before, after = TEXT.splitlines(), result.splitlines()
    return [("-", line) for line in before if line not in after] + [("+", line) for line in after if line not in before]


@pytest.mark.parametrize(
    ("path", "value", "difference"),
    [
        ("metadata.name", "shop", [("-", "  name: web # kept"), ("+", "  name: shop # kept")]),
        ("metadata.name", "web", []),
        ("metadata.namespace", "x", [("+", "  namespace: x")]),
        ("metadata.namespace", "1", [("+", "  namespace: '1'")]),
        ("metadata.annotations.a", "2", [("-", '    a: "1"'), ("+", '    a: "2"')]),
        ("metadata.annotations.b", ..., [("-", "    b: two")]),
        ("metadata.annotations", ..., [("-", "  annotations:   # why"), ("-", '    a: "1"'), ("-", "    b: two")]),
        ("metadata.labels.app", "web", [("-", "  labels: {}"), ("+", "  labels:"), ("+", "    app: web")]),
        ("spec.empty", 5, [("-", "  empty:"), ("+", "  empty: 5")]),
        ("spec.empty", {"a": []}, [("+", "    a: []")]),
        ("spec.text", "one", [("-", "  text: |"), ("-", "    hello"), ("-", "    world"), ("+", "  text: one")]),
        ("spec.containers.0.image", "it's", [("-", "    image: 'nginx:1'"), ("+", "    image: 'it''s'")]),
        ("spec.containers.1.image", ..., [("-", "  - image: busybox"), ("-", "    name: bb"), ("+", "  - name: bb")]),
        ("spec.flow.x", "s", [("-", "  flow: {x: 1, y: [2, 3]}"), ("+", '  flow: {x: "s", y: [2, 3]}')]),
        ("spec.flow.z", True, [("-", "  flow: {x: 1, y: [2, 3]}"), ("+", '  flow: {x: 1, y: [2, 3], "z": true}')]),
        ("spec.flow.x", ..., [("-", "  flow: {x: 1, y: [2, 3]}"), ("+", "  flow: {y: [2, 3]}")]),
        ("spec.flow.y", ..., [("-", "  flow: {x: 1, y: [2, 3]}"), ("+", "  flow: {x: 1}")]),
    ],
)  # fmt: skip
def test_a_change_touches_its_own_lines(path: str, value: object, difference: list[tuple[str, str]]) -> None:
    assert changed(path, value) == difference


def test_an_unchanged_document_is_the_same_to_the_byte() -> None:
    document = Document(TEXT)
    document.root.plain()
    assert document.render() == TEXT


def test_entries_are_appended_and_removed_with_their_comments() -> None:
    document = Document(TEXT)
    containers = document.root["spec"]["containers"]
    containers.append({"name": "third", "ports": [1]})
    containers.remove(containers[0])
    lines = document.render().splitlines()
    start = lines.index("  containers:")
    assert lines[start + 1 : start + 7] == [
        "  - image: busybox", "    name: bb", "  - name: third", "    ports:", "    - 1", "  flow: {x: 1, y: [2, 3]}",
    ]  # fmt: skip


def test_the_last_key_and_its_parent_can_grow_at_once() -> None:
    document = Document("a:\n  b:\n    c: 1 # c\n")
    document.root["a"]["b"]["d"] = 2
    document.root["a"]["e"] = 3
    document.root["f"] = 4
    assert document.render() == "a:\n  b:\n    c: 1 # c\n    d: 2\n  e: 3\nf: 4\n"


def test_what_is_emptied_and_what_is_filled() -> None:
    document = Document("a:\n  b: 1\nc: []\nd: {}\n")
    del document.root["a"]["b"]
    document.root["c"].append("x")
    document.root["d"].update({"y": {"z": "1"}})
    assert document.render() == "a: {}\nc:\n- x\nd:\n  y:\n    z: '1'\n"


def test_aliases_are_replaced_where_they_stand_and_anchors_stay() -> None:
    document = Document("a: &x one\nb: *x\nc: {k: *x}\n")
    assert document.root["b"] == "one"
    document.root["b"] = "two"
    assert document.render() == "a: &x one\nb: two\nc: {k: *x}\n"
    document.root["a"] = "three"
    assert document.render() == "a: &x three\nb: two\nc: {k: *x}\n"


def test_a_text_without_a_line_break_at_its_end() -> None:
    document = Document("a: 1")
    document.root["b"] = 2
    assert document.render() == "a: 1\nb: 2"


def test_json_stays_json() -> None:
    document = Document('{"kind": "X", "metadata": {"name": "a"}, "list": []}')
    document.root["metadata"]["labels"] = {"a": "b"}
    document.root["list"].append({"c": 1})
    document.root["new"] = None
    assert json.loads(document.render()) == document.root.plain()


@pytest.mark.parametrize("text", ["", "- a\n", "text\n", "a: [\n"])
def test_what_is_no_mapping_is_refused(text: str) -> None:
    with pytest.raises((ValueError, yaml.YAMLError)):
        Document(text)


def test_entries_are_removed_by_what_they_are() -> None:
    document = Document('a: [p, q]\nb:\n- "d"\n- ~\n- |\n  text\n  # no comment\n- e\n')
    document.root["a"].remove("p")
    document.root["a"].remove("q")
    document.root["b"].remove(None)
    document.root["b"].remove("e")
    with pytest.raises(ValueError, match="not in list"):
        document.root["b"].remove("x")
    assert document.render() == 'a: []\nb:\n- "d"\n- |\n  text\n  # no comment\n'


@pytest.mark.parametrize("value", ["a\rb", "a\x85b", "a\x7fb", "a\x01b", "\u2028", "\ufeff", "it's", "\U0001f600"])
@pytest.mark.parametrize("old", ["plain", "'single'", '"double"'])
def test_any_text_is_written_so_that_it_is_read_again(old: str, value: str) -> None:
    document = Document(f"a: {old}\n")
    document.root["a"] = value
    assert yaml.safe_load(document.render()) == {"a": value}


# --- properties ---------------------------------------------------------------------------------------------------

names = st.sampled_from(["a", "b", "c", "app.kubernetes.io/name", "on", "1"])
scalars = st.one_of(
    st.text("ab:#-'\"{[ \n\té", max_size=6),
    st.integers(-5, 5),
    st.booleans(),
    st.none(),
    st.sampled_from(["true", "0x1"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=8,
)
roots = st.dictionaries(names, values, min_size=1, max_size=4)
operations = st.lists(
    st.tuples(st.lists(st.integers(0, 5), max_size=3), st.sampled_from(["set", "delete", "append"]), names, values),
    max_size=5,
)
styles = st.fixed_dictionaries(
    {"default_flow_style": st.sampled_from([False, None, True]), "indent": st.sampled_from([2, 4])}
)


def collections_in(value: Any) -> list[Any]:
    """The value and all collections in it, in an order that does not depend on that of keys."""
    if is_mapping(value):
        return [value, *(found for key in sorted(value) for found in collections_in(value[key]))]
    if is_sequence(value):
        return [value, *(found for inner in value for found in collections_in(inner))]
    return []


@given(roots, operations, styles)
def test_any_changes_give_the_data_that_a_plain_dict_would_have(
    root: dict[str, Any], changes: list[tuple[list[int], str, str, Any]], style: dict[str, Any]
) -> None:
    text = cast(str, yaml.safe_dump(root, allow_unicode=True, sort_keys=False, **style))
    document, model = Document(text), copy.deepcopy(root)
    for path, operation, name, value in changes:
        choice = sum(path)
        ours, theirs = collections_in(document.root), collections_in(model)
        mine, reference = ours[choice % len(ours)], theirs[choice % len(theirs)]
        if is_sequence(reference):
            if operation == "append":
                mine.append(copy.deepcopy(value))
                theirs[choice % len(theirs)].append(copy.deepcopy(value))
        elif operation == "delete":
            if name in reference and len(model) > 1:
                del mine[name]
                del reference[name]
        else:
            mine[name] = copy.deepcopy(value)
            reference[name] = copy.deepcopy(value)
    assert document.root.plain() == model
    assert yaml.safe_load(document.render()) == model
