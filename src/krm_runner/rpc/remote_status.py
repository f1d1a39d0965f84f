"""The status that a wrapper server answers, read back into what it was made of: the other end of `rpc.status`.

A function shares its container with the wrapper and could answer in its place. So only what is known is taken over: the
names of the facts that wrappers have, a reason that looks like one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status as RpcStatus

from krm_runner.rpc.status import DETAILS_KEY, DOMAIN

_FACTS = frozenset({"executable", "exit_code", "expected_seconds", "limit", "signal", "size", "started", "waiting"})
"""What wrappers tell; image and runtime, which they tell as well, are known here."""


@dataclass(frozen=True, slots=True)
class Details:
    """What comes on top of code and message."""

    reason: str
    facts: dict[str, str]
    retry_after: float | None


def details_of(trailers: Iterable[tuple[str, str | bytes]]) -> Details | None:
    """Nothing when the status is not one of ours: made by gRPC itself, or by something else on the way."""
    for name, value in trailers:
        if name == DETAILS_KEY and isinstance(value, bytes):
            return read_details(value)
    return None


def read_details(value: bytes) -> Details | None:
    """The same of the one trailer that has them."""
    try:
        return _read(RpcStatus.FromString(value))
    except DecodeError:
        return None


def _read(status: RpcStatus) -> Details | None:
    info, retry, retry_after = ErrorInfo(), RetryInfo(), None
    for detail in status.details:
        if not detail.Unpack(info) and detail.Unpack(retry):
            retry_after = max(0.0, retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9)
    if info.domain != DOMAIN or not re.fullmatch("[A-Z][A-Z0-9_]{0,63}", info.reason):
        return None
    facts = {name: value for name, value in info.metadata.items() if name in _FACTS}
    if not re.fullmatch("-?[0-9]{1,10}", facts.get("exit_code", "0")):
        del facts["exit_code"]
    return Details(info.reason, facts, retry_after)
