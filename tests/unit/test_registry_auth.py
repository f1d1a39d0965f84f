"""Docker configs: which credentials are for which image, and that nothing shows them."""

from __future__ import annotations

import base64
import copy
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krm_runner.core.default_registries import DefaultRegistries
from krm_runner.core.errors import ConfigurationError
from krm_runner.core.image_ref import parse as image
from krm_runner.core.registry_auth import Credentials, DockerConfig, best_key, from_helper, parse_docker_config
from krm_runner.core.secret import Secret

PASSWORD = "pa:ss-w0rd"
AUTH = base64.b64encode(f"me:{PASSWORD}".encode()).decode()


def config(document: object) -> DockerConfig:
    return parse_docker_config(json.dumps(document).encode(), source="config.json")


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"auth": AUTH}, Credentials("me", Secret(PASSWORD))),
        ({"auth": AUTH.rstrip("=")}, Credentials("me", Secret(PASSWORD))),
        ({"username": "me", "password": PASSWORD}, Credentials("me", Secret(PASSWORD))),
        ({"username": "other", "password": "x", "auth": AUTH}, Credentials("me", Secret(PASSWORD))),
        ({"auth": AUTH, "email": "a@b", "unknown": [1]}, Credentials("me", Secret(PASSWORD))),
        ({"identitytoken": "id"}, Credentials(identity_token=Secret("id"))),
        ({"username": "<token>", "password": "id"}, Credentials(identity_token=Secret("id"))),
        ({"registrytoken": "rt"}, Credentials(registry_token=Secret("rt"))),
        ({}, Credentials()),
        (None, Credentials()),
    ],
)
def test_entries(entry: object, expected: Credentials) -> None:
    assert config({"auths": {"x.io": entry}}).auths["x.io"] == expected
    assert bool(expected) == bool(entry)


@pytest.mark.parametrize(
    ("keys", "name", "expected"),
    [
        (["https://index.docker.io/v1/"], "alpine", "https://index.docker.io/v1/"),
        (["docker.io"], "nephio/fn", "docker.io"),
        (["index.docker.io"], "docker.io/nephio/fn", "index.docker.io"),
        (["x.io"], "x.io/team/fn", "x.io"),
        (["https://x.io"], "x.io/team/fn", "https://x.io"),
        (["https://x.io/v2/"], "x.io/team/fn", "https://x.io/v2/"),
        (["http://x.io/v1"], "x.io/team/fn", "http://x.io/v1"),
        (["X.io"], "x.io/fn", "X.io"),
        (["x.io", "x.io/team", "x.io/team/fn"], "x.io/team/fn", "x.io/team/fn"),
        (["x.io/team", "x.io/other"], "x.io/team/fn", "x.io/team"),
        (["x.io/v2/team"], "x.io/team/fn", "x.io/v2/team"),
        (["x.io/other"], "x.io/team/fn", None),
        (["x.io:5000"], "x.io:5000/fn", "x.io:5000"),
        (["x.io"], "x.io:5000/fn", None),
        (["x.io:5000"], "x.io/fn", None),
        (["*.x.io"], "eu.x.io/fn", "*.x.io"),
        (["*.x.io"], "x.io/fn", None),
        (["*.x.io"], "a.b.x.io/fn", None),
        (["*.x.io:5000"], "eu.x.io:5000/fn", "*.x.io:5000"),
        (["*.x.io:5000"], "eu.x.io/fn", None),
        (["e?.x.io", "[a-f]u.x.io"], "eu.x.io/fn", "e?.x.io"),
        (["*.x.io/team/fn", "eu.x.io"], "eu.x.io/team/fn", "eu.x.io"),
        (["*.x.io", "*.x.io/team"], "eu.x.io/team/fn", "*.x.io/team"),
        (["localhost:5000"], "localhost:5000/fn", "localhost:5000"),
        (["[::1]:5000"], "[::1]:5000/fn", "[::1]:5000"),
        (["evilx.io", "x.io.evil.com"], "x.io/fn", None),
        ([], "x.io/fn", None),
    ],
)
def test_keys_match_as_docker_and_the_kubelet_do(keys: list[str], name: str, expected: str | None) -> None:
    assert best_key(keys, image(name)) == expected
    assert best_key(reversed(keys), image(name)) == expected


def test_helpers_by_registry_and_for_all_others() -> None:
    found = config({"credHelpers": {"gcr.io": "gcloud"}, "credsStore": "pass"})
    assert found.helper_for("gcr.io") == ("gcloud", "gcr.io")
    assert found.helper_for("x.io") == ("pass", "x.io")
    assert found.helper_for("docker.io") == ("pass", "https://index.docker.io/v1/")
    assert config({}).helper_for("x.io") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "config.json is no valid JSON"),
        (b'{"auths": {"x.io": {"auth": "hunter2', "config.json is no valid JSON"),
        (b"[" * 100_000, "config.json is no valid JSON"),
        (b"\xff\xfe", "config.json is no valid JSON"),
        (b"[]", "the file must be a JSON object"),
        (b'{"auths": ["hunter2"]}', "auths must be a JSON object"),
        (b'{"auths": {"x.io": "hunter2"}}', 'auths["x.io"] must be a JSON object'),
        (b'{"auths": {"x.io": {"auth": "hunter2!"}}}', 'auths["x.io"].auth is no base64 of user:password'),
        (b'{"auths": {"x.io": {"auth": "aHVudGVyMg=="}}}', 'auths["x.io"].auth is no base64 of user:password'),
        (b'{"auths": {"x.io": {"password": ["hunter2"]}}}', 'auths["x.io"].password must be text'),
        (b'{"credsStore": {"hunter2": 1}}', "credsStore must be text"),
    ],
)
def test_what_is_wrong_is_said_without_any_value(text: bytes, message: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        parse_docker_config(text, source="config.json")
    assert message in str(refusal.value)
    error: BaseException | None = refusal.value
    while error is not None:
        assert "hunter2" not in f"{error!r} {error} {vars(error)}"
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


@given(
    st.recursive(
        st.none() | st.text() | st.integers() | st.booleans(),
        lambda s: (
            st.lists(s)
            | st.dictionaries(st.sampled_from(["auths", "auth", "x.io", "credHelpers", "credsStore", "username"]), s)
        ),
    )
)
def test_no_document_does_more_than_be_refused(document: object) -> None:
    try:
        found = config(document)
    except ConfigurationError:
        return
    found.key_for(image("x.io/fn"))
    found.helper_for("x.io")


@given(st.text(alphabet="xio.*:/[]?-", max_size=20))
def test_no_key_breaks_the_matching(key: str) -> None:
    assert best_key([key], image("x.io/fn")) in (key, None)


@given(st.text(min_size=1), st.text(min_size=1))
def test_credentials_do_not_show_themselves(username: str, password: str) -> None:
    secret = Secret(f"<<{password}>>")
    credentials = Credentials(username, secret, secret, secret)
    for shown in (repr(credentials), str(credentials), f"{secret}", f"{secret:>20}", repr([secret]), "%s" % secret):  # noqa: UP031
        assert f"<<{password}>>" not in shown
    assert secret.reveal() == f"<<{password}>>"
    assert (secret == Secret(f"<<{password}>>"), secret == f"<<{password}>>") == (True, False)


def test_a_secret_is_not_pickled() -> None:
    with pytest.raises(TypeError):
        pickle.dumps(Secret("x"))
    with pytest.raises(TypeError):
        copy.deepcopy(Secret("x"))


def test_what_helpers_answer() -> None:
    assert from_helper("me", "pw") == Credentials("me", Secret("pw"))
    assert from_helper("<token>", "id") == Credentials(identity_token=Secret("id"))


@pytest.mark.parametrize(
    ("prefix", "name", "is_default"),
    [
        ("ghcr.io/kptdev/krm-functions-catalog", "gcr.io/kpt-fn/set-labels:v1", True),
        ("ghcr.io/kptdev/krm-functions-catalog", "ghcr.io/kptdev/krm-functions-catalog/set-labels:v1", True),
        ("ghcr.io/kptdev/krm-functions-catalog/", "ghcr.io/kptdev/krm-functions-catalog/a/b", True),
        ("ghcr.io/kptdev/krm-functions-catalog", "ghcr.io/kptdev/krm-functions-catalog-evil/fn", False),
        ("ghcr.io/kptdev/krm-functions-catalog", "gcr.io/kpt-fn-demo/fn", False),
        ("ghcr.io/kptdev/krm-functions-catalog", "gcr.io/kpt-fn", False),
        ("", "ghcr.io/kptdev/krm-functions-catalog/fn", False),
        ("nephio", "docker.io/nephio/fn", True),
        ("localhost:5000", "localhost:5000/fn", True),
    ],
)
def test_default_registries(prefix: str, name: str, is_default: bool) -> None:
    assert (image(name) in DefaultRegistries(prefix)) == is_default
