"""What the runner asks the API server for, verb by verb, and what happens where a verb is not granted.

The manifests grant exactly this, `krm-runner doctor` asks for it, and docs/operations.md explains it: all three are
held against this table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Place(Enum):
    """Where a right is needed."""

    FUNCTIONS = "functions"
    """The namespace of the function pods."""
    OWN = "own"
    """The namespace that the runner runs in."""


class Need(Enum):
    """When it is needed."""

    ALWAYS = "always"
    TEMPLATE = "template"
    """With --function-pod-template."""
    PRIVATE_REGISTRIES = "private registries"
    """With --enable-private-registries."""
    FUNCTION_CONFIGS = "function configs"
    """Where the cluster has FunctionConfig objects."""


@dataclass(frozen=True, slots=True)
class Right:
    """One verb on one resource."""

    verb: str
    resource: str
    """With its API group where it is not of the core: `kind.group`."""
    without: str
    """What happens where it is not granted."""
    place: Place = Place.FUNCTIONS
    need: Need = Need.ALWAYS
    is_required: bool = True
    """False: the runner does without, and says so."""
    has_name: bool = False
    """Whether it is asked for on one object only, which the role can name."""


FUNCTION_CONFIGS = "functionconfigs.config.porch.kpt.dev"
_PRIVATE, _TEMPLATE = Need.PRIVATE_REGISTRIES, Need.TEMPLATE
_NO_TEMPLATE = "the pod template is not known at the start: first calls fail with NO_POD_TEMPLATE"
_LATE_TEMPLATE = "a changed pod template is seen ten seconds later"
_NOT_DELETABLE = "FunctionConfig objects that carry the finalizer of Porch's own runner can never be deleted"
_NOT_PULLED = "the pull secret cannot be kept: private images cannot be pulled"

RIGHTS: tuple[Right, ...] = (
    Right("create", "pods", "no function pod can be started: calls fail with POD_CANNOT_START"),
    Right("delete", "pods", "expired and broken pods stay, and pile up"),
    Right("get", "pods", "a pod whose name another runner has taken cannot be adopted: its call fails"),
    Right("list", "pods", "the runner does not see its pods: calls fail with POD_CANNOT_START"),
    Right("patch", "pods", "the time of a pod in use is not extended: it may be collected by another runner"),
    Right("watch", "pods", "the runner hears late how its pods are: starts take longer, or time out"),
    Right("create", "services", "no function pod can be reached: calls fail with POD_CANNOT_START"),
    Right("delete", "services", "Services of pods that are gone stay, and pile up"),
    Right("get", "services", "a Service that is there already cannot be adopted: its pod is given up for another"),
    Right("list", "services", "the runner never learns the Services: pods do not become ready for it"),
    Right("watch", "services", "the runner hears late of Services: starts take longer, or time out"),
    Right("get", "pods/log", "errors lack the last lines of a container that ended silently", is_required=False),
    Right("list", "events", "errors lack what Kubernetes says of a pod that does not start", is_required=False),
    Right("get", "configmaps", _NO_TEMPLATE, Place.OWN, _TEMPLATE, has_name=True),
    Right("list", "configmaps", _LATE_TEMPLATE, Place.OWN, _TEMPLATE, is_required=False, has_name=True),
    Right("watch", "configmaps", _LATE_TEMPLATE, Place.OWN, _TEMPLATE, is_required=False, has_name=True),
    Right("create", "secrets", _NOT_PULLED, need=_PRIVATE),
    Right("get", "secrets", _NOT_PULLED, need=_PRIVATE, has_name=True),
    Right("update", "secrets", "new credentials do not reach the function pods", need=_PRIVATE, has_name=True),
    *(
        Right(verb, FUNCTION_CONFIGS, _NOT_DELETABLE, need=Need.FUNCTION_CONFIGS, is_required=False)
        for verb in ("list", "patch", "watch")
    ),
)


def rights_needed(*, template: bool, private_registries: bool, function_configs: bool = False) -> Iterator[Right]:
    """Those that an installation needs."""
    needs = {
        Need.ALWAYS: True,
        Need.TEMPLATE: template,
        Need.PRIVATE_REGISTRIES: private_registries,
        Need.FUNCTION_CONFIGS: function_configs,
    }
    return (right for right in RIGHTS if needs[right.need])
