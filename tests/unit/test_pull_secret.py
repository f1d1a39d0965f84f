"""The pull secret: what is done about the one that is found, and how pods get it."""

from __future__ import annotations

import base64
import copy

import pytest

from krm_runner.core.json_object import JsonObject
from krm_runner.core.pull_secret import SECRET_TYPE, Create, Decision, LeaveAlone, Refuse, Update, attach, decide

CONTENT = b'{"auths": {"x.io": {"auth": "bWU6cHc="}}}'


def decided(found: JsonObject | None, *, overwrite: bool = True) -> Decision:
    return decide(found, CONTENT, name="auth-secret", namespace="fns", overwrite=overwrite)


def secret(content: bytes = CONTENT, **fields: object) -> JsonObject:
    return {
        "metadata": {"name": "auth-secret", "resourceVersion": "7", "labels": {"theirs": "stays"}},
        "type": SECRET_TYPE,
        "data": {".dockerconfigjson": base64.b64encode(content).decode()},
        **fields,
    }


def test_a_missing_one_is_created() -> None:
    decision = decided(None)
    assert isinstance(decision, Create)
    assert (decision.body["type"], decision.body["kind"]) == ("kubernetes.io/dockerconfigjson", "Secret")
    assert decision.body["data"] == secret()["data"]
    assert decided(None, overwrite=False) == decision


def test_an_equal_one_is_left_alone() -> None:
    assert decided(secret()) == LeaveAlone()
    assert decided(secret(immutable=True)) == LeaveAlone()


@pytest.mark.parametrize("data", [{}, None, {".dockerconfigjson": "bm90"}, {".dockerconfigjson": "!"}, {"x": "y"}])
def test_another_one_is_written_over_as_it_was_read(data: object) -> None:
    found = secret(data=data)
    before = copy.deepcopy(found)
    decision = decided(found)
    assert isinstance(decision, Update)
    assert decision.body == {**before, "data": secret()["data"]}
    assert found == before
    assert decided(found, overwrite=False) == LeaveAlone()


def test_somebody_elses_is_refused() -> None:
    for found, why in (
        (secret(type="Opaque"), "is of type Opaque, not kubernetes.io/dockerconfigjson: delete it, or name another"),
        (secret(b"{}", immutable=True), "is immutable and holds other credentials"),
    ):
        decision = decided(found)
        assert isinstance(decision, Refuse)
        assert why in decision.why
        assert 'Secret "auth-secret" in namespace "fns"' in decision.why


def test_pods_get_it_once() -> None:
    pod: JsonObject = {"metadata": {"name": "p"}, "spec": {"containers": [], "imagePullSecrets": [{"name": "other"}]}}
    before = copy.deepcopy(pod)
    once = attach(pod, "auth-secret")
    assert once["spec"] == {"containers": [], "imagePullSecrets": [{"name": "other"}, {"name": "auth-secret"}]}
    assert pod == before
    assert attach(once, "auth-secret") == once
    assert attach({"spec": {}}, "s")["spec"] == {"imagePullSecrets": [{"name": "s"}]}
    assert attach({}, "s")["spec"] == {"imagePullSecrets": [{"name": "s"}]}
