"""The port in this process: the gRPC server and the exec runtime's processes."""

from __future__ import annotations

from collections.abc import Sequence

from opentelemetry.trace import Tracer

from krm_runner.app.exec_runtime import ExecRuntime
from krm_runner.app.loops import Loops
from krm_runner.app.shares import request_memory
from krm_runner.core.evaluation import Evaluator
from krm_runner.core.request_budget import RequestBudget
from krm_runner.evaluators.chain import ChainEvaluator
from krm_runner.evaluators.executable import ExecutableEvaluator
from krm_runner.process.executor import Executor
from krm_runner.rpc.evaluate import EvaluateHandler
from krm_runner.rpc.server import GrpcServer
from krm_runner.settings import Settings
from krm_runner.telemetry import logs
from krm_runner.telemetry.metrics import EvaluationMetrics


class OwnPort:
    """See `app.port.Port`."""

    front = "none"

    def __init__(
        self,
        settings: Settings,
        evaluators: Sequence[Evaluator],
        *,
        exec_runtime: ExecRuntime | None,
        metrics: EvaluationMetrics,
        tracer: Tracer | None,
    ) -> None:
        """`evaluators` are asked in their order; ServeError when a port cannot be had."""
        self._exec_runtime = exec_runtime
        if exec_runtime is not None:
            _observe(exec_runtime.executor, metrics)
        self._handler = EvaluateHandler(
            ChainEvaluator(evaluators),
            metrics=metrics,
            tracer=tracer,
            message_limit=settings.server.max_message_bytes,
            budget=RequestBudget(request_memory(settings.server.max_request_memory)),
            default_timeout=settings.server.default_timeout,
            default_prefix=settings.server.default_image_prefix,
            log_payloads=settings.log.level >= logs.PAYLOADS,
        )
        self._server = GrpcServer(
            self._handler,
            port=settings.server.port,
            message_limit=settings.server.max_message_bytes,
        )
        self.number = self._server.port

    @property
    def calls_arrived(self) -> int:
        """See `app.port.Port`."""
        return self._handler.calls_arrived

    @property
    def calls_under_way(self) -> int:
        """See `app.port.Port`."""
        return self._handler.calls_under_way

    async def start(self, loops: Loops) -> None:
        """See `app.port.Port`."""
        await self._server.start()
        if self._exec_runtime is not None:
            loops.start(self._exec_runtime.executor.reap_strays(), name="reaping of processes")

    def set_serving(self, serving: bool) -> None:
        """See `app.port.Port`."""
        self._server.set_serving(serving)

    async def stop(self, *, lame_duck: float, total: float) -> None:
        """See `app.port.Port`."""
        await self._server.stop(lame_duck=lame_duck, total=total)


def _observe(executor: Executor, metrics: EvaluationMetrics) -> None:
    executor.on_turn = lambda seconds: metrics.waited(seconds, runtime=ExecutableEvaluator.runtime)
    metrics.observe_executions(
        running=lambda: executor.running, waiting=lambda: executor.waiting, memory=lambda: executor.memory
    )
    executor.on_ended = lambda function, seconds: metrics.executed(
        function=function, process="on-demand", seconds=seconds
    )
