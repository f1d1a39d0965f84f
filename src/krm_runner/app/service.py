"""The service from start to end. Read `serve` from top to bottom to know what there is and in which order."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

import structlog

from krm_runner import __version__
from krm_runner.app import memory
from krm_runner.app.exec_runtime import ExecRuntime, read_function_file
from krm_runner.app.front_port import FrontPort, find_front, read_credentials
from krm_runner.app.loops import Loops
from krm_runner.app.own_port import OwnPort
from krm_runner.app.port import Port
from krm_runner.app.shares import function_memory
from krm_runner.core.evaluation import Evaluator
from krm_runner.evaluators.function_file import FunctionFile
from krm_runner.front.pod_questions import PodQuestions
from krm_runner.front.promises import FrontPromises
from krm_runner.process.spawn import initial_environment
from krm_runner.settings import ExecSettings, PodSettings, Settings
from krm_runner.telemetry import exporters, internal_errors, logs
from krm_runner.telemetry.metrics import EvaluationMetrics
from krm_runner.telemetry.pod_metrics import PodMetrics

if TYPE_CHECKING:
    from krm_runner.app.pod_runtime import OpenPodRuntime, PodRuntime

_log = structlog.get_logger("krm_runner")


async def serve(settings: Settings) -> None:
    """Run the service until a signal ends it. ConfigurationError and ServeError when it cannot start, or go on."""
    logs.configure(level=settings.log.level, log_format=settings.log.format)
    memory.keep_freed_memory()
    for name, instead in settings.ignored.items():
        _log.info("flag ignored", flag=f"--{name}", because=instead)
    for name, instead in settings.retired.items():
        _log.warning("flag retired: the next release refuses it", flag=f"--{name}", instead=instead)

    # What can be wrong with files is found out before anything is started.
    front = find_front(settings)
    # Local functions are executed by whoever has the port; here there is only what their file says, then.
    exec_runtime = _exec_runtime(settings.exec, settings) if settings.exec is not None and front is None else None
    functions = exec_runtime.functions if exec_runtime is not None else _functions(settings)
    if exec_runtime is not None and _wants_standby(settings, exec_runtime.functions):
        _log.info("no process is kept in standby: that needs krm-front")
    open_pod_runtime = _pod_runtime(settings.pod, settings) if settings.pod is not None else None
    credentials = read_credentials(settings.security)

    telemetry = exporters.start(settings.exporters)
    metrics = EvaluationMetrics(telemetry.meter)
    internal_errors.observe(telemetry.meter)

    async with AsyncExitStack() as stack:
        stack.push_async_callback(asyncio.to_thread, telemetry.close)
        if exec_runtime is not None:
            stack.callback(exec_runtime.close)
        loops = await stack.enter_async_context(Loops())
        pod_runtime: PodRuntime | None = None
        # Who has the connections to pods asks them, too.
        questions = PodQuestions() if front is not None else None
        promises = FrontPromises() if front is not None else None
        if open_pod_runtime is not None:
            opening = open_pod_runtime(
                loops, metrics=PodMetrics(telemetry.meter), evaluations=metrics, asker=questions, next_calls=promises
            )
            pod_runtime = await stack.enter_async_context(opening)
        pods: list[Evaluator] = [] if pod_runtime is None else [pod_runtime.evaluator]
        port: Port
        # Exec first, always: only a function that it does not know goes on to the next.
        if front is None or questions is None or promises is None:
            port = OwnPort(
                settings,
                pods if exec_runtime is None else [exec_runtime.evaluator, *pods],
                exec_runtime=exec_runtime,
                metrics=metrics,
                tracer=telemetry.tracer,
            )
        else:
            port = FrontPort(
                settings,
                front,
                pods,
                functions=functions,
                credentials=credentials,
                questions=questions,
                promises=promises,
                metrics=metrics,
                spans=telemetry.spans,
            )
            stack.push_async_callback(port.close)
        signals = _Signals(
            reload=functions.reload if functions is not None else _ignore,
            # A front ends with its functions when the link to this process does.
            last_words=exec_runtime.executor.kill_all if exec_runtime is not None else _ignore,
        )
        await _serve_until_told(
            settings, port, loops, signals, functions=functions, pod_runtime=pod_runtime, security=credentials.summary
        )
    _log.info("stopped")


async def _serve_until_told(
    settings: Settings,
    port: Port,
    loops: Loops,
    signals: _Signals,
    *,
    functions: FunctionFile | None,
    pod_runtime: PodRuntime | None,
    security: str,
) -> None:
    runtimes = [name for name, runtime in (("exec", settings.exec), ("pod", settings.pod)) if runtime is not None]
    if not runtimes:
        _log.warning("every runtime is disabled: all calls will be answered with NOT_FOUND")
    warming_up = pod_runtime if settings.pod is not None and settings.pod.wait_for_warm_up else None
    # Before the first question can come: whoever asks at once is not to be told otherwise.
    port.set_serving(warming_up is None)
    await port.start(loops)
    loops.start(memory.give_back_when_idle(lambda: port.calls_arrived), name="memory give-back")
    if functions is not None:
        loops.start(functions.watch(), name="function configuration")
    memory.settle_objects()
    becoming_ready = asyncio.create_task(_become_ready(port, warming_up))
    _log.info(
        "serving",
        version=__version__,
        port=port.number,
        front=port.front,
        runtimes=",".join(runtimes) or "none",
        images=len(functions.table.executables) if functions is not None else 0,
        security=security,
    )
    reason = "a loop ended"
    try:
        reason = await signals.wait()
    finally:
        # A loop that has ended cancels the wait: calls are finished as after a signal.
        becoming_ready.cancel()
        _log.info("stopping", reason=reason, calls=port.calls_under_way)
        await port.stop(lame_duck=settings.server.shutdown_delay, total=settings.server.shutdown_timeout)


async def _become_ready(port: Port, warming_up: PodRuntime | None) -> None:
    """If not yet: when every function was warmed up or has failed to, since each start has its own deadline."""
    if warming_up is not None:
        await warming_up.warm_up.done.wait()
        port.set_serving(True)


def _wants_standby(settings: Settings, functions: FunctionFile) -> bool:
    by_default = settings.exec is not None and settings.exec.standby.default > 0
    return by_default or any(functions.table.standby.values())


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
        max_memory=function_memory(settings.max_memory),
        may_fall_back=all_settings.pod is not None,
    )


def _functions(settings: Settings) -> FunctionFile | None:
    local = settings.exec
    if local is None:
        return None
    return read_function_file(
        local.config,
        required=local.config_is_required,
        functions=local.functions,
        default_prefix=settings.server.default_image_prefix,
        may_fall_back=settings.pod is not None,
    )


def _pod_runtime(pods: PodSettings, all_settings: Settings) -> OpenPodRuntime:
    # 50 MB, and most of the time of a start, which a runner without pods does not need.
    from krm_runner.app.pod_runtime import prepare_pod_runtime  # noqa: PLC0415

    return prepare_pod_runtime(pods, all_settings)


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
        return await asyncio.shield(self._received)

    def _on_stop(self, number: signal.Signals) -> None:
        if not self._received.done():
            self._received.set_result(number.name)
            return
        _log.warning("second signal: ending at once", signal=number.name)
        self._last_words()
        os._exit(128 + number)


def _ignore() -> None:
    """Nothing to do where a runtime is disabled."""
