"""The exec runtime's configuration file."""

from __future__ import annotations

import pytest

from krm_runner.core.errors import ConfigurationError
from krm_runner.core.function_table import FunctionTable, parse
from krm_runner.core.image_ref import parse as image

PREFIX = "ghcr.io/kptdev/krm-functions-catalog"
SHA = "sha256:" + "0f" * 32


def table(text: str) -> FunctionTable:
    return parse(text.encode(), source="config.yaml", default_prefix=PREFIX)


def test_images_find_their_executable_by_any_spelling() -> None:
    found = table(
        f"""
        functions:
        - function: set-namespace
          images:
          - {PREFIX}/set-namespace:v0.4.1
          - {PREFIX}/set-namespace@{SHA}
        - function: starlark
          images: [gcr.io/kpt-fn/starlark:v0.4]
        """
    )
    assert found.find(image("set-namespace:v0.4.1", default_prefix=PREFIX)) == "set-namespace"
    assert found.find(image(f"set-namespace:any@{SHA}", default_prefix=PREFIX)) == "set-namespace"
    assert found.find(image("gcr.io/kpt-fn/starlark:v0.4")) == "starlark"
    assert found.find(image("gcr.io/kpt-fn/starlark:v0.5")) is None
    assert found.warnings == ()


def test_a_duplicate_image_keeps_its_first_entry_and_warns() -> None:
    found = table("functions: [{function: a, images: [x.io/f]}, {function: b, images: ['x.io/f:latest']}]")
    assert found.find(image("x.io/f")) == "a"
    assert found.warnings == (
        'config.yaml: functions[1].images[0]: "x.io/f:latest" stands twice; it keeps its first entry, function "a"',
    )


def test_standby_is_a_number_of_each_function() -> None:
    found = table("functions: [{function: a, standby: 2, images: [x.io/a]}, {function: b, images: [x.io/b]}]")
    assert found.wanted_in_standby("a", default=1) == 2
    assert found.wanted_in_standby("b", default=1) == 1
    assert found.wanted_in_standby("stranger", default=1) == 0
    assert found.warnings == ()


def test_a_function_that_stands_twice_keeps_its_first_number() -> None:
    found = table("functions: [{function: a}, {function: a, standby: 0}, {function: a, standby: 3}]")
    assert found.wanted_in_standby("a", default=1) == 0
    assert found.warnings == ('config.yaml: functions[2].standby: "a" stands twice; it keeps its first number, 0',)


def test_unknown_fields_are_warnings() -> None:
    found = table("version: 1\nfunctions: [{function: a, tags: []}]")
    assert found.warnings == (
        'config.yaml: "version" is not known and is ignored',
        'config.yaml: functions[0]: "tags" is not known and is ignored',
    )


@pytest.mark.parametrize("text", ["", "functions:", "functions: []", "functions: [{function: a}]", "# nothing"])
def test_no_function_is_no_error(text: str) -> None:
    assert table(text).executables == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("functions: {", "config.yaml: not valid YAML: "),
        ("- a", "config.yaml: the file must be a mapping, not a list"),
        ("functions: yes please", "config.yaml: functions must be a list, not text"),
        ("functions: [a]", "config.yaml: functions[0] must be a mapping, not text"),
        ("functions: [{images: []}]", "config.yaml: functions[0].function must name a file"),
        ("functions: [{function: 5}]", "config.yaml: functions[0].function must name a file"),
        ("functions: [{function: ../sh}]", 'functions[0].function: "../sh" must be a file name without a path'),
        ("functions: [{function: ..}]", "must be a file name without a path"),
        ("functions: [{function: a, images: x}]", "functions[0].images must be a list, not text"),
        ("functions: [{function: a, images: [7]}]", "functions[0].images[0] must be an image, not 7"),
        ("functions: [{function: a, images: ['A B']}]", 'functions[0].images[0]: "A B" is no image: '),
        ("functions: [{function: a, standby: 9}]", "functions[0].standby must be a whole number from 0 to 8, not 9"),
        ("functions: [{function: a, standby: -1}]", "functions[0].standby must be a whole number from 0 to 8, not -1"),
        ("functions: [{function: a, standby: yes}]", "functions[0].standby must be a whole number from 0 to 8, not "),
        (
            "functions: [{function: a, standby: '1'}]",
            "functions[0].standby must be a whole number from 0 to 8, not text",
        ),
        (
            "functions: [{function: a, standby: 1.5}]",
            "functions[0].standby must be a whole number from 0 to 8, not 1.5",
        ),
    ],
)
def test_what_is_broken_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        table(text)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
