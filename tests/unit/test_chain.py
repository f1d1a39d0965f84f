"""The chain of runtimes: in order, and only an unknown function moves on."""

from __future__ import annotations

import pytest

from krm_runner.core import image_ref
from krm_runner.core.errors import EvaluationError, FunctionNotFoundError, QueueFullError
from krm_runner.core.evaluation import EvaluationRequest, EvaluationResult, Evaluator
from krm_runner.evaluators.chain import ChainEvaluator

IMAGE = "example.com/f:v1"


@pytest.fixture
def request_() -> EvaluationRequest:
    return EvaluationRequest(image=IMAGE, reference=image_ref.parse(IMAGE), resource_list=b"", deadline=0)


class Runtime:
    """Knows one image, or fails."""

    def __init__(self, runtime: str, *, error: EvaluationError | None = None) -> None:
        self.runtime = runtime
        self.calls = 0
        self._error = error

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        self.calls += 1
        if self._error is not None:
            raise self._error
        return EvaluationResult(resource_list=b"", log=b"", runtime=self.runtime)


async def test_the_first_runtime_that_knows_the_function_serves_it(request_: EvaluationRequest) -> None:
    first, second = Runtime("exec"), Runtime("pod")
    evaluators: list[Evaluator] = [first, second]
    assert (await ChainEvaluator(evaluators).evaluate(request_)).runtime == "exec"
    assert (first.calls, second.calls) == (1, 0)


async def test_an_unknown_function_moves_on(request_: EvaluationRequest) -> None:
    first, second = Runtime("exec", error=FunctionNotFoundError(IMAGE)), Runtime("pod")
    assert (await ChainEvaluator([first, second]).evaluate(request_)).runtime == "pod"


async def test_any_other_error_is_the_answer_and_the_request_knows_its_runtime(request_: EvaluationRequest) -> None:
    failure = QueueFullError(IMAGE, waiting=1)
    first, second = Runtime("exec", error=failure), Runtime("pod")
    with pytest.raises(QueueFullError) as raised:
        await ChainEvaluator([first, second]).evaluate(request_)
    assert raised.value is failure
    assert request_.runtime == "exec"
    assert second.calls == 0


@pytest.mark.parametrize("runtimes", [[], ["exec"], ["exec", "pod"]])
async def test_a_function_that_nobody_knows_is_not_found(request_: EvaluationRequest, runtimes: list[str]) -> None:
    chain = ChainEvaluator([Runtime(name, error=FunctionNotFoundError("inner")) for name in runtimes])
    with pytest.raises(FunctionNotFoundError, match=f'function "{IMAGE}" not found'):
        await chain.evaluate(request_)
    assert request_.runtime == ""
