"""Tokens of pods: made again from what a pod says of itself, and which pods a runner may use."""

from __future__ import annotations

import base64
import hmac
from dataclasses import replace
from pathlib import Path

import pytest

from krm_runner.core.errors import ConfigurationError
from krm_runner.core.json_object import as_list, as_object
from krm_runner.core.pod_facts import PodFacts, facts_of
from krm_runner.core.pod_manifest import render
from krm_runner.core.pod_template import PodTemplate, built_in_template, template_of
from krm_runner.core.pod_token import NO_KEYS, TokenKeys
from krm_runner.core.wrapper_delivery import InitContainer
from krm_runner.pods.pod_tokens import PodTokens, TemplateWithTokens
from krm_runner.pods.template_source import BuiltInTemplate
from unit.test_pod_manifest import BUILT_IN, POD_ID, TEMPLATES, container, function
from unit.test_pod_template import MINIMAL, config_map

A, B = "a" * 32, "b" * 43 + "="
NONCE = "q83vEjRWeJA"


def keys(*lines: str) -> TokenKeys:
    return TokenKeys.parse("\n".join(lines).encode(), source="keys")


def tokens(directory: Path, *lines: str) -> PodTokens:
    path = directory / "keys"
    path.write_text("\n".join(lines))
    return PodTokens(path)


def facts(template: PodTemplate) -> PodFacts:
    pod = render(template, replace(function(), token_nonce=NONCE)).pod
    found = facts_of(pod)
    assert found is not None
    return found


@TEMPLATES
def test_a_pod_is_told_its_token_and_says_what_it_is_made_of(template: PodTemplate) -> None:
    keyed = template.with_tokens(keys(A).first)
    pod = render(keyed, replace(function(), token_nonce=NONCE)).pod
    mac = hmac.digest(A.encode(), f"{POD_ID}/{NONCE}".encode(), "sha256")
    token = base64.urlsafe_b64encode(mac).decode().rstrip("=")
    assert as_list(container(pod)["env"])[-1] == {"name": "KRM_RUNNER_TOKEN", "value": token}
    annotations = as_object(as_object(pod["metadata"])["annotations"])
    assert annotations["krm-runner/token-nonce"] == NONCE
    assert annotations["fn.kpt.dev/template-version"] == keyed.version != template.version
    assert token not in str(annotations)
    others = [one for one in as_list(as_object(pod["spec"])["initContainers"]) if "env" in as_object(one)]
    assert others == []


@TEMPLATES
def test_without_a_key_nothing_of_it_is_there(template: PodTemplate) -> None:
    assert template.with_tokens(None) is template
    assert render(template, replace(function(), token_nonce=NONCE)) == render(template, function())
    assert "KRM_RUNNER_TOKEN" not in str(render(template, function()))


def test_what_the_template_sets_does_not_count() -> None:
    text = MINIMAL.replace(
        "command:", "env: [{name: KRM_RUNNER_TOKEN, value: mine}, {name: OTHER, value: kept}], command:"
    )
    template = template_of(config_map(text)).with_tokens(keys(A).first)
    env = as_list(container(render(template, replace(function(), token_nonce=NONCE)).pod)["env"])
    assert [as_object(entry)["name"] for entry in env] == ["OTHER", "KRM_RUNNER_TOKEN"]
    assert "mine" not in str(env)


def test_whoever_has_the_key_makes_the_token_again(tmp_path: Path) -> None:
    pod = facts(BUILT_IN.with_tokens(keys(A).first))
    first = keys(A).first
    assert first is not None
    expected = first.token(pod_id=POD_ID, nonce=NONCE)
    assert tokens(tmp_path, A).token_of(pod) == expected
    assert tokens(tmp_path, B, A).token_of(pod) == expected
    assert tokens(tmp_path, B).token_of(pod) is None
    assert PodTokens().token_of(pod) is None
    assert tokens(tmp_path, A).token_of(facts(BUILT_IN)) is None
    assert tokens(tmp_path, A).token_of(replace(pod, token_nonce="other")) != expected
    assert tokens(tmp_path, A).token_of(replace(pod, pod_id="other")) != expected


def test_a_runner_uses_the_pods_of_its_keys_and_no_others(tmp_path: Path) -> None:
    def wanted(*lines: str) -> str:
        return BUILT_IN.with_tokens(keys(*lines).first if lines else None).version

    of_a, of_b, of_none = (facts(BUILT_IN.with_tokens(key)) for key in (keys(A).first, keys(B).first, None))
    for lines, used in (
        ([A], [of_a]),
        ([B, A], [of_a, of_b]),
        ([A, B], [of_a, of_b]),
        ([B], [of_b]),
        ([], [of_none]),
    ):
        runner = tokens(tmp_path, *lines) if lines else PodTokens()
        assert [pod for pod in (of_a, of_b, of_none) if runner.version_of(pod) == wanted(*lines)] == used
    # A pod that does not say what its token is made of is of no use.
    assert tokens(tmp_path, B, A).version_of(replace(of_a, token_nonce="")) != wanted(B, A)


def test_another_template_stays_another(tmp_path: Path) -> None:
    other = built_in_template(delivery=InitContainer("example.com/wrapper:v2"), max_message_bytes=6291456)
    pod = facts(other.with_tokens(keys(A).first))
    assert tokens(tmp_path, B, A).version_of(pod) == other.with_tokens(keys(B).first).version


async def test_the_template_follows_its_source_and_the_keys(tmp_path: Path) -> None:
    source = BuiltInTemplate(BUILT_IN)
    runner = tokens(tmp_path, A)
    template = TemplateWithTokens(source, runner)
    heard: list[PodTemplate] = []
    template.on_change = heard.append
    await template.load(timeout=0)
    assert template.current is template.current
    assert template.current is not None
    assert template.current.version == BUILT_IN.with_tokens(keys(A).first).version
    assert template.problem == ""
    source.current = changed = built_in_template(delivery=InitContainer("example.com/w:v2"), max_message_bytes=1)
    source.on_change(changed)
    assert [one.version for one in heard] == [changed.with_tokens(keys(A).first).version]
    source.current = None
    assert template.current is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "keys has no key in it"),
        (b"a" * 31, "keys, line 1: a key has at least 32 characters"),
        (f"{A}\nx".encode(), "keys, line 2"),
        (bytes(range(64)), "keys, line 1"),
    ],
)
def test_what_is_no_key_is_refused(text: bytes, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        TokenKeys.parse(text, source="keys")


def test_keys_show_nothing_of_themselves() -> None:
    first = keys(A, B).first
    assert first is not None
    assert A not in f"{first!r} {first} {keys(A)!r} {BUILT_IN.with_tokens(first)!r}"
    assert A not in first.identity
    assert keys(A, B) != keys(B, A)
    assert keys(A, B) == keys(A, "# comment", B)
    assert len({NO_KEYS, TokenKeys()}) == 1
