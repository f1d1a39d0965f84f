"""The parts of the exec runtime, wired: for the service, and for `krm-runner eval` without one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from krm_runner.app.shares import parallel_functions
from krm_runner.evaluators.executable import ExecutableEvaluator
from krm_runner.evaluators.function_file import FunctionFile
from krm_runner.process.executor import Executor
from krm_runner.process.spawn import Spawner
from krm_runner.rpc.evaluate import max_resource_list


def read_function_file(
    path: Path, *, required: bool, functions: Path, default_prefix: str, may_fall_back: bool = False
) -> FunctionFile:
    """Which executables there are; ConfigurationError when the file is broken."""
    file = FunctionFile(
        path, required=required, functions=functions, default_prefix=default_prefix, may_fall_back=may_fall_back
    )
    file.load()
    return file


class ExecRuntime:
    """Reads the configuration file when it is made; ConfigurationError when that is broken."""

    def __init__(
        self,
        *,
        functions: Path,
        config: Path,
        config_is_required: bool,
        default_prefix: str,
        environment: Mapping[bytes, bytes],
        message_limit: int,
        max_parallel: int = 0,
        max_waiting: int = 1000,
        max_memory: int | None = None,
        may_fall_back: bool = False,
    ) -> None:
        """`may_fall_back`: another runtime can serve an image whose executable is missing."""
        self.functions = read_function_file(
            config,
            required=config_is_required,
            functions=functions,
            default_prefix=default_prefix,
            may_fall_back=may_fall_back,
        )
        spawner = Spawner(environment)
        spawner.become_subreaper()
        self.executor = Executor(
            spawner,
            max_parallel=parallel_functions(max_parallel),
            max_waiting=max_waiting,
            max_memory=max_memory,
        )
        self.evaluator = ExecutableEvaluator(
            self.functions,
            self.executor,
            directory=functions,
            max_output=max_resource_list(message_limit),
            message_limit=message_limit,
        )

    def close(self) -> None:
        """Kill what still runs, and let the threads go."""
        self.executor.kill_all()
        self.evaluator.close()
        self.executor.close()
