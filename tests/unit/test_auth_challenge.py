"""WWW-Authenticate headers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krm_runner.core.auth_challenge import Challenge, parse_challenges, pull_scope, strongest
from krm_runner.core.image_ref import parse as image

HUB = 'Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:a/b:pull,push"'
HUB_PARAMETERS = {
    "realm": "https://auth.docker.io/token",
    "service": "registry.docker.io",
    "scope": "repository:a/b:pull,push",
}
NOTHING: dict[str, str] = {}


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (HUB, [("bearer", HUB_PARAMETERS)]),
        ('Bearer realm = "r" ,\t service= s', [("bearer", {"realm": "r", "service": "s"})]),
        ('Basic realm="x"', [("basic", {"realm": "x"})]),
        ("Basic realm=x", [("basic", {"realm": "x"})]),
        ("BASIC REALM=x", [("basic", {"realm": "x"})]),
        ("Basic", [("basic", NOTHING)]),
        (f'Basic realm="x", {HUB}', [("basic", {"realm": "x"}), ("bearer", HUB_PARAMETERS)]),
        (f"Negotiate, {HUB}", [("negotiate", NOTHING), ("bearer", HUB_PARAMETERS)]),
        (f"Negotiate YII=, {HUB}", [("negotiate", NOTHING), ("bearer", HUB_PARAMETERS)]),
        (r'Basic realm="a \"b\" \\ c"', [("basic", {"realm": r'a "b" \ c'})]),
        ('Basic realm="a, Bearer realm=b"', [("basic", {"realm": "a, Bearer realm=b"})]),
        ('Basic realm="unclosed', [("basic", NOTHING)]),
        ("Bearer realm=a,realm=b", [("bearer", {"realm": "a"})]),
        ("", []),
        (" , ,", []),
        ('="x"', []),
        ("Basic realm=" + "x" * 20_000, []),
    ],
)  # fmt: skip
def test_headers(header: str, expected: list[tuple[str, dict[str, str]]]) -> None:
    assert parse_challenges([header]) == [Challenge(scheme, parameters) for scheme, parameters in expected]


def test_several_headers_are_one_list() -> None:
    assert [challenge.scheme for challenge in parse_challenges(["Basic realm=x", HUB])] == ["basic", "bearer"]


def test_a_token_is_better_than_a_password_and_needs_a_realm() -> None:
    def chosen(*headers: str) -> str | None:
        best = strongest(parse_challenges(headers))
        return None if best is None else f"{best.scheme} {best.parameters.get('realm')}"

    assert chosen("Basic realm=x", HUB) == "bearer https://auth.docker.io/token"
    assert chosen("Basic realm=x", "Bearer service=y") == "basic x"
    assert chosen("Basic realm=x", "Basic realm=y") == "basic x"
    assert chosen("Negotiate") is None
    assert chosen() is None


def test_scope() -> None:
    assert pull_scope(image("x.io/team/fn:v1")) == "repository:team/fn:pull"


@given(st.text(alphabet='Basicre="lm,\\ \t=/x', max_size=60) | st.text(max_size=60))
def test_any_header_is_read_or_ignored(header: str) -> None:
    for challenge in parse_challenges([header]):
        assert challenge.scheme == challenge.scheme.lower() != ""


_WORDS = st.text(alphabet="abcxyz019-_", min_size=1, max_size=8)


@given(st.lists(st.tuples(_WORDS, st.dictionaries(_WORDS, st.text(max_size=20), min_size=1, max_size=3)), max_size=3))
def test_what_is_written_by_the_rules_is_read_back(challenges: list[tuple[str, dict[str, str]]]) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    header = ", ".join(
        f"{scheme} " + ", ".join(f"{name}={quoted(value)}" for name, value in parameters.items())
        for scheme, parameters in challenges
    )
    assert [(item.scheme, item.parameters) for item in parse_challenges([header])] == challenges
