"""YAML as Kubernetes reads it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krm_runner.core import kubernetes_yaml
from krm_runner.core.errors import ConfigurationError

ALIASES_IN_ALIASES = "\n".join(
    f"a{level}: &a{level} {'[' * 97}{f'*a{level - 1}' if level else 'x'}{']' * 97}" for level in range(30)
)
"""Each is 97 levels deep as it is written, and deeper by the one before."""


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2020-01-01", "2020-01-01"),
        ("12:30", "12:30"),
        ("190:20:30.15", "190:20:30.15"),
        ("yes", True),
        ("true", True),
        ("0644", 0o644),
        ("0x1F", 31),
        ("9446", 9446),
        ("-1.5", -1.5),
        ("1e3", 1000.0),
        ("1.2.3", "1.2.3"),
        ("100m", "100m"),
        ("~", None),
        ("", None),
        ("-0b101", -5),
        ("1_000", 1000),
        ("!!str 5", "5"),
        ("!!int 5", 5),
        ("!!float 5", 5.0),
        ("! 5", "5"),
        ("a: {<<: [{b: 1, c: 1}, {b: 2, d: 2}], c: 3}", {"a": {"b": 1, "c": 3, "d": 2}}),
        ("{2: a, true: b, 1.5: c, ~: d}", {"2": "a", "true": "b", "1.5": "c", "": "d"}),
        ("a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}", {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}}),
    ],
)
def test_values(text: str, value: object) -> None:
    assert kubernetes_yaml.load(text, source="t") == value
    assert type(kubernetes_yaml.load(text, source="t")) is type(value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [", "t: not valid YAML"),
        ("a: .nan", "t: line 1, column 4: .nan is no number"),
        ("a: -.inf", "-.inf is no number"),
        ("a: 1e999", "1e999 is no number"),
        ("a: " + "1" * 5000, "more than 400 digits"),
        ("a: !!set {x}", "the tag !!set is not supported"),
        ("a: !!binary aGk=", "the tag !!binary is not supported"),
        ("a: !!timestamp x", "the tag !!timestamp is not supported"),
        ("a: !!bool x", '"x" is not what its tag !!bool says'),
        ("a: !!int ''", '"" is not what its tag !!int says'),
        ("a: !!float ''", '"" is not what its tag !!float says'),
        ('a: "\\ud800"', "not valid YAML"),
        ("a: !!python/name:os.system x", "the tag !!python/name:os.system is not supported"),
        ("a: !mine x", "the tag !mine is not supported"),
        ("? [1, 2]\n: x", "a key must be text"),
        ("a: 1\n--- \nb: 2", "there is a second document"),
        ("a: {<<: 3}", "a merge key takes a mapping"),
        ("&x [*x]", "the alias *x refers to nothing before it, or to itself"),
        ("[" * 200 + "]" * 200, "nested deeper than 100 levels"),
        (ALIASES_IN_ALIASES, "line 2, column 106: it is nested deeper than 100 levels"),
        ("[" * 5000 + "]" * 5000, "nested deeper than 100 levels"),
        (
            "\n".join(["a0: &a0 [x]"] + [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]),
            "more than 100000 values",
        ),
    ],
)
def test_what_is_refused_is_one_line(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        kubernetes_yaml.load(text, source="t")
    assert why in str(refusal.value)
    assert "\n" not in str(refusal.value)


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("ab1:-. é"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc1", max_size=4), inner, max_size=4),
)


@given(_json)
def test_json_is_read_as_what_it_is(value: object) -> None:
    assert kubernetes_yaml.load(json.dumps(value), source="t") == value


def test_scalars_as_text() -> None:
    assert [kubernetes_yaml.text_of(value) for value in (True, False, 3, 1.5, "x", None)] == [
        "true", "false", "3", "1.5", "x", "",
    ]  # fmt: skip
    assert kubernetes_yaml.text_of([]) is kubernetes_yaml.text_of({}) is None
