"""The wrapper server's envelope check against the runner's: the same glance, the same verdict, the same reason."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from krm_runner.core.resource_list import NotAResourceListError, parse, recognise
from support.machine import ROOT, missing
from unit.test_resource_list import GLANCED, PARSED, REFUSED, documents, lines, styles

VERDICT = ROOT / "target" / "ci" / "examples" / "verdict"

odd_lines = st.one_of(
    lines,
    st.sampled_from(
        [
            "<<: *a", "a: &a", "  kind: ResourceList", "<<: [*a, *b]", "b: &b {kind: Other}", "---#",
            "<<: {kind: ResourceList}", "--- # c", "- severity: error", "results:", "  message: x", "a: b #c",
            "a: b#c", "\u00a0", "\ufeff",
            "kind: ~", "kind: null", "kind: [a, {b: c}]", "kind: \u00e4\U0001f600", "*a : b", "!!str kind: x", "\x85",
            '"kind": "Resource\\x4cist"', "kind: &k ResourceList", "apiVersion: *k", "\x07",
        ]
    ),
)  # fmt: skip
texts = st.lists(odd_lines, max_size=9).map("\n".join)


class Wrapper:
    """Asked for its verdict, one document at a time."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def verdict(self, data: bytes) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(len(data).to_bytes(4, "little") + data)
        self._process.stdin.flush()
        return self._process.stdout.readline().decode().rstrip("\n")


@pytest.fixture(scope="module")
def wrapper(wrapper_server: Path) -> Iterator[Wrapper]:
    assert wrapper_server.exists()
    if not VERDICT.exists():
        missing("the wrapper server's envelope check is not built (sh tests/crates/test.sh)")
    with subprocess.Popen([VERDICT], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        yield Wrapper(process)
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(10) == 0


def verdict(data: bytes) -> str:
    """As the wrapper's example prints it."""
    way = "parse" if recognise(data) is None else "glance"
    try:
        return f"{way} yes {len(parse(data).results)}"
    except NotAResourceListError as error:
        return f"{way} no {error}".replace("\n", " ")


@pytest.mark.parametrize("text", [*GLANCED, *PARSED, *REFUSED])
def test_examples(wrapper: Wrapper, text: str) -> None:
    data = text.encode()
    assert wrapper.verdict(data) == verdict(data)


A_MERGED = "a: &a {kind: ResourceList}\n"
CHAIN = "".join(f"a{number}: &a{number} {{<<: *a{number - 1}}}\n" for number in range(1, 8000))


@pytest.mark.parametrize(
    "text",
    [
        A_MERGED + "!!merge <<: *a\n",  # as Go's yaml.v3 writes it
        A_MERGED + "! <<: *a\n",
        A_MERGED + '"<<": *a\n',
        "kind: ResourceList\na: &a {<<: *a}\n<<: *a\n",
        "&a\n<<: *a\nkind: ResourceList\n",
        "a0: &a0 {kind: ResourceList}\n" + CHAIN + "<<: *a7999\n",
        "a0: &a0 {}\n" + CHAIN.replace("{<<: ", "[").replace("}", "]") + "<<: *a0\nkind: ResourceList\n",
        "kind: [a]\nx: &a " + "y" * 100_000 + "\nresults: [" + "*a," * 10_000 + "]\n",
        "<<: {kind: ResourceList}\n" * 20_000,
        "<<: {kind: ResourceList}\n<<: {kind: Other}\n",
        'a: "\\u"\n',
        "a: b\f\nkind: ResourceList\n",
    ],
    ids=lambda text: repr(text[:30]),
)
def test_merges_aliases_and_escapes_that_nobody_expects(wrapper: Wrapper, text: str) -> None:
    data = text.encode()
    assert wrapper.verdict(data) == verdict(data)


many = settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@many
@given(text=texts, ends=st.booleans(), line_break=st.sampled_from(["\n", "\r\n"]))
def test_odd_lines(wrapper: Wrapper, text: str, ends: bool, line_break: str) -> None:
    data = (text.replace("\n", line_break) + (line_break if ends else "")).encode()
    assert wrapper.verdict(data) == verdict(data)


@many
@given(document=documents, style=styles)
def test_well_formed_yaml(wrapper: Wrapper, document: dict[str, Any], style: dict[str, Any]) -> None:
    data = cast(bytes, yaml.safe_dump(document, encoding="utf-8", **style))
    assert wrapper.verdict(data) == verdict(data)


@many
@given(document=documents)
def test_json(wrapper: Wrapper, document: dict[str, Any]) -> None:
    data = json.dumps(document).encode()
    assert wrapper.verdict(data) == verdict(data)


@many
@given(data=st.binary(max_size=100))
def test_any_bytes(wrapper: Wrapper, data: bytes) -> None:
    assert wrapper.verdict(data) == verdict(data)
