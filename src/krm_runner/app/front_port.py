"""The port by way of a front: where its program is, and what there is in this process for it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from krm_runner import __version__
from krm_runner.app.event_loop import give_way
from krm_runner.app.loops import Loops
from krm_runner.app.shares import function_memory, parallel_functions, request_memory
from krm_runner.core.errors import ConfigurationError
from krm_runner.core.evaluation import Evaluator
from krm_runner.core.function_table import FunctionTable
from krm_runner.evaluators.chain import ChainEvaluator
from krm_runner.evaluators.function_file import FunctionFile
from krm_runner.front.calls import FrontCalls
from krm_runner.front.credentials import CallerCredentials
from krm_runner.front.link import Link
from krm_runner.front.load import FrontLoad
from krm_runner.front.local_functions import LocalFunctions
from krm_runner.front.pod_questions import PodQuestions
from krm_runner.front.promises import FrontPromises
from krm_runner.front.server import LONGEST_SILENCE, FrontServer
from krm_runner.process.cpus import usable_cpus
from krm_runner.process.spawn import initial_environment
from krm_runner.rpc._generated.front_pb2 import Configure, Sampler
from krm_runner.rpc.call_record import CallTerms
from krm_runner.settings import FrontChoice, SecuritySettings, Settings
from krm_runner.telemetry.metrics import EvaluationMetrics
from krm_runner.telemetry.tracing import CallSpans

_NAME = "krm-front"


def find_front(settings: Settings) -> Path | None:
    """Return the program that serves the port; None if this process does.

    Raises ConfigurationError if the program is missing although it is named, or needed by a flag.
    """
    found = _find(settings.server.front)
    if found is None and settings.needs_front:
        raise ConfigurationError(
            f"{settings.needs_front} needs krm-front, which is not installed; `make front` builds it, --front names it"
        )
    return found


def read_credentials(security: SecuritySettings) -> CallerCredentials:
    """Read the files of callers' certificates and tokens. Raises ConfigurationError if one is missing or broken."""
    files = security.certificates
    pair = (files.certificate, files.key) if files is not None else None
    return CallerCredentials(pair=pair, client_cas=security.client_cas, tokens=security.tokens)


def _find(choice: FrontChoice) -> Path | None:
    if isinstance(choice, Path):
        if not _is_program(choice):
            why = "it is not executable" if choice.exists() else "there is no such file"
            raise ConfigurationError(f"--front={choice} cannot be used: {why}")
        return choice.absolute()
    if choice == "off":
        return None
    beside = Path(sys.executable).parent / _NAME
    if _is_program(beside):
        return beside
    found = shutil.which(_NAME)
    return Path(found).absolute() if found else None


def _is_program(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


class FrontPort:
    """See `app.port.Port`."""

    def __init__(
        self,
        settings: Settings,
        program: Path,
        others: Sequence[Evaluator],
        *,
        functions: FunctionFile | None,
        credentials: CallerCredentials,
        questions: PodQuestions,
        promises: FrontPromises,
        metrics: EvaluationMetrics,
        spans: CallSpans | None,
    ) -> None:
        """`others` are asked about images that `functions` do not have. ServeError when a port cannot be had."""
        self.front = str(program)
        self._settings = settings
        local = _local_functions(settings, functions)
        link = Link()
        load = FrontLoad(metrics)
        calls = FrontCalls(
            link.send,
            functions=local,
            others=ChainEvaluator(others) if others else None,
            promises=promises,
            metrics=metrics,
            spans=spans,
            terms=CallTerms(
                default_timeout=settings.server.default_timeout, default_prefix=settings.server.default_image_prefix
            ),
        )
        self._server = FrontServer(
            program,
            link,
            calls,
            load,
            questions,
            port=settings.server.port,
            health_port=settings.security.health_port,
        )
        self.number = self._server.port
        self._credentials = credentials
        promises.open(link.send, local)
        if functions is not None and local is not None:
            load.observe_functions()

            def on_change(_: FunctionTable) -> None:
                link.send(local.forget())

            functions.on_change = on_change

    @property
    def calls_arrived(self) -> int:
        """See `app.port.Port`."""
        return self._server.calls_arrived

    @property
    def calls_under_way(self) -> int:
        """See `app.port.Port`."""
        return self._server.calls_under_way

    async def start(self, loops: Loops) -> None:
        """See `app.port.Port`."""
        await self._server.start(_configuration(self._settings, self._credentials), initial_environment())
        loops.start(self._server.watch(), name="krm-front")
        loops.start(self._server.beat(), name="heartbeat to krm-front")
        for name, loop in self._credentials.loops(self._replace_credentials).items():
            loops.start(loop, name=name)
        if self._settings.exec is None:
            # There are no local functions: those are the front's children, and this process must not come behind them.
            give_way(asyncio.get_running_loop())

    def _replace_credentials(self) -> None:
        self._server.replace_credentials(self._credentials.message())

    def set_serving(self, serving: bool) -> None:
        """See `app.port.Port`."""
        self._server.set_serving(serving)

    async def stop(self, *, lame_duck: float, total: float) -> None:
        """See `app.port.Port`."""
        await self._server.stop(lame_duck=lame_duck, total=total)

    async def close(self) -> None:
        """Nothing is left of the front, whatever happened."""
        await self._server.close()


def _local_functions(settings: Settings, functions: FunctionFile | None) -> LocalFunctions | None:
    if functions is None or settings.exec is None:
        return None
    return LocalFunctions(
        lambda: functions.table,
        directory=settings.exec.functions,
        default_standby=settings.exec.standby.default,
        is_usable=functions.is_usable,
    )


def _configuration(settings: Settings, credentials: CallerCredentials) -> Configure:
    """What the front is to know; without the exec runtime it executes nothing, and its limits do not matter."""
    local = settings.exec
    choice = settings.exporters
    sampler = Sampler(follows_caller=choice.sampler.follows_caller, share=choice.sampler.share)
    return Configure(
        version=__version__,
        message_limit=settings.server.max_message_bytes,
        default_timeout_seconds=settings.server.default_timeout,
        max_parallel=parallel_functions(local.max_parallel if local else 0),
        max_waiting=local.max_waiting if local else 0,
        max_function_memory=function_memory(local.max_memory if local else 0),
        max_request_memory=request_memory(settings.server.max_request_memory),
        cpus=usable_cpus(),
        standby_max_age_seconds=local.standby.max_age if local else 0,
        standby_idle_seconds=local.standby.idle if local else 0,
        verbosity=settings.log.level,
        json_log=settings.log.format == "json",
        longest_silence_seconds=LONGEST_SILENCE,
        sampler=None if choice.traces == "none" else sampler,
        credentials=credentials.message(),
    )
