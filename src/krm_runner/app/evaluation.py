"""One evaluation from the command line: with a runner, or with the exec runtime in this process."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from krm_runner.app.exec_runtime import ExecRuntime
from krm_runner.core.bearer_tokens import secret_lines
from krm_runner.core.errors import DeadlineExceededError
from krm_runner.core.evaluation import EvaluationRequest, EvaluationResult, Evaluator
from krm_runner.core.secret import Secret
from krm_runner.files.watched_file import read_bounded
from krm_runner.process.spawn import initial_environment
from krm_runner.rpc.client import RemoteEvaluator, Tls
from krm_runner.rpc.key_pair import check_cas, key_pair
from krm_runner.settings.evaluation import ClientSecurity, EvalSettings
from krm_runner.telemetry import logs

_MAX_LOCAL_OUTPUT = 1024**3


@asynccontextmanager
async def evaluator_for(settings: EvalSettings) -> AsyncGenerator[Evaluator]:
    """Whoever is to evaluate the function."""
    logs.configure(level=0, log_format="text")
    if settings.address:
        tls, token = _tls(settings.security), _token(settings.security)
        async with RemoteEvaluator(settings.address, tls=tls, token=token) as remote:
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


def _tls(security: ClientSecurity) -> Tls | None:
    """ConfigurationError when a file is missing or broken."""
    if not security.tls:
        return None
    files = security.certificates
    return Tls(
        cas=check_cas(read_bounded(security.cas), path=security.cas) if security.cas else None,
        pair=key_pair(
            [read_bounded(files.certificate), read_bounded(files.key)], certificate=files.certificate, key=files.key
        )
        if files
        else None,
        server_name=security.server_name,
    )


def _token(security: ClientSecurity) -> Secret | None:
    if security.token is None:
        return None
    return secret_lines(read_bounded(security.token), source=str(security.token), what="token", shortest=1)[0]


def _local_environment() -> dict[bytes, bytes]:
    """Ours, with this interpreter first: functions in Python find the libraries that come with krm-runner."""
    environment = initial_environment()
    here = os.fsencode(os.path.dirname(sys.executable))
    environment[b"PATH"] = os.pathsep.encode().join(filter(None, (here, environment.get(b"PATH", b""))))
    return environment
