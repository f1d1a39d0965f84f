"""The service from start to end. Read `serve` from top to bottom to know what there is and in which order."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from krm_runner import __version__
from krm_runner.app import memory
from krm_runner.app.exec_runtime import ExecRuntime
from krm_runner.core.bearer_tokens import BearerTokens
from krm_runner.core.evaluation import Evaluator
from krm_runner.core.request_budget import RequestBudget
from krm_runner.evaluators.chain import ChainEvaluator
from krm_runner.evaluators.executable import ExecutableEvaluator
from krm_runner.files.kept_files import KeptFiles
from krm_runner.process.executor import Executor
from krm_runner.process.memory_limit import usable_memory
from krm_runner.process.spawn import initial_environment
from krm_runner.rpc.evaluate import EvaluateHandler
from krm_runner.rpc.server import GrpcServer
from krm_runner.rpc.server_certificates import ServerCertificates
from krm_runner.settings import ExecSettings, PodSettings, SecuritySettings, Settings
from krm_runner.telemetry import exporters, logs
from krm_runner.telemetry.metrics import EvaluationMetrics
from krm_runner.telemetry.pod_metrics import PodMetrics

if TYPE_CHECKING:
    from krm_runner.app.pod_runtime import OpenPodRuntime, PodRuntime

_log = structlog.get_logger("krm_runner")
_SHARE_OF_REQUESTS = 4
"""An answer takes as much again as its request, and whoever has both may need a third copy for a moment."""
_SHARE_OF_FUNCTIONS = 2


async def serve(settings: Settings) -> None:
    """Run the service until a signal ends it. ConfigurationError and ServeError when it cannot start."""
    logs.configure(level=settings.log.level, log_format=settings.log.format)
    memory.keep_freed_memory()

    # What can be wrong with files is found out before anything is started.
    exec_runtime = _exec_runtime(settings.exec, settings) if settings.exec is not None else None
    open_pod_runtime = _pod_runtime(settings.pod, settings) if settings.pod is not None else None
    security = _security(settings.security)

    telemetry = exporters.start(settings.exporters)
    metrics = EvaluationMetrics(telemetry.meter)

    async with AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, telemetry.close)
        # Exec first, always: only a function that it does not know goes on to the next.
        evaluators: list[Evaluator] = []
        if exec_runtime is not None:
            stack.callback(exec_runtime.close)
            evaluators.append(exec_runtime.evaluator)
            _observe(exec_runtime.executor, metrics)
        pod_runtime: PodRuntime | None = None
        if open_pod_runtime is not None:
            opening = open_pod_runtime(metrics=PodMetrics(telemetry.meter), evaluations=metrics)
            pod_runtime = await stack.enter_async_context(opening)
            evaluators.append(pod_runtime.evaluator)
        if not evaluators:
            _log.warning("every runtime is disabled: all calls will be answered with NOT_FOUND")
        handler = EvaluateHandler(
            ChainEvaluator(evaluators),
            metrics=metrics,
            tracer=telemetry.tracer,
            message_limit=settings.server.max_message_bytes,
            budget=RequestBudget(settings.server.max_request_memory or usable_memory() // _SHARE_OF_REQUESTS),
            default_timeout=settings.server.default_timeout,
            default_prefix=settings.server.default_image_prefix,
            log_payloads=settings.log.level >= logs.PAYLOADS,
            accepted_tokens=security.accepted_tokens,
        )
        await _serve_until_told(
            settings, handler, evaluators, security=security, exec_runtime=exec_runtime, pod_runtime=pod_runtime
        )
    _log.info("stopped")


async def _serve_until_told(
    settings: Settings,
    handler: EvaluateHandler,
    evaluators: Sequence[Evaluator],
    *,
    security: _Security,
    exec_runtime: ExecRuntime | None,
    pod_runtime: PodRuntime | None,
) -> None:
    server = GrpcServer(
        handler,
        port=settings.server.port,
        message_limit=settings.server.max_message_bytes,
        certificates=security.certificates,
        health_port=settings.security.health_port,
    )
    signals = _Signals(
        reload=exec_runtime.functions.reload if exec_runtime else _ignore,
        last_words=exec_runtime.executor.kill_all if exec_runtime else _ignore,
    )
    async with asyncio.TaskGroup() as background:
        loops = [background.create_task(memory.give_back_when_idle(lambda: handler.calls_arrived))]
        if exec_runtime is not None:
            loops += [background.create_task(loop) for loop in exec_runtime.background()]
        loops += [background.create_task(loop) for loop in security.background()]
        await server.start()
        memory.settle_objects()
        waits_for_warm_up = settings.pod is not None and settings.pod.wait_for_warm_up
        becoming_ready = background.create_task(_become_ready(server, pod_runtime if waits_for_warm_up else None))
        _log.info(
            "serving",
            version=__version__,
            port=server.port,
            runtimes=",".join(evaluator.runtime for evaluator in evaluators) or "none",
            images=len(exec_runtime.functions.table.executables) if exec_runtime else 0,
            security=security.in_words,
        )
        received = await signals.wait()
        becoming_ready.cancel()
        _log.info("stopping", signal=received, calls=handler.calls_under_way)
        if exec_runtime is not None:
            exec_runtime.stop_standby()
        await server.stop(lame_duck=settings.server.shutdown_delay, total=settings.server.shutdown_timeout)
        for loop in loops:
            loop.cancel()


async def _become_ready(server: GrpcServer, warming_up: PodRuntime | None) -> None:
    """At once, or when every function was warmed up or has failed to: each start has its own deadline."""
    if warming_up is not None:
        await warming_up.warm_up.done.wait()
    server.set_serving(True)


def _exec_runtime(settings: ExecSettings, all_settings: Settings) -> ExecRuntime:
    return ExecRuntime(
        functions=settings.functions,
        config=settings.config,
        config_is_required=settings.config_is_required,
        default_prefix=all_settings.server.default_image_prefix,
        environment=initial_environment(),
        message_limit=all_settings.server.max_message_bytes,
        max_parallel=settings.max_parallel,
        max_waiting=settings.max_waiting,
        max_memory=settings.max_memory or usable_memory() // _SHARE_OF_FUNCTIONS,
        standby=settings.standby,
    )


def _pod_runtime(pods: PodSettings, all_settings: Settings) -> OpenPodRuntime:
    # 50 MB, and most of the time of a start, which a runner without pods does not need.
    from krm_runner.app.pod_runtime import prepare_pod_runtime  # noqa: PLC0415

    return prepare_pod_runtime(pods, all_settings)


@dataclass(frozen=True, slots=True)
class _Security:
    """What callers need to be let in; nothing, mostly."""

    certificates: ServerCertificates | None
    tokens: KeptFiles[BearerTokens] | None

    @property
    def accepted_tokens(self) -> Callable[[], BearerTokens] | None:
        """None when no token is asked for."""
        tokens = self.tokens
        return None if tokens is None else lambda: tokens.current

    @property
    def in_words(self) -> str:
        """For the log."""
        transport = "plain text"
        if self.certificates is not None:
            transport = "mutual TLS" if self.certificates.wants_clients_certificates else "TLS"
        return transport if self.tokens is None else f"{transport}, tokens"

    def background(self) -> list[Coroutine[object, object, None]]:
        """What follows the files; never returns."""
        return [kept.keep() for kept in (self.certificates, self.tokens) if kept is not None]


def _security(settings: SecuritySettings) -> _Security:
    files, tokens = settings.certificates, settings.tokens
    return _Security(
        certificates=ServerCertificates(files.certificate, files.key, settings.client_cas) if files else None,
        tokens=KeptFiles([tokens], parse=lambda found: BearerTokens.parse(found[0], source=str(tokens)))
        if tokens
        else None,
    )


def _observe(executor: Executor, metrics: EvaluationMetrics) -> None:
    executor.on_turn = lambda seconds: metrics.waited(seconds, runtime=ExecutableEvaluator.runtime)
    metrics.observe_executions(
        running=lambda: executor.running, waiting=lambda: executor.waiting, memory=lambda: executor.memory
    )
    executor.on_ended = lambda function, origin, seconds: metrics.executed(
        function=function, process=origin, seconds=seconds
    )
    if executor.standby is not None:
        metrics.observe_standby(waiting=executor.standby.waiting, memory=executor.standby.memory)


class _Signals:
    """SIGTERM and SIGINT ask for the end; a second one ends at once. SIGHUP reloads the configuration."""

    def __init__(self, *, reload: Callable[[], None], last_words: Callable[[], None]) -> None:
        self._last_words = last_words
        loop = asyncio.get_running_loop()
        self._received: asyncio.Future[str] = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGHUP, reload)

    async def wait(self) -> str:
        """The name of the first signal that asks for the end."""
        return await self._received

    def _on_stop(self, number: signal.Signals) -> None:
        if not self._received.done():
            self._received.set_result(number.name)
            return
        _log.warning("second signal: ending at once", signal=number.name)
        self._last_words()
        os._exit(128 + number)


def _ignore() -> None:
    """Nothing to do where a runtime is disabled."""
