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

VERDICT = ROOT / "wrapper" / "target" / "debug" / "examples" / "verdict"

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
        missing("the wrapper server's envelope check is not built (sh wrapper/test.sh)")
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
