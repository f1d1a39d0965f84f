"""The words of the pool: what it is told of functions and pods, and what it wants done (effects)."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

Ticket = TypeVar("Ticket", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Version:
    """What the pods of a function are wanted to be."""

    digest: str
    template: str


@dataclass(frozen=True, slots=True)
class Limits:
    """How many pods and calls a function may have, and how long its pods live unused."""

    waitlist: int
    max_pods: int
    max_calls: int
    ttl: float
    min_ready: int = 0
    """So many pods that have room for a call are kept, though nobody calls; see `Pool.keep_ready`."""


class PodState(Enum):
    """How far a pod is, as this runner knows it."""

    STARTING = "starting"
    """On its way: calls wait for it."""
    HELD_UP = "held up"
    """On its way, and stuck for a reason that only others can mend (no room in the cluster): nobody waits for it."""
    READY = "ready"
    """Its wrapper answers."""
    UNREACHABLE = "unreachable"
    """Kubernetes has it, and its wrapper does not answer us: not counted, not used, not given up."""
    LEAVING = "leaving"
    """Being deleted, by us or by anybody: it ends the calls that it has."""


MOVES: dict[tuple[PodState | None, PodState | None], str] = {
    (None, PodState.STARTING): "started here, or seen in the cluster",
    (None, PodState.HELD_UP): "seen in the cluster",
    (None, PodState.READY): "seen in the cluster, and its wrapper answers",
    (None, PodState.UNREACHABLE): "seen in the cluster",
    (None, PodState.LEAVING): "seen in the cluster",
    (PodState.STARTING, PodState.HELD_UP): "no node has room for it",
    (PodState.STARTING, PodState.READY): "its wrapper answers",
    (PodState.STARTING, PodState.UNREACHABLE): "Kubernetes calls it ready, and its wrapper does not answer us",
    (PodState.STARTING, PodState.LEAVING): "expired, or deleted",
    (PodState.STARTING, None): "it cannot start, its name is taken, or it is gone",
    (PodState.HELD_UP, PodState.STARTING): "it has a node",
    (PodState.HELD_UP, PodState.READY): "its wrapper answers",
    (PodState.HELD_UP, PodState.UNREACHABLE): "Kubernetes calls it ready, and its wrapper does not answer us",
    (PodState.HELD_UP, PodState.LEAVING): "expired, or deleted",
    (PodState.HELD_UP, None): "it cannot start, or is gone",
    (PodState.READY, PodState.UNREACHABLE): "its connection is lost",
    (PodState.READY, PodState.LEAVING): "expired, or deleted",
    (PodState.READY, None): "it died, or is gone",
    (PodState.UNREACHABLE, PodState.READY): "its wrapper answers again",
    (PodState.UNREACHABLE, PodState.LEAVING): "expired, or deleted",
    (PodState.UNREACHABLE, None): "it died, or is gone",
    (PodState.LEAVING, PodState.STARTING): "not deleted after all",
    (PodState.LEAVING, PodState.HELD_UP): "not deleted after all",
    (PodState.LEAVING, PodState.READY): "not deleted after all: another runner uses it",
    (PodState.LEAVING, PodState.UNREACHABLE): "not deleted after all",
    (PodState.LEAVING, None): "it is gone",
}
"""Every way from one state to another, and why; None is a pod that the pool does not know."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A pod as the cluster has it, and as its wrapper answers."""

    name: str
    uid: str
    function: str
    version: Version
    state: PodState
    reclaim_after: float | None
    """None when the pod does not say: it is given a new time."""
    why: object = None
    """Of a pod that is held up."""


@dataclass(frozen=True, slots=True)
class StartPod:
    """Create it, or adopt the one that has the name already."""

    name: str
    function: str
    version: Version
    reclaim_after: float


@dataclass(frozen=True, slots=True)
class DeletePod:
    """If it is still that one; `why` is for the log."""

    name: str
    uid: str
    why: str


@dataclass(frozen=True, slots=True)
class ExtendTtl:
    """Write the new time, in the background."""

    name: str
    uid: str
    reclaim_after: float


@dataclass(frozen=True, slots=True)
class Grant(Generic[Ticket]):
    """The call may go to this pod."""

    ticket: Ticket
    name: str


@dataclass(frozen=True, slots=True)
class Refuse(Generic[Ticket]):
    """The call cannot be served; why is None when too many wait already."""

    ticket: Ticket
    why: object | None


@dataclass(frozen=True, slots=True)
class Lost(Generic[Ticket]):
    """The pod of a call under way is gone; the call holds nothing any more."""

    ticket: Ticket
    name: str
    why: object


@dataclass(frozen=True, slots=True)
class Promise:
    """Calls of the function may go to this pod unasked, if it is the least loaded of those that are promised.

    Another one while it has fewer than `calls` and the function fewer than `calls_in_all`. Nobody is going to collect
    it before that time. Takes the place of an earlier promise of the same pod.
    """

    function: str
    name: str
    until: float
    calls: int
    calls_in_all: int


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Nobody goes to this pod unasked any more."""

    function: str
    name: str


Effect = StartPod | DeletePod | ExtendTtl | Grant[Ticket] | Refuse[Ticket] | Lost[Ticket] | Promise | Withdraw
Effects = list[Effect[Ticket]]
