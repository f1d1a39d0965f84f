"""The one tree of errors.

Every failure that a caller or an operator can meet is a class here, and its message is complete: what went
wrong, with which function, and what to do. Adapters translate their library's errors into these once; which
gRPC status each of them becomes is decided in `rpc.status`, not here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

_LONGEST_RETRY = 30.0
_LONGEST_LINE = 2000


def one_line(text: str, *, longest: int = _LONGEST_LINE) -> str:
    """Return text that quotes a user's file as one line for a person: cut, and without control characters."""
    if len(text) > longest:
        text = f"{text[:longest]}…"
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)


class KrmRunnerError(Exception):
    """Whatever this program raises on purpose."""


class ConfigurationError(KrmRunnerError):
    """A flag, an environment variable or a file is wrong; the service does not start (or keeps its old file).

    The message is always one line of a bounded length.
    """

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


class ServeError(KrmRunnerError):
    """The configuration is fine but the service cannot run here: its port is taken, for example."""


class KubernetesError(KrmRunnerError):
    """The API server refused or did not answer; the message has its own words, cut to a readable length."""

    def __init__(self, message: str, *, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


class KubernetesNotFoundError(KubernetesError):
    """There is no such object, or no such namespace."""


class KubernetesConflictError(KubernetesError):
    """The object exists already, or was changed by somebody else meanwhile: read it again."""


class KubernetesForbiddenError(KubernetesError):
    """The runner's account may not do that, or admission refuses it: nothing that a retry would change."""


class KubernetesInvalidError(KubernetesError):
    """The object, or a change of it, is against the rules of its kind."""


class KubernetesUnavailableError(KubernetesError):
    """The API server is away, overloaded or too slow: a retry may help."""

    def __init__(
        self, message: str, *, status: int = 0, retry_after: float | None = None, is_sent: bool = True
    ) -> None:
        """`is_sent`: it may have done what it was asked, and only its answer is missing."""
        super().__init__(message, status=status)
        self.retry_after = retry_after
        self.is_sent = is_sent


class EvaluationError(KrmRunnerError):
    """One call failed. `reason` is for machines, the message for people."""

    reason: str = "EVALUATION_FAILED"
    retry_after: float | None = None

    def __init__(self, message: str, *, image: str = "", facts: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.image = image
        self.facts: dict[str, str] = dict(facts or {})


class InvalidRequestError(EvaluationError):
    """The request itself makes no sense: no image, a malformed image, not a protobuf message."""

    reason = "INVALID_REQUEST"


class FunctionNotFoundError(EvaluationError):
    """A runtime does not know the function; the only error that lets the next runtime try."""

    reason = "FUNCTION_NOT_FOUND"

    def __init__(self, image: str) -> None:
        super().__init__(f'function "{image}" not found', image=image)


class FunctionFailedError(EvaluationError):
    """The function ran and ended with a non-zero exit code or by a signal."""

    reason = "FUNCTION_FAILED"

    def __init__(
        self,
        image: str,
        *,
        ending: str,
        results: Sequence[str],
        stderr: str,
        facts: Mapping[str, str],
        output: bytes = b"",
    ) -> None:
        """`output` is the ResourceList that the results are from, for those who want them as they are."""
        self.output = output
        parts = [f'function "{image}" {ending}']
        if results:
            parts.append("results:\n" + "\n".join(f"  {line}" for line in results))
        super().__init__(_with_stderr("\n".join(parts), stderr), image=image, facts=facts)


class InvalidOutputError(EvaluationError):
    """The function ended well, but what it wrote is no ResourceList."""

    reason = "INVALID_OUTPUT"

    def __init__(self, image: str, *, why: str, stderr: str) -> None:
        headline = f'function "{image}" exited with code 0, but its output is not a ResourceList: {why}'
        super().__init__(_with_stderr(headline, stderr), image=image, facts={"exit_code": "0"})


class CannotExecuteError(EvaluationError):
    """The function's executable could not be started."""

    reason = "CANNOT_EXECUTE"

    def __init__(self, image: str, *, executable: str, why: str) -> None:
        super().__init__(
            f'function "{image}" cannot be executed: {executable}: {why}',
            image=image,
            facts={"executable": executable},
        )


class OutputTooLargeError(EvaluationError):
    """The function wrote more than an answer may hold; it was stopped at the limit."""

    reason = "OUTPUT_TOO_LARGE"

    def __init__(self, image: str, *, written: int, room: int, limit: int) -> None:
        super().__init__(
            f'function "{image}" wrote at least {written} bytes, more than the {room} that fit into a message of '
            f"{limit} bytes; it was stopped. Raise --max-request-body-size here and in porch-server, or make the "
            "package smaller",
            image=image,
            facts={"limit": str(limit)},
        )


class MessageTooLargeError(EvaluationError):
    """The request is larger than the limit."""

    reason = "MESSAGE_TOO_LARGE"

    def __init__(self, *, size: int, limit: int) -> None:
        super().__init__(
            f"the request has {size} bytes, more than the limit of {limit} bytes set by "
            "--max-request-body-size; raise it here and in porch-server, or make the package smaller",
            facts={"size": str(size), "limit": str(limit)},
        )


class QueueFullError(EvaluationError):
    """Too many calls of this function wait already."""

    reason = "QUEUE_FULL"
    retry_after = 1.0

    def __init__(self, image: str, *, waiting: int) -> None:
        super().__init__(
            f'function "{image}" has {waiting} calls waiting already (--max-queue-length); try again later',
            image=image,
            facts={"waiting": str(waiting)},
        )


class TooBusyError(EvaluationError):
    """The call's turn would come too late for its deadline."""

    reason = "TOO_BUSY"

    def __init__(self, image: str, *, waiting: int, expected: float) -> None:
        self.retry_after = min(max(expected, 1.0), _LONGEST_RETRY)
        super().__init__(
            f'function "{image}" is not run: {waiting} calls wait already, its turn would come in about '
            f"{expected:.1f} s, too late for its deadline; try again later",
            image=image,
            facts={"waiting": str(waiting), "expected_seconds": f"{expected:.1f}"},
        )


class OverloadedError(EvaluationError):
    """The requests under way take all the memory that they may have."""

    reason = "OVERLOADED"
    retry_after = 1.0

    def __init__(self, image: str, *, size: int, used: int, limit: int) -> None:
        super().__init__(
            f'function "{image}" is not run now: the runner is overloaded. The requests that it has take {used} bytes, '
            f"and with this one of {size} bytes more than {limit} (--max-request-memory); try again later",
            image=image,
            facts={"size": str(size), "used": str(used), "limit": str(limit)},
        )


class OutOfResourcesError(EvaluationError):
    """The machine has no process, file or memory left to start the function with."""

    reason = "OUT_OF_RESOURCES"
    retry_after = 1.0

    def __init__(self, image: str, *, why: str) -> None:
        super().__init__(f'function "{image}" could not be started for now: {why}; try again later', image=image)


class DeadlineExceededError(EvaluationError):
    """The call's time was over before the function's answer was there."""

    reason = "DEADLINE_EXCEEDED"

    def __init__(self, image: str, *, after: float, pod: str = "", waiting_for: str = "") -> None:
        """`waiting_for` is what the call waited for when the function was not even started."""
        where = f' in pod "{pod}"' if pod else ""
        happened = (
            f"was not started before the deadline of the call; after {after:.1f}s it still waited for {waiting_for}"
            if waiting_for
            else f"did not answer before the deadline of the call; it was stopped after {after:.1f}s"
        )
        super().__init__(f'function "{image}"{where} {happened}', image=image, facts={"pod": pod} if pod else {})


class ShuttingDownError(EvaluationError):
    """The runner is stopping and the call could not end in time."""

    reason = "SHUTTING_DOWN"
    retry_after = 1.0

    def __init__(self, image: str) -> None:
        super().__init__(f'function "{image}" was stopped because this runner is shutting down; try again', image=image)


class ImageNotFoundError(EvaluationError):
    """The registry says that there is no such image."""

    reason = "IMAGE_NOT_FOUND"

    def __init__(self, image: str, *, why: str) -> None:
        super().__init__(f'image "{image}" was not found: {why}', image=image)


class ImagePullRefusedError(EvaluationError):
    """The registry wants credentials that the runner does not have, or does not accept those that it has."""

    reason = "IMAGE_PULL_REFUSED"

    def __init__(self, image: str, *, why: str) -> None:
        super().__init__(f'image "{image}" may not be read: {why}', image=image)


class ImageUnusableError(EvaluationError):
    """The registry has something of this name, but nothing that could be run as a function here."""

    reason = "IMAGE_UNUSABLE"

    def __init__(self, image: str, *, why: str) -> None:
        super().__init__(f'image "{image}" cannot be used: {why}', image=image)


class RegistryUntrustedError(EvaluationError):
    """The registry's certificate is not trusted, or it speaks plain HTTP where that is not allowed."""

    reason = "REGISTRY_UNTRUSTED"

    def __init__(self, image: str, *, why: str) -> None:
        super().__init__(f'image "{image}" cannot be read safely: {why}', image=image)


class RegistryUnavailableError(EvaluationError):
    """The registry does not answer, or not in time; it may later."""

    reason = "REGISTRY_UNAVAILABLE"
    retry_after = 5.0

    def __init__(self, image: str, *, why: str) -> None:
        super().__init__(f'image "{image}" cannot be looked up for now: {why}; try again later', image=image)
        self.why = why


class NoPodTemplateError(EvaluationError):
    """There is nothing to make a pod from: the template is missing, broken, or cannot be read for now."""

    reason = "NO_POD_TEMPLATE"
    retry_after = 5.0

    def __init__(self, image: str, *, why: str) -> None:
        super().__init__(f'function "{image}" cannot be started: there is no pod template: {why}', image=image)


class PodCannotStartError(EvaluationError):
    """Kubernetes will not run the function's pod until somebody changes something."""

    reason = "POD_CANNOT_START"

    def __init__(self, image: str, *, pod: str, why: str, message: str, advice: str) -> None:
        advice = f"; {advice}" if advice else ""
        super().__init__(
            f'function "{image}" cannot be started: pod "{pod}": {why}: {message}{advice}',
            image=image,
            facts={"pod": pod, "pod_reason": why},
        )


class PodNotStartedError(EvaluationError):
    """The function's pod did not come up this time, or not in time; another one may."""

    reason = "POD_NOT_STARTED"
    retry_after = 5.0

    def __init__(self, image: str, *, pod: str, why: str, message: str, advice: str) -> None:
        advice = f"; try again later, or {advice}" if advice else "; try again later"
        super().__init__(
            f'function "{image}" could not be started for now: pod "{pod}": {why}: {message}{advice}',
            image=image,
            facts={"pod": pod, "pod_reason": why},
        )


class PodLostError(EvaluationError):
    """The connection to the function's pod could not be made, or broke.

    `reached`: the function may have been started, so that another call could run it twice.
    """

    reason = "POD_LOST"
    retry_after = 1.0

    def __init__(self, image: str, *, pod: str, why: str, reached: bool) -> None:
        if reached:
            what = f'did not answer: its pod "{pod}" was lost'
        else:
            what = f'could not be called: its pod "{pod}" cannot be reached'
        super().__init__(
            f'function "{image}" {what}: {why}; try again',
            image=image,
            facts={"pod": pod, "reached": str(reached).lower()},
        )
        self.reached = reached
        self.why = why


class RemoteError(EvaluationError):
    """Another runner, or a pod's wrapper server, answered with an error: code, message and the rest are its own."""

    def __init__(
        self,
        image: str,
        *,
        code: str,
        message: str,
        reason: str = "REMOTE",
        facts: Mapping[str, str] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, image=image, facts=facts)
        self.code = code
        self.reason = reason
        self.retry_after = retry_after


class UnexpectedError(EvaluationError):
    """A defect of the runner itself: the log has the traceback."""

    reason = "UNEXPECTED"

    def __init__(self, image: str, *, cause: BaseException) -> None:
        super().__init__(
            f'function "{image}": unexpected {type(cause).__name__} in the runner; its log has the details',
            image=image,
        )


def _with_stderr(headline: str, stderr: str) -> str:
    text = stderr.strip("\n")
    return f"{headline}\nstderr:\n{text}" if text.strip() else headline
