"""Runtimes in a row: the first one that knows the function serves it."""

from __future__ import annotations

from collections.abc import Sequence

from krm_runner.core.errors import FunctionNotFoundError
from krm_runner.core.evaluation import EvaluationRequest, EvaluationResult, Evaluator


class ChainEvaluator:
    """Asks each runtime in the order given; only FunctionNotFoundError moves on, any other error is the answer."""

    runtime = "none"

    def __init__(self, evaluators: Sequence[Evaluator]) -> None:
        self._evaluators = tuple(evaluators)

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        """The answer of the first runtime that knows the function."""
        for evaluator in self._evaluators:
            request.runtime = evaluator.runtime
            try:
                return await evaluator.evaluate(request)
            except FunctionNotFoundError:
                request.runtime = ""
        raise FunctionNotFoundError(request.image)
