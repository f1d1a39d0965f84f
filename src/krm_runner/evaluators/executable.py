"""The exec runtime: functions as local executables, the fast path."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from krm_runner.core.errors import (
    CannotExecuteError,
    DeadlineExceededError,
    FunctionNotFoundError,
    OutOfResourcesError,
    OutputTooLargeError,
    QueueFullError,
    TooBusyError,
)
from krm_runner.core.evaluation import EvaluationRequest, EvaluationResult
from krm_runner.core.resource_list import Envelope
from krm_runner.core.verdict import Ending, full_verdict, quick_verdict
from krm_runner.evaluators.function_file import FunctionFile
from krm_runner.process.executor import OUT_OF_RESOURCES, Executor, Outcome, OutputLimitError
from krm_runner.process.slots import SlotsFullError, TurnTooLateError

_log = structlog.get_logger("krm_runner.exec")

_VERDICT_THREADS = 2
"""Parsing holds the interpreter most of the time: more threads would only take turns."""


class ExecutableEvaluator:
    """Runs the executable that the configuration file names for an image, once per call."""

    runtime = "exec"

    def __init__(
        self,
        functions: FunctionFile,
        executor: Executor,
        *,
        directory: Path,
        max_output: int,
        message_limit: int,
    ) -> None:
        self._functions = functions
        self._executor = executor
        self._directory = directory.absolute()
        self._max_output = max_output
        self._message_limit = message_limit
        self._verdicts = ThreadPoolExecutor(_VERDICT_THREADS, thread_name_prefix="verdict")

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        """See `core.evaluation.Evaluator`."""
        name = self._functions.table.find(request.reference)
        if name is None or not self._functions.is_usable(name):
            raise FunctionNotFoundError(request.image)
        loop = asyncio.get_running_loop()
        started = loop.time()
        executable = self._directory / name
        try:
            async with asyncio.timeout_at(request.deadline):
                outcome = await self._execute(request, executable)
                envelope = await self._judge(request, outcome)
        except TimeoutError as error:
            raise DeadlineExceededError(request.image, after=loop.time() - started) from error
        return EvaluationResult(
            resource_list=outcome.stdout,
            log=outcome.stderr,
            runtime=self.runtime,
            queue_wait=outcome.queue_wait,
            failed_results=tuple(str(result) for result in envelope.results if result.is_error),
        )

    def close(self) -> None:
        """Let the threads go; a verdict that nobody waits for any more is not waited for here either."""
        self._verdicts.shutdown(wait=False, cancel_futures=True)

    async def _judge(self, request: EvaluationRequest, outcome: Outcome) -> Envelope:
        """Most of the time one glance; a full parse takes a thread, and ends when the call does."""
        ending = Ending(request.image, outcome.exit_code, outcome.stdout, outcome.stderr)
        envelope = quick_verdict(ending)
        if envelope is not None:
            return envelope
        cancelled = threading.Event()
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._verdicts, full_verdict, ending, cancelled.is_set
            )
        finally:
            cancelled.set()

    async def _execute(self, request: EvaluationRequest, executable: Path) -> Outcome:
        image = request.image
        _log.debug("executing", image=image, executable=str(executable), waiting=self._executor.waiting)
        try:
            outcome = await self._executor.run(
                [os.fsencode(executable)],
                request.resource_list,
                function=executable.name,
                max_output=self._max_output,
                deadline=request.deadline,
            )
        except SlotsFullError as error:
            raise QueueFullError(image, waiting=error.waiting) from error
        except TurnTooLateError as error:
            raise TooBusyError(image, waiting=error.waiting, expected=error.expected) from error
        except OutputLimitError as error:
            raise OutputTooLargeError(
                image, written=error.written, room=self._max_output, limit=self._message_limit
            ) from error
        except TimeoutError:
            raise
        except OSError as error:
            if error.errno in OUT_OF_RESOURCES:
                raise OutOfResourcesError(image, why=error.strerror or str(error)) from error
            why = _why_not(executable, error)
            raise CannotExecuteError(image, executable=str(executable), why=why) from error
        _log.debug(
            "ended",
            image=image,
            exit=outcome.exit_code,
            stdout=len(outcome.stdout),
            stderr=len(outcome.stderr),
        )
        return outcome


def _why_not(executable: Path, error: OSError) -> str:
    """Why the kernel refused, in the words of someone who can mend it."""
    if not os.path.lexists(executable):
        return "there is no such file; install it there or take it out of the configuration"
    if error.errno == errno.ENOENT:
        return "the interpreter that its first line names, its dynamic loader, or the file it links to is missing"
    if error.errno == errno.EACCES:
        if executable.is_dir():
            return "it is a directory"
        return "it is not executable for this user; chmod +x it"
    if error.errno == errno.ENOEXEC:
        return "bad format: neither a program for this machine nor a script that starts with #!"
    return error.strerror or str(error)
