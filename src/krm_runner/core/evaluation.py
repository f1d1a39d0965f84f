"""What is evaluated, what comes back, and what every runtime must offer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from krm_runner.core.held_call import HeldCall, PassedOn
from krm_runner.core.image_ref import ImageRef


@dataclass(slots=True)
class EvaluationRequest:
    """One call. The resource list travels as bytes: nobody decodes what it only passes on."""

    image: str
    """The image as the caller wrote it; messages and logs name this."""
    reference: ImageRef
    resource_list: bytes | memoryview
    deadline: float
    """When the answer must be there, on the event loop's clock; keeping it is the runtime's duty."""
    runtime: str = ""
    """The runtime that has the call, said by the chain; empty while none has it."""
    trace: tuple[tuple[str, str], ...] = ()
    """Trace headers for the pod; empty if the call is not traced or krm-front sends it, which adds its own."""
    held: HeldCall | None = None
    """Stands for the resource list, which is empty then, where somebody else holds it."""


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """A successful evaluation: the function's output, byte for byte, and its log."""

    resource_list: bytes | memoryview
    log: bytes
    runtime: str
    queue_wait: float = 0.0
    """Seconds that the call waited for its turn."""
    pod: str = ""
    """The pod that executed it, where one did."""
    failed_results: tuple[str, ...] = field(default=())
    """Results of severity error that the function reported although it succeeded, one line each."""
    passed_on: PassedOn | None = None
    """How large the answer was that a held call's caller has already; output and log are empty then."""


class Evaluator(Protocol):
    """A runtime: executes a function or raises an EvaluationError."""

    @property
    def runtime(self) -> str:
        """The runtime's name, for logs and metrics."""
        ...

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        """Execute the function; FunctionNotFoundError when this runtime does not know it.

        DeadlineExceededError when the request's deadline passes first.
        """
        ...
