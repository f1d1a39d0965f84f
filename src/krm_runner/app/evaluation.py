"""One evaluation from the command line: with a runner, or with the exec runtime in this process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from krm_runner.app.exec_runtime import ExecRuntime
from krm_runner.core.errors import DeadlineExceededError
from krm_runner.core.evaluation import EvaluationRequest, EvaluationResult, Evaluator
from krm_runner.process.spawn import initial_environment
from krm_runner.rpc.client import RemoteEvaluator
from krm_runner.settings.evaluation import EvalSettings
from krm_runner.telemetry import logs

_MAX_LOCAL_OUTPUT = 1024**3


@asynccontextmanager
async def evaluator_for(settings: EvalSettings) -> AsyncGenerator[Evaluator]:
    """Whoever is to evaluate the function."""
    logs.configure(level=0, log_format="text")
    if settings.address:
        async with RemoteEvaluator(settings.address) as remote:
            yield remote
        return
    runtime = ExecRuntime(
        functions=settings.functions,
        config=settings.function_table,
        config_is_required=settings.function_table_is_required,
        default_prefix=settings.default_image_prefix,
        environment=_local_environment(),
        message_limit=_MAX_LOCAL_OUTPUT,
    )
    try:
        yield runtime.evaluator
    finally:
        runtime.close()


async def evaluate(evaluator: Evaluator, settings: EvalSettings, resource_list: bytes) -> EvaluationResult:
    """One call; an EvaluationError when it fails."""
    loop = asyncio.get_running_loop()
    started = loop.time()
    request = EvaluationRequest(
        image=settings.image,
        reference=settings.reference,
        resource_list=resource_list,
        deadline=started + settings.timeout,
    )
    try:
        async with asyncio.timeout_at(request.deadline):
            return await evaluator.evaluate(request)
    except TimeoutError as error:
        raise DeadlineExceededError(settings.image, after=loop.time() - started) from error


def _local_environment() -> dict[bytes, bytes]:
    """Ours, with this interpreter first: functions in Python find the libraries that come with krm-runner."""
    environment = initial_environment()
    here = os.fsencode(os.path.dirname(sys.executable))
    environment[b"PATH"] = os.pathsep.encode().join(filter(None, (here, environment.get(b"PATH", b""))))
    return environment
