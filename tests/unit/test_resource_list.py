"""The envelope check: what it accepts at a glance, what a full parse says, and that the two never disagree."""

from __future__ import annotations

import contextlib
import json
import re
from typing import Any, cast

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from krm_runner.core.resource_list import NotAResourceListError, parse, recognise

HEAD = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\n"


def nothing(_loader: object, _node: object) -> None:
    return None


class ReferenceLoader(yaml.CBaseLoader):
    """Knows text, and null."""


NULL = "tag:yaml.org,2002:null"
cast(Any, ReferenceLoader).add_implicit_resolver(NULL, re.compile("^(~|null|Null|NULL|)$"), ["~", "n", "N", ""])
ReferenceLoader.add_constructor(NULL, nothing)


def reference_verdict(data: bytes) -> bool | None:
    """The verdict of a parser that builds the whole document: None when it finds the text malformed."""
    try:
        documents: list[Any] = [d for d in yaml.load_all(data, Loader=ReferenceLoader) if d not in (None, "")]
    except (yaml.YAMLError, UnicodeDecodeError):
        return None
    if len(documents) != 1 or not isinstance(documents[0], dict):
        return False
    fields = cast(dict[str, object], documents[0])
    kind, api_version = fields.get("kind"), fields.get("apiVersion")
    return kind == "ResourceList" and (
        api_version is None or (isinstance(api_version, str) and api_version.startswith("config.kubernetes.io/"))
    )


def full_verdict(data: bytes) -> bool:
    try:
        parse(data)
    except NotAResourceListError:
        return False
    return True


GLANCED = [
    HEAD,
    HEAD + "items: []\n",
    HEAD + "items:\n- a: 1\n-\n  b: 2\n",
    HEAD + "items:\n  - a: 1\n",
    "# c\n\n---\n# d\n" + HEAD,
    "\ufeff" + HEAD,
    HEAD.replace("\n", "\r\n"),
    "kind: 'ResourceList'\napiVersion: \"config.kubernetes.io/v1\"\n",
    "apiVersion: config.kubernetes.io/v1 # why\nkind: ResourceList   # why not\n\n\nitems: []\n",
    "apiVersion: config.kubernetes.io/v1\nitems:\n- kind: Other\nkind: ResourceList",
    HEAD + "text: |\n  kind: Other\n\n  more\nlast: >-\n  folded\n",
    HEAD + "functionConfig:\n  data: {a: [1,\n    2]}\n",
    HEAD + "long: a text that\n  goes on\n",
    '{"kind":"ResourceList"}',
    ' {"items":[1,2,{"kind":"Other"}],"kind":"ResourceList"}\n',
]


@pytest.mark.parametrize("text", GLANCED)
def test_common_shapes_are_recognised_without_a_full_parse(text: str) -> None:
    assert recognise(text.encode()) is not None
    assert full_verdict(text.encode())


PARSED = [
    "  apiVersion: config.kubernetes.io/v1\n  kind: ResourceList\n",
    '"kind": ResourceList\n',
    HEAD + "---\n",
    HEAD + "...\n",
    "%YAML 1.1\n---\n" + HEAD,
    "kind: &a ResourceList\n",
    "a: &a ResourceList\nkind: *a\n",
    "kind: !!str ResourceList\n",
    "? kind\n: ResourceList\n",
    "{kind: ResourceList}\n",
    HEAD + 'text: "a\nb"\n',
    HEAD.replace("\n", "\r"),
    HEAD + 'name: "a\u2028b"\n',
    "kind: ResourceList\n  # a comment\nitems: []\n",
    "kind:\n  ResourceList\n",
    "<<: {kind: ResourceList}\n",
    "base: &b {kind: ResourceList}\n<<: *b\n",
    "base: &b {kind: Other}\n<<: [{kind: ResourceList}, *b]\n",
    HEAD + "--- ~\n",
    HEAD + "---\nnull\n",
    "kind: ResourceList\napiVersion:\n",
    "kind: ResourceList\napiVersion: ~\n",
]


@pytest.mark.parametrize("text", PARSED)
def test_rare_shapes_are_left_to_the_full_parse_which_accepts_them(text: str) -> None:
    assert recognise(text.encode()) is None
    assert full_verdict(text.encode())


REFUSED = {
    "": "it is empty",
    "# only this\n": "it is empty",
    "---\n---\n": "it is empty",
    "text\n": "it is plain text, not a mapping",
    "- a\n": "it is a list, not a mapping",
    "apiVersion: v1\n": "it has no kind",
    "kind:\n": "it has no kind",
    "kind: List\n": 'its kind is "List", not ResourceList',
    "kind: [ResourceList]\n": 'its kind is ["ResourceList"], not ResourceList',
    "kind: ResourceList\napiVersion: v1\n": 'its apiVersion is "v1", not one of config.kubernetes.io/',
    HEAD + "---\na: 1\n": "it has 2 YAML documents, not one",
    'kind: "ResourceList "\n': 'its kind is "ResourceList ", not ResourceList',
    "<<: {kind: ResourceList}\nkind: Other\n": 'its kind is "Other", not ResourceList',
    "kind: ~\n": "it has no kind",
    "base: &b {kind: Other}\n<<: *b\n": 'its kind is "Other", not ResourceList',
    "x: " + "[" * 2000 + "]" * 2000 + "\n" + HEAD: "it is nested deeper than 1000 levels",
    '{"kind":"List"}': 'its kind is "List", not ResourceList',
    HEAD + "\tx: 1\n": "yaml: line 3",
    HEAD + "oops\n": "yaml: line 4",
    HEAD + "a: [1\n": "yaml: line 4",
    HEAD + "a: b\n- c\n": "yaml: line 4",
}


@pytest.mark.parametrize(("text", "why"), REFUSED.items())
def test_refusals_say_why(text: str, why: str) -> None:
    assert recognise(text.encode()) is None
    with pytest.raises(NotAResourceListError) as refusal:
        parse(text.encode())
    assert str(refusal.value).startswith(why)


def test_invalid_utf8_is_refused() -> None:
    data = HEAD.encode() + b"a: \xff\n"
    assert recognise(data) is None
    with pytest.raises(NotAResourceListError):
        parse(data)


def test_results_are_found_by_both_ways() -> None:
    text = HEAD + "results:\n- message: m\n  severity: error\nitems: []\n"
    for envelope in (
        recognise(text.encode()),
        parse(text.encode()),
        recognise(json.dumps(yaml.safe_load(text)).encode()),
    ):
        assert envelope is not None
        assert [str(result) for result in envelope.results] == ["[error] m"]


def test_deeply_nested_results_do_no_harm() -> None:
    deep = b"kind: ResourceList\nresults: " + b"[" * 900 + b"]" * 900 + b"\n"
    assert parse(deep).results == ()
    assert recognise(deep) is None
    deeper = b"kind: ResourceList\nresults:\n- " + b"[" * 30000 + b"error" + b"]" * 30000 + b"\n"
    envelope = recognise(deeper)
    assert envelope is not None
    assert envelope.results == ()
    with pytest.raises(NotAResourceListError):
        parse(deeper)


@pytest.mark.parametrize(
    "data",
    [
        b"\n" * 2_000_000,
        b"#\n" * 1_000_000,
        b"kind: ResourceList" + b"\n \t" * 500_000 + b"x",
        b"kind: a" + b" " * 2_000_000 + b":",
        b"kind: ResourceList\n" + b"-\n" * 1_000_000,
        b"kind: ResourceList\na: b" + b"\n\n" * 1_000_000 + b"- c\n",
        b"x: " + b"[" * 2_000_000,
    ],
    ids=["newlines", "comments", "blanks", "spaces", "dashes", "entry", "brackets"],
)
def test_hostile_output_is_looked_at_once(data: bytes) -> None:
    """Patterns that go back and forth over two megabytes would not end in anybody's lifetime."""
    assert recognise(data) is None
    with pytest.raises(NotAResourceListError):
        parse(data)


@pytest.mark.parametrize("entry", ["{{<<: [*a{0}, *a{0}]}}", "[*a{0}, *a{0}]", "{{x: *a{0}, y: *a{0}}}"])
def test_aliases_that_stand_for_more_than_any_memory_holds_are_not_followed(entry: str) -> None:
    levels = "".join(f"a{level}: &a{level} {entry.format(level - 1)}\n" for level in range(1, 200))
    for end in ("<<: *a199\nkind: ResourceList\n", "b: &b {kind: *a199}\n<<: *b\n", "b: &b {results: *a199}\n<<: *b\n"):
        with contextlib.suppress(NotAResourceListError):
            parse(f"a0: &a0 {{x: y}}\n{levels}{end}".encode())


def test_a_parse_that_nobody_waits_for_ends() -> None:
    data = HEAD.encode() + b"items:\n" + b"- a: b\n" * 1000
    assert parse(data, is_cancelled=lambda: False).results == ()
    with pytest.raises(NotAResourceListError, match="nobody waits"):
        parse(data, is_cancelled=lambda: True)


# --- properties -------------------------------------------------------------------------------------------------

scalars = st.one_of(
    st.text(max_size=12),
    st.integers(),
    st.booleans(),
    st.none(),
    st.sampled_from(["ResourceList", "kind: ResourceList"]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=6), inner, max_size=3)),
)
keys = st.sampled_from(["apiVersion", "kind", "items", "results", "functionConfig", "other"])
documents = st.dictionaries(
    keys,
    st.one_of(values, st.sampled_from(["ResourceList", "config.kubernetes.io/v1", "Deployment", "v1"])),
    max_size=6,
)
styles: Any = st.fixed_dictionaries(
    {
        "default_flow_style": st.sampled_from([True, False, None]),
        "default_style": st.sampled_from([None, '"', "'"]),
        "indent": st.sampled_from([2, 4]),
        "width": st.sampled_from([20, 80]),
        "allow_unicode": st.booleans(),
        "explicit_start": st.booleans(),
        "explicit_end": st.booleans(),
        "sort_keys": st.booleans(),
        "line_break": st.sampled_from(["\n", "\r\n", "\r"]),
    }
)


@given(documents, styles)
@example({"kind": "ResourceList", "apiVersion": None}, {"default_flow_style": True})
@example({"kind": "ResourceList", "apiVersion": "null"}, {"default_flow_style": False})
def test_well_formed_documents_get_the_verdict_of_a_full_parse(document: dict[str, Any], style: dict[str, Any]) -> None:
    data = cast(bytes, yaml.safe_dump(document, encoding="utf-8", **style))
    expected = reference_verdict(data)
    assert full_verdict(data) == expected
    if recognise(data) is not None:
        assert expected


@given(documents)
def test_json_gets_its_verdict(document: dict[str, Any]) -> None:
    data = json.dumps(document).encode()
    accepted = document.get("kind") == "ResourceList" and (
        document.get("apiVersion") is None or str(document["apiVersion"]).startswith("config.kubernetes.io/")
    )
    assert (recognise(data) is not None) == full_verdict(data) == accepted


lines = st.sampled_from(
    [
        "apiVersion: config.kubernetes.io/v1", "kind: ResourceList", "kind: Deployment", "kind: ResourceList # c",
        "  kind: ResourceList", "kind:", "  ResourceList", "items:", "- a: b", "-", "- |", "  text", "---", "...",
        "# c", "", " ", "text: |", "text: >", 'q: "', '"', ' "', "{", "}", "[]", "a: [", "]", " ]", "a: b: c", "word",
        "'kind': ResourceList", "? kind", ": ResourceList", "%YAML 1.1", "a: 'it''s'", "&a b: c", "k\u00e9y: v",
        "\tx: y", "- kind: ResourceList", "a: {}",
    ]
)  # fmt: skip


@given(st.lists(lines, max_size=8), st.sampled_from(["\n", "\r\n"]), st.booleans())
@example(["apiVersion: config.kubernetes.io/v1", 'q: "', "kind: ResourceList", ' "', "kind: Deployment"], "\n", True)
def test_odd_lines_never_make_a_full_parse_say_otherwise(parts: list[str], line_break: str, ends: bool) -> None:
    data = (line_break.join(parts) + (line_break if ends else "")).encode()
    expected = reference_verdict(data)
    if expected is not None:
        assert full_verdict(data) == expected
    if recognise(data) is not None:
        # A yes at a glance is the verdict of a full parse, unless that finds damage, which may pass.
        assert expected in (True, None)


@given(st.binary(max_size=200))
def test_no_bytes_raise_anything_else(data: bytes) -> None:
    recognise(data)
    full_verdict(data)
