"""Errors as statuses: codes, and messages that fit into a stock client's trailers."""

from __future__ import annotations

import pytest
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status as RpcStatus
from hypothesis import given
from hypothesis import strategies as st

from krm_runner.core import errors
from krm_runner.rpc.remote_status import Details, details_of
from krm_runner.rpc.status import DETAILS_KEY, TRAILER_BUDGET, code_of, status_of, trailers_size

IMAGE = "example.com/f:v1"


def all_errors() -> list[errors.EvaluationError]:
    return [
        errors.InvalidRequestError("no"),
        errors.FunctionNotFoundError(IMAGE),
        errors.FunctionFailedError(IMAGE, ending="failed with exit code 1", results=["a"], stderr="b", facts={}),
        errors.InvalidOutputError(IMAGE, why="it is empty", stderr=""),
        errors.CannotExecuteError(IMAGE, executable="/f", why="no"),
        errors.OutputTooLargeError(IMAGE, written=2, room=1, limit=1),
        errors.MessageTooLargeError(size=2, limit=1),
        errors.QueueFullError(IMAGE, waiting=1),
        errors.TooBusyError(IMAGE, waiting=3, expected=12.5),
        errors.OverloadedError(IMAGE, size=2, used=2, limit=3),
        errors.OutOfResourcesError(IMAGE, why="no"),
        errors.DeadlineExceededError(IMAGE, after=1),
        errors.ShuttingDownError(IMAGE),
        errors.ImageNotFoundError(IMAGE, why="no"),
        errors.ImagePullRefusedError(IMAGE, why="no"),
        errors.ImageUnusableError(IMAGE, why="no"),
        errors.RegistryUntrustedError(IMAGE, why="no"),
        errors.RegistryUnavailableError(IMAGE, why="no"),
        errors.NoPodTemplateError(IMAGE, why="no"),
        errors.PodCannotStartError(IMAGE, pod="p", why="InvalidImageName", message="no", advice="change it"),
        errors.PodNotStartedError(IMAGE, pod="p", why="Evicted", message="no", advice=""),
        errors.PodLostError(IMAGE, pod="p", why="its connection broke", reached=True),
        errors.RemoteError(IMAGE, code="INTERNAL", message="no"),
        errors.UnexpectedError(IMAGE, cause=ValueError()),
    ]


def test_every_error_has_a_code_of_its_own_choice() -> None:
    listed = {type(error) for error in all_errors()}
    assert listed == set(errors.EvaluationError.__subclasses__())
    assert all(code_of(error).name != "UNKNOWN" for error in all_errors())


@pytest.mark.parametrize("error", all_errors(), ids=lambda error: type(error).__name__)
def test_details_repeat_code_and_message_and_add_the_reason(error: errors.EvaluationError) -> None:
    status = status_of(error)
    details = RpcStatus.FromString(status.details)
    assert (details.code, details.message) == (status.code.value[0], status.message == str(error) and str(error))
    info, retry = ErrorInfo(), RetryInfo()
    assert details.details[0].Unpack(info)
    assert (info.reason, info.domain) == (error.reason, "krm-runner")
    if error.retry_after is not None:
        assert details.details[1].Unpack(retry)
        assert retry.retry_delay.seconds >= 1


@given(st.text(max_size=200), st.integers(min_value=1, max_value=300), st.text(max_size=400))
def test_messages_are_cut_to_fit_and_keep_both_ends(part: str, times: int, image: str) -> None:
    error = errors.FunctionFailedError(image, ending="failed", results=[], stderr=part * times, facts={"x": part})
    status = status_of(error)
    assert trailers_size(status.message, status.details) <= TRAILER_BUDGET
    if status.message != str(error):
        assert "characters cut" in status.message


def test_a_cut_message_keeps_its_headline_and_the_end_of_stderr_and_wastes_no_room() -> None:
    stderr = "\n".join(f"line {number}" for number in range(5000))
    error = errors.FunctionFailedError(IMAGE, ending="failed with exit code 1", results=[], stderr=stderr, facts={})
    status = status_of(error)
    assert status.message.startswith(f'function "{IMAGE}" failed with exit code 1\nstderr:\nline 0\n')
    assert status.message.endswith("\nline 4999")
    assert trailers_size(status.message, status.details) > TRAILER_BUDGET - 20


def test_lone_surrogates_do_not_break_the_status() -> None:
    assert "?" in status_of(errors.InvalidRequestError("\ud800")).message


def test_an_error_from_elsewhere_keeps_its_code_its_reason_its_facts_and_its_delay() -> None:
    error = errors.RemoteError(
        IMAGE,
        code="RESOURCE_EXHAUSTED",
        message="no",
        reason="QUEUE_FULL",
        facts={"waiting": "3", "pod": "p"},
        retry_after=2.0,
    )
    status = status_of(error, runtime="pod")
    assert (status.code.name, status.message) == ("RESOURCE_EXHAUSTED", "no")
    info, retry = ErrorInfo(), RetryInfo()
    details = RpcStatus.FromString(status.details).details
    assert details[0].Unpack(info)
    assert (info.reason, dict(info.metadata)) == (
        "QUEUE_FULL",
        {"image": IMAGE, "runtime": "pod", "waiting": "3", "pod": "p"},
    )
    assert details[1].Unpack(retry)
    assert retry.retry_delay.seconds == 2


def test_an_error_from_elsewhere_with_a_code_that_nobody_knows_is_no_defect() -> None:
    assert code_of(errors.RemoteError(IMAGE, code="NONSENSE", message="no")).name == "UNAVAILABLE"


def test_a_status_is_read_back_into_what_it_was_made_of() -> None:
    made = errors.FunctionFailedError(IMAGE, ending="failed", results=[], stderr="", facts={"exit_code": "3"})
    read = details_of([("date", "today"), (DETAILS_KEY, status_of(made).details)])
    assert read == Details("FUNCTION_FAILED", {"exit_code": "3"}, None)
    full = details_of([(DETAILS_KEY, status_of(errors.QueueFullError(IMAGE, waiting=3)).details)])
    assert full == Details("QUEUE_FULL", {"waiting": "3"}, 1.0)
    busy = details_of([(DETAILS_KEY, status_of(errors.TooBusyError(IMAGE, waiting=3, expected=12.4)).details)])
    assert busy == Details("TOO_BUSY", {"waiting": "3", "expected_seconds": "12.4"}, 12.0)


@pytest.mark.parametrize(
    "info",
    [
        ErrorInfo(reason="QUEUE_FULL", domain="example.com"),
        ErrorInfo(reason="", domain="krm-runner"),
        ErrorInfo(reason="X" * 65, domain="krm-runner"),
        ErrorInfo(reason="so long\nand", domain="krm-runner"),
    ],
)
def test_a_status_of_somebody_else_is_not_taken_for_ours(info: ErrorInfo) -> None:
    status = RpcStatus(code=13)
    status.details.add().Pack(info)
    assert details_of([(DETAILS_KEY, status.SerializeToString())]) is None


def test_facts_that_no_wrapper_tells_are_left_out() -> None:
    facts = {"event": "x", "code": "OK", "exit_code": "three", "signal": "SIGKILL", "image": "other"}
    status = RpcStatus(code=13)
    status.details.add().Pack(ErrorInfo(reason="FUNCTION_FAILED", domain="krm-runner", metadata=facts))
    assert details_of([(DETAILS_KEY, status.SerializeToString())]) == Details(
        "FUNCTION_FAILED", {"signal": "SIGKILL"}, None
    )


@pytest.mark.parametrize("trailers", [[], [(DETAILS_KEY, b"\xff\xff")], [(DETAILS_KEY, "text")], [("other", b"")]])
def test_no_details_are_no_details(trailers: list[tuple[str, str | bytes]]) -> None:
    assert details_of(trailers) is None
