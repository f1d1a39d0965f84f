"""What the answers of one pod's wrapper server mean: its results, and the one error that stands for each status.

The same whether the answer came to this process or to whoever holds the call's message for it.
"""

from __future__ import annotations

import grpc

from krm_runner.core.errors import DeadlineExceededError, EvaluationError, PodLostError, RemoteError
from krm_runner.core.evaluation import EvaluationRequest, EvaluationResult
from krm_runner.core.held_call import ForwardOutcome, NoAnswer, PassedOn, ReturnedStatus
from krm_runner.rpc import wire
from krm_runner.rpc.connection_trouble import Trouble, trouble_of
from krm_runner.rpc.remote_status import Details, read_details

_RUNTIME = "pod"
_ENDING = "SHUTTING_DOWN"
_CODES: dict[int, grpc.StatusCode] = {code.value[0]: code for code in grpc.StatusCode}


class WrapperAnswers:
    """Reads the answers of one pod."""

    def __init__(self, *, pod: str, message_limit: int) -> None:
        self._pod = pod
        self._message_limit = message_limit

    def result(self, request: EvaluationRequest, message: bytes) -> EvaluationResult:
        """Of a message; RemoteError when it is none."""
        try:
            resource_list, log = wire.decode_response(message)
        except wire.WireError as error:
            raise RemoteError(
                request.image,
                code=grpc.StatusCode.INTERNAL.name,
                message=f'function "{request.image}": what pod "{self._pod}" answered is no response: {error}',
                facts={"pod": self._pod},
            ) from error
        return EvaluationResult(resource_list=resource_list, log=bytes(log), runtime=_RUNTIME)

    def of_held_call(self, request: EvaluationRequest, outcome: ForwardOutcome, *, after: float) -> EvaluationResult:
        """Of a message that did not come here; its error otherwise."""
        match outcome:
            case PassedOn():
                return EvaluationResult(resource_list=b"", log=b"", runtime=_RUNTIME, passed_on=outcome)
            case ReturnedStatus(code, text, details):
                failure = self.failure(
                    request, code_of(code), text, read_details(details) if details else None, after=after
                )
                raise failure if isinstance(failure, EvaluationError) else self.lost(request, failure)
            case NoAnswer(why, reached, is_unnamed):
                raise self.lost(request, Trouble(why, reached, is_unnamed))

    def failure(
        self, request: EvaluationRequest, code: grpc.StatusCode, text: str, details: Details | None, *, after: float
    ) -> EvaluationError | Trouble:
        """The one error that stands for a status; or what is wrong with the connection."""
        if details is not None:
            return self._answered(request, code, text, details)
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return self.too_late(request, after=after)
        return trouble_of(code, text) or self._foreign(request, code, text)

    def too_late(self, request: EvaluationRequest, *, after: float) -> DeadlineExceededError:
        """The call's time was over before the pod answered."""
        return DeadlineExceededError(request.image, after=after, pod=self._pod)

    def lost(self, request: EvaluationRequest, trouble: Trouble) -> PodLostError:
        """There is no answer, and there will be none."""
        return PodLostError(request.image, pod=self._pod, why=trouble.why, reached=trouble.reached)

    def _answered(
        self, request: EvaluationRequest, code: grpc.StatusCode, text: str, details: Details
    ) -> EvaluationError:
        if code is grpc.StatusCode.UNAUTHENTICATED:
            # Not the caller's fault: the pod's token is another than its annotations say.
            return self.lost(request, Trouble("it does not accept this runner's token", reached=False))
        if details.reason == _ENDING:
            reached = details.facts.get("started") != "false"
            return self.lost(request, Trouble("it is shutting down", reached))
        return RemoteError(
            request.image,
            code=code.name,
            message=text,
            reason=details.reason,
            facts={**details.facts, "pod": self._pod},
            retry_after=details.retry_after,
        )

    def _foreign(self, request: EvaluationRequest, code: grpc.StatusCode, text: str) -> EvaluationError:
        """Not in the words of a wrapper: of gRPC itself, of a proxy, or of another program."""
        if "Received message larger than max" in text:
            text = (
                f"its answer is larger than the limit of {self._message_limit} bytes set by --max-request-body-size; "
                "the pod was started with another one"
            )
        return RemoteError(
            request.image,
            code=code.name,
            message=f'function "{request.image}": pod "{self._pod}" answered {code.name}: {text}',
            facts={"pod": self._pod},
        )


def code_of(number: int) -> grpc.StatusCode:
    """By gRPC's own number."""
    return _CODES.get(number, grpc.StatusCode.UNKNOWN)
