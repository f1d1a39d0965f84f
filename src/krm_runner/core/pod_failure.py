"""Why a function has no pod: in Kubernetes' own words, whether a retry may help, and what to do about it.

Kubernetes says most of it as text for people. What can be told from a reason's name is told from that; the text decides
only where one reason stands for both kinds of trouble, such as a pull that was refused or that timed out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from krm_runner.core.errors import (
    EvaluationError,
    KubernetesError,
    KubernetesForbiddenError,
    KubernetesUnavailableError,
    PodCannotStartError,
    PodNotStartedError,
)

_MAX_MESSAGE = 1000

_PASSING = re.compile(
    r"time-?out|timed out|deadline exceeded|connection (?:refused|reset)|no such host|server misbehaving|temporary"
    r"|too ?many ?requests|\b429\b|\b50[0-4]\b|unavailable|unreachable|no route to host|\beof\b|no space left"
    r"|failed to sync|is reserved for|cancell?ed|qps exceeded",
    re.IGNORECASE,
)
_LASTING = re.compile(
    r"not ?found|(?:manifest|name) unknown|unauthorized|unauthenticated|\b40[134]\b|forbidden|denied"
    r"|authentication required|credentials|no match(?:ing)? |x509|certificate|invalid reference|unsupported"
    r"|http response to https",
    re.IGNORECASE,
)
_NAMES = re.compile(r'"[^"]*"|\S*/\S*')
"""Images and addresses: what they are called says nothing about what happened."""

_CHECK_PULL = "check that the nodes reach the registry, and the pull secret of its credentials"
_CHECK_TEMPLATE = "check the pod template and what it refers to"
_CHECK_START = (
    "check the pod template's command, and that the wrapper image and the function are for the nodes' platform"
)
_ADVICE = {
    "Unreachable": "check network policies, the pod's Service and --pod-address",
    "ErrImagePull": _CHECK_PULL,
    "ImagePullBackOff": _CHECK_PULL,
    "RegistryUnavailable": _CHECK_PULL,
    "ErrImageNeverPull": "load the image onto the nodes, or change imagePullPolicy in the pod template",
    "InvalidImageName": _CHECK_TEMPLATE,
    "CreateContainerConfigError": _CHECK_TEMPLATE,
    "CreateContainerError": _CHECK_TEMPLATE,
    "Failed": _CHECK_TEMPLATE,
    "FailedMount": _CHECK_TEMPLATE,
    "RunContainerError": _CHECK_START,
    "StartError": _CHECK_START,
    "ContainerCannotRun": _CHECK_START,
    "CrashLoopBackOff": "mend the image, or the pod template",
    "Error": "mend the image, or the pod template",
    "OOMKilled": "raise resources.limits.memory of the function in --pod-cache-config",
    "Evicted": "set resources of the function in --pod-cache-config, so that the node has room for it",
    "Unschedulable": "make room in the cluster, or lower the function's resources.requests in --pod-cache-config",
    "Quota": "raise the namespace's quota, or let fewer pods live (--max-parallel-pods-per-function, --pod-ttl)",
    "Forbidden": "check the runner's role, and what admission allows in the namespace",
    "Invalid": _CHECK_TEMPLATE,
}


@dataclass(frozen=True, slots=True)
class Failed:
    """It will not serve, and waiting does not change that."""

    reason: str
    """Kubernetes' word for it."""
    message: str
    may_pass: bool
    """Whether another pod may fare better."""
    advice: str = ""


def failure(reason: str, message: str, *, may_pass: bool, cause: str = "") -> Failed:
    """A failure with the advice for its cause, which is the reason where nothing else is known."""
    advice = _ADVICE.get(cause) or _ADVICE.get(reason, "")
    return Failed(reason, excerpt(message), may_pass, advice)


def may_pass(message: str, *, unless_said: bool) -> bool:
    """Whether a retry may help, by what a text says happened; `unless_said` when it says neither."""
    happened = _NAMES.sub(" ", message)
    if _PASSING.search(happened):
        return True
    return False if _LASTING.search(happened) else unless_said


def creation_failure(error: KubernetesError) -> Failed:
    """The API server did not take the pod: what that means for those who wait for it."""
    message = str(error)
    if isinstance(error, KubernetesUnavailableError):
        return failure("ApiServerUnavailable", message, may_pass=True)
    if isinstance(error, KubernetesForbiddenError):
        # Room in a quota comes back when other pods go.
        quota = "exceeded quota" in message
        return failure("Forbidden", message, may_pass=quota, cause="Quota" if quota else "")
    return failure("Invalid", message, may_pass=False)


def start_error(image: str, pod: str, failed: Failed) -> EvaluationError:
    """The error for one call that waited for the pod."""
    kind = PodNotStartedError if failed.may_pass else PodCannotStartError
    return kind(image, pod=pod, why=failed.reason, message=failed.message, advice=failed.advice)


def overdue(reason: str, message: str, *, after: float) -> Failed:
    """A pod was still starting when its time was over; with what it was waiting for."""
    message = f"not ready after {after:g}s" + (f": {excerpt(message)}" if message else "")
    return failure(reason, message, may_pass=True)


def excerpt(text: str) -> str:
    """A text's beginning and end, as much as a message can hold."""
    text = text.strip()
    if len(text) <= _MAX_MESSAGE:
        return text
    head = _MAX_MESSAGE // 2
    return f"{text[:head].rstrip()} ... {text[head - _MAX_MESSAGE :].lstrip()}"
