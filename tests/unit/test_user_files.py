"""Whatever stands in a user's file, it is a configuration or our own error: on one line, and never anything else."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from krm_runner.core import function_table
from krm_runner.core.bearer_tokens import BearerTokens
from krm_runner.core.errors import ConfigurationError
from krm_runner.core.file_warnings import summarized
from krm_runner.core.image_map import parse_image_map
from krm_runner.core.pod_cache_config import parse_pod_cache_config
from krm_runner.core.pod_template import template_of
from krm_runner.core.pod_token import TokenKeys
from krm_runner.core.registry_auth import parse_docker_config

NASTY = ("!!timestamp x", "!!bool x", "!!int ''", "!!float ''", '"\\ud800"', "&a [*a]", "!!python/name:os.system x")


def template(text: bytes) -> object:
    data = {"template": text.decode("utf-8", errors="replace")}
    return template_of({"metadata": {"name": "file", "resourceVersion": "1"}, "data": data})


PARSERS: dict[str, Callable[[bytes], object]] = {
    "function config": lambda text: function_table.parse(text, source="file", default_prefix=""),
    "pod cache config": lambda text: parse_pod_cache_config(text, source="file", default_prefix=""),
    "image map": lambda text: parse_image_map(text, source="file", default_prefix=""),
    "pod template": template,
    "tokens": lambda text: BearerTokens.parse(text, source="file"),
    "token keys": lambda text: TokenKeys.parse(text, source="file"),
    "docker config": lambda text: parse_docker_config(text, source="file"),
}
FIELDS = (
    "functions", "function", "images", "image", "standby", "name", "timeToLive", "maxWaitlistLength", "resources",
    "limits", "digest", "entrypoint", "apiVersion", "kind", "metadata", "spec", "containers", "auths", "auth",
)  # fmt: skip

_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["Pod", "function", "1m"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=3), inner),
    max_leaves=12,
)


def is_read_or_refused(parse: Callable[[bytes], object], text: bytes) -> None:
    refusal = ""
    try:
        parse(text)
    except ConfigurationError as error:
        refusal = str(error)
    assert not refusal or "file" in refusal, "it names the file"
    assert refusal.isprintable(), "it is one line, and no terminal is harmed by it"
    assert len(refusal) < 2100


@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)
@settings(max_examples=60)
@given(text=st.binary(max_size=200))
@example(text=b"\xff\xfe\x00")
@example(text=b"\x00" * 100)
def test_any_bytes(parse: Callable[[bytes], object], text: bytes) -> None:
    is_read_or_refused(parse, text)


@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)
@settings(max_examples=60)
@given(value=_values)
def test_any_document(parse: Callable[[bytes], object], value: object) -> None:
    is_read_or_refused(parse, yaml.safe_dump(value, allow_unicode=True).encode("utf-8", errors="surrogatepass"))


@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)
@settings(max_examples=60)
@given(value=_values)
@example(value={"auths": {"\ud800\n": {"auth": 1}}})
@example(value={"auths": {"x" * 100_000: 1}})
@example(value={"functions": [{"function": "a\n\x1b[31mb/", "images": ["c\n\x1b[31md"]}]})
def test_any_document_in_json(parse: Callable[[bytes], object], value: object) -> None:
    is_read_or_refused(parse, json.dumps(value).encode())


_yaml = st.recursive(
    st.sampled_from(("x", "1", "~", "*a", "*b", "<<", *NASTY, *FIELDS)),
    lambda inner: (
        st.builds("[{}, {}]".format, inner, inner)
        | st.builds("&{} {}".format, st.sampled_from(("a", "b")), inner)
        | st.builds("{{ {}: {}, <<: {} }}".format, inner, inner, inner)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)
@settings(max_examples=60)
@given(text=_yaml)
@example(text="&a [*a]")
@example(text="functions: {<<: [{function: a}, {images: [*b]}]}")
def test_any_anchors_aliases_and_merges(parse: Callable[[bytes], object], text: str) -> None:
    is_read_or_refused(parse, text.encode())


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (PARSERS["tokens"], b"\n".join(b"%040d" % number for number in range(1001))),
        (PARSERS["token keys"], b"\n".join(b"%040d" % number for number in range(1001))),
        (PARSERS["docker config"], json.dumps({"auths": {f"host-{n}": {} for n in range(10_001)}}).encode()),
        (PARSERS["pod template"], b"apiVersion: v1\nkind: Pod\nspec: [" + b"x, " * 10_000 + b"]"),
    ],
    ids=["tokens", "token keys", "docker config", "pod template"],
)
def test_a_file_with_too_many_entries_is_refused(parse: Callable[[bytes], object], text: bytes) -> None:
    with pytest.raises(ConfigurationError, match=r"more than 10?,?0+"):
        parse(text)


@pytest.mark.parametrize("parse", PARSERS.values(), ids=PARSERS)
@pytest.mark.parametrize("nasty", NASTY)
def test_tags_and_aliases_in_any_place(parse: Callable[[bytes], object], nasty: str) -> None:
    for place in ("{0}", *(f"{field}: {{0}}" for field in FIELDS), *(f"- {field}: {{0}}" for field in FIELDS),
                  "functions: [{{function: {0}, images: [{0}]}}]", "? {0}\n: x"):  # fmt: skip
        is_read_or_refused(parse, place.format(nasty).encode())


def test_a_small_file_that_stands_for_a_large_one_is_refused() -> None:
    lines = ["a0: &a0 [example.com/x:v1]"] + [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    with pytest.raises(ConfigurationError, match="more than 100000 values"):
        function_table.parse("\n".join(lines).encode(), source="file", default_prefix="")


def test_many_warnings_are_few_lines() -> None:
    found = summarized([f"warning {number} \n{'x' * 1000}" for number in range(50)])
    assert len(found) == 11
    assert all(line.isprintable() for line in found)
    assert found[-1] == "and 40 more"
    assert max(map(len, found)) < 400
    assert summarized(["one"]) == ["one"]
