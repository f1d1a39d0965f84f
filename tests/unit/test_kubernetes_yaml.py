"""YAML as Kubernetes reads it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krm_runner.core import kubernetes_yaml
from krm_runner.core.errors import ConfigurationError


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
        ("a: .nan", "t: nan is no number"),
        ("a: -.inf", "t: -inf is no number"),
        ("a: !!set {x}", "t: a set is nothing that JSON could say"),
        ("a: !!binary aGk=", "t: a bytes is nothing that JSON could say"),
        ("a: !!python/name:os.system x", "t: not valid YAML"),
        ("? [1, 2]\n: x", "t: not valid YAML"),
        ("? !!binary aGk=\n: x", "t: a key must be text"),
        ("&x [*x]", "t: the document is too large or nested too deeply"),
        ("[" * 200 + "]" * 200, "t: the document is too large or nested too deeply"),
        ("[" * 5000 + "]" * 5000, "t: "),
        (
            "\n".join(["a0: &a0 [x]"] + [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]),
            "too large",
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
