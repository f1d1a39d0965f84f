"""The exec runtime: functions as local executables, the fast path."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path

from krm_runner.core.errors import (
    CannotExecuteError,
    DeadlineExceededError,
    FunctionNotFoundError,
    OutOfResourcesError,
    OutputTooLargeError,
    QueueFullError,
)
from krm_runner.core.evaluation import EvaluationRequest, EvaluationResult
from krm_runner.core.verdict import Ending, full_verdict, quick_verdict
from krm_runner.evaluators.function_file import FunctionFile
from krm_runner.process.executor import Executor, Outcome, OutputLimitError
from krm_runner.process.slots import SlotsFullError

_TEMPORARY = frozenset({errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE})


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

    async def evaluate(self, request: EvaluationRequest) -> EvaluationResult:
        """See `core.evaluation.Evaluator`."""
        name = self._functions.table.find(request.reference)
        if name is None:
            raise FunctionNotFoundError(request.image)
        outcome = await self._execute(request, self._directory / name)
        ending = Ending(request.image, outcome.exit_code, outcome.stdout, outcome.stderr)
        envelope = quick_verdict(ending)
        if envelope is None:
            envelope = await asyncio.to_thread(full_verdict, ending)
        return EvaluationResult(
            resource_list=outcome.stdout,
            log=outcome.stderr,
            runtime=self.runtime,
            queue_wait=outcome.queue_wait,
            failed_results=tuple(str(result) for result in envelope.results if result.is_error),
        )

    async def _execute(self, request: EvaluationRequest, executable: Path) -> Outcome:
        image = request.image
        loop = asyncio.get_running_loop()
        arrived = loop.time()
        try:
            async with asyncio.timeout_at(request.deadline):
                return await self._executor.run(
                    [os.fsencode(executable)],
                    request.resource_list,
                    function=executable.name,
                    max_output=self._max_output,
                    deadline=request.deadline,
                )
        except SlotsFullError as error:
            raise QueueFullError(image, waiting=error.waiting) from error
        except OutputLimitError as error:
            raise OutputTooLargeError(image, written=error.written, limit=self._message_limit) from error
        except TimeoutError as error:
            raise DeadlineExceededError(image, after=loop.time() - arrived) from error
        except OSError as error:
            if error.errno in _TEMPORARY:
                raise OutOfResourcesError(image, why=error.strerror or str(error)) from error
            why = _why_not(executable, error)
            raise CannotExecuteError(image, executable=str(executable), why=why) from error


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
