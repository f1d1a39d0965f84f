"""Failed pods as errors for callers: a code that says whether to try again, a message that says what to do."""

from __future__ import annotations

import grpc

from krm_runner.core import errors
from krm_runner.core.pod_failure import Failed, creation_failure, excerpt, failure, overdue, start_error
from krm_runner.rpc.status import code_of

IMAGE = "example.com/f:v1"


def test_what_does_not_pass_is_a_failed_precondition() -> None:
    error = start_error(IMAGE, "f-v1-1-a", failure("InvalidImageName", "container: no", may_pass=False))
    assert code_of(error) is grpc.StatusCode.FAILED_PRECONDITION
    assert str(error) == (
        'function "example.com/f:v1" cannot be started: pod "f-v1-1-a": InvalidImageName: container: no; '
        "check the pod template and what it refers to"
    )
    assert (error.image, error.facts, error.retry_after) == (
        IMAGE,
        {"pod": "f-v1-1-a", "pod_reason": "InvalidImageName"},
        None,
    )


def test_what_may_pass_is_unavailable() -> None:
    error = start_error(IMAGE, "p", Failed("NodeLost", "node n", may_pass=True))
    assert code_of(error) is grpc.StatusCode.UNAVAILABLE
    assert str(error) == (
        'function "example.com/f:v1" could not be started for now: pod "p": NodeLost: node n; try again later'
    )
    assert error.retry_after == 5.0
    advised = start_error(IMAGE, "p", failure("Evicted", "no room", may_pass=True))
    assert "; try again later, or set resources of the function" in str(advised)


def test_a_pod_that_took_too_long_says_what_it_waited_for() -> None:
    error = start_error(IMAGE, "p", overdue("Unschedulable", "0/1 nodes are available", after=60.0))
    assert code_of(error) is grpc.StatusCode.UNAVAILABLE
    assert 'pod "p": Unschedulable: not ready after 60s: 0/1 nodes are available; try again later, or make' in str(
        error
    )
    assert "Pending: not ready after 1.5s; try" in str(start_error(IMAGE, "p", overdue("Pending", "", after=1.5)))


def test_what_the_api_server_refuses() -> None:
    quota = creation_failure(errors.KubernetesForbiddenError("POST: exceeded quota: pods=10", status=403))
    assert (quota.reason, quota.may_pass) == ("Forbidden", True)
    assert "quota" in quota.advice
    admission = creation_failure(errors.KubernetesForbiddenError("POST: violates PodSecurity", status=403))
    assert (admission.reason, admission.message, admission.may_pass) == (
        "Forbidden",
        "POST: violates PodSecurity",
        False,
    )
    assert "admission" in admission.advice
    invalid = creation_failure(errors.KubernetesError("POST: spec.containers[0].image: Required value", status=422))
    assert (invalid.reason, invalid.may_pass) == ("Invalid", False)
    away = creation_failure(errors.KubernetesUnavailableError("POST: no answer within 15s"))
    assert (away.reason, away.may_pass, away.advice) == ("ApiServerUnavailable", True, "")


def test_excerpts() -> None:
    assert excerpt("  x\n") == "x"
    assert excerpt("a" * 1000) == "a" * 1000
    assert excerpt("a" * 600 + "b" * 600) == "a" * 500 + " ... " + "b" * 500
