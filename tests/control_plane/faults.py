"""What can go wrong with a pod before it serves, as the API server shows it: set one as `Kubelet.fault`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unschedulable:
    """No node has room; the message is the scheduler's."""

    message: str = "0/1 nodes are available: 1 Insufficient cpu."


@dataclass(frozen=True)
class Waiting:
    """The function's container never starts: its image cannot be pulled, something it refers to is missing."""

    reason: str
    message: str
    event: str = ""
    """If set, the kubelet at first reports this in an event only, and `reason` and `message` never."""


@dataclass(frozen=True)
class InitFails:
    """An init container ends with an error."""

    code: int
    message: str


@dataclass(frozen=True)
class Rejected:
    """The kubelet does not admit the pod at all."""

    reason: str
    message: str


@dataclass(frozen=True)
class Silent:
    """The container runs, and nothing in it ever listens."""


Fault = Unschedulable | Waiting | InitFails | Rejected | Silent
