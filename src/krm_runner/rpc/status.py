"""Errors as gRPC statuses: the one table of codes, and messages that every client can receive.

Clients refuse a call whose trailers are larger than their limit (8 KiB by default), and some close the whole
connection with all its other calls. So a message is cut until all trailers together, as they are sent, fit into
TRAILER_BUDGET. Details come on top of code and message, which make sense alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import grpc
from google.protobuf.any_pb2 import Any
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status as RpcStatus

from krm_runner.core import errors
from krm_runner.core.errors import EvaluationError

TRAILER_BUDGET = 8000
DETAILS_KEY = "grpc-status-details-bin"
DOMAIN = "krm-runner"

_CODES: dict[type[EvaluationError], grpc.StatusCode] = {
    errors.InvalidRequestError: grpc.StatusCode.INVALID_ARGUMENT,
    errors.FunctionNotFoundError: grpc.StatusCode.NOT_FOUND,
    errors.FunctionFailedError: grpc.StatusCode.INTERNAL,
    errors.InvalidOutputError: grpc.StatusCode.INTERNAL,
    errors.CannotExecuteError: grpc.StatusCode.INTERNAL,
    errors.OutputTooLargeError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.MessageTooLargeError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.QueueFullError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.TooBusyError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.OverloadedError: grpc.StatusCode.RESOURCE_EXHAUSTED,
    errors.OutOfResourcesError: grpc.StatusCode.UNAVAILABLE,
    errors.DeadlineExceededError: grpc.StatusCode.DEADLINE_EXCEEDED,
    errors.ShuttingDownError: grpc.StatusCode.UNAVAILABLE,
    errors.ImageNotFoundError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ImagePullRefusedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.ImageUnusableError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.RegistryUntrustedError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.RegistryUnavailableError: grpc.StatusCode.UNAVAILABLE,
    errors.NoPodTemplateError: grpc.StatusCode.UNAVAILABLE,
    errors.PodCannotStartError: grpc.StatusCode.FAILED_PRECONDITION,
    errors.PodNotStartedError: grpc.StatusCode.UNAVAILABLE,
    errors.PodLostError: grpc.StatusCode.UNAVAILABLE,
    errors.RemoteError: grpc.StatusCode.UNAVAILABLE,
    errors.UnexpectedError: grpc.StatusCode.INTERNAL,
}

_HEADER_OVERHEAD = 32
_OTHER_TRAILERS = sum(
    len(name) + len(value) + _HEADER_OVERHEAD
    for name, value in (
        (":status", "200"),
        ("content-type", "application/grpc"),
        ("grpc-accept-encoding", "identity, deflate, gzip"),
        ("grpc-status", "16"),
        ("grpc-message", ""),
        (DETAILS_KEY, ""),
    )
)
_UNENCODED = bytes(byte for byte in range(0x20, 0x7F) if byte != ord("%"))
_MAX_FACT_LENGTH = 256


@dataclass(frozen=True, slots=True)
class Status:
    """What is sent for an error."""

    code: grpc.StatusCode
    message: str
    details: bytes

    @property
    def number(self) -> int:
        """The code, as it is sent."""
        number: int = self.code.value[0]
        return number


def code_of(error: EvaluationError) -> grpc.StatusCode:
    """The error's code: its own if it came from elsewhere, else that of its class, or its nearest ancestor's."""
    if isinstance(error, errors.RemoteError) and error.code in grpc.StatusCode.__members__:
        return grpc.StatusCode[error.code]
    for ancestor in type(error).__mro__:
        if ancestor in _CODES:
            return _CODES[ancestor]
    return grpc.StatusCode.UNKNOWN


def status_of(error: EvaluationError, *, runtime: str = "") -> Status:
    """Code, message and details, small enough for a stock client."""
    code = code_of(error)
    facts = {"image": error.image, "runtime": runtime, **error.facts}
    info = ErrorInfo(
        reason=error.reason,
        domain=DOMAIN,
        metadata={name: value[:_MAX_FACT_LENGTH] for name, value in facts.items() if value},
    )
    packed = [_pack(info)]
    if error.retry_after is not None:
        packed.append(_pack(RetryInfo(retry_delay=Duration(seconds=max(1, round(error.retry_after))))))

    def details_for(message: str) -> bytes:
        number: int = code.value[0]
        return RpcStatus(code=number, message=message, details=packed).SerializeToString()

    def fits(message: str) -> bool:
        return trailers_size(message, details_for(message)) <= TRAILER_BUDGET

    message = fit(str(error), fits)
    return Status(code, message, details_for(message))


def trailers_size(message: str, details: bytes) -> int:
    """What the trailers weigh by HTTP/2's own count: percent-encoded message, base64 details, names, overhead."""
    encoded = message.encode()
    message_size = len(encoded) + 2 * len(encoded.translate(None, _UNENCODED))
    details_size = (len(details) + 2) // 3 * 4
    return _OTHER_TRAILERS + message_size + details_size


def fit(message: str, fits: Callable[[str], bool]) -> str:
    """The message, or as much of its beginning and end as fits, with a line that says how much is missing."""
    message = message.encode(errors="replace").decode()
    if len(message) <= TRAILER_BUDGET and fits(message):
        return message
    fitting, too_long = 0, min(len(message), TRAILER_BUDGET)
    while too_long - fitting > 1:
        middle = (fitting + too_long) // 2
        if fits(_cut(message, middle)):
            fitting = middle
        else:
            too_long = middle
    return _cut(message, fitting)


def _cut(message: str, keep: int) -> str:
    head = (keep + 1) // 2
    tail = keep - head
    return f"{message[:head]}\n... [{len(message) - keep} characters cut] ...\n{message[len(message) - tail :]}"


def _pack(detail: ErrorInfo | RetryInfo) -> Any:
    packed = Any()
    packed.Pack(detail)
    return packed
