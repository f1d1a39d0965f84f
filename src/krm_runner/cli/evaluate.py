"""`krm-runner eval`: run one function on a package, and show what it did."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import yaml

from krm_function.document import Document, is_mapping, is_sequence
from krm_function.edits import compose, plain_value, yaml_text
from krm_runner.app.evaluation import evaluate, evaluator_for
from krm_runner.cli.terminal import Terminal
from krm_runner.core import resource_list
from krm_runner.core.errors import ConfigurationError, EvaluationError, FunctionFailedError, FunctionNotFoundError
from krm_runner.core.evaluation import EvaluationResult
from krm_runner.core.verdict import printable
from krm_runner.packages.files import PackageFile, read_package
from krm_runner.packages.storing import check_is_new, store, store_as_new
from krm_runner.packages.unwrapping import Changes, to_changes, unwrap
from krm_runner.packages.wrapping import config_map, to_resource_list
from krm_runner.settings.evaluation import EVAL_FLAGS, EvalSettings, parse_eval_settings
from krm_runner.settings.go_flags import render_help

_HELP = """\
krm-runner eval runs one KRM function on a package and writes what it changed.

Usage: krm-runner eval PACKAGE --image IMAGE [FLAGS] [KEY=VALUE ...]

PACKAGE is a folder with YAML files, or - for a ResourceList on stdin. KEY=VALUE arguments are the function's settings
(the data of its ConfigMap). Files that the function does not change are not touched; in those that it changes,
comments, order and style stay. When the function fails, or is interrupted, the package stays as it was.

{flags}

Examples:
  krm-runner eval ./shop --image set-namespace:v0.4.1 namespace=staging
  krm-runner eval ./shop --image krm-runner/set-labels:v1 --address localhost:9445 app=shop tier=web
  krm-runner eval ./shop --image krm-runner/set-labels:v1 --fn-config labels.yaml --output ./shop-labelled
  cat list.yaml | krm-runner eval - --image set-namespace:v0.4.1 namespace=staging

Exit codes: 0 the function passed, 1 it failed, 2 the command makes no sense, 130 it was interrupted.
"""
_MAX_SHOWN = 20
_INTERRUPTED = 130
_TO_STDOUT = ("stdout", "unwrap")


def eval_command(argv: Sequence[str]) -> int:
    """Evaluate; returns the exit code."""
    if any(argument in ("-h", "--help") for argument in argv):
        sys.stdout.write(_HELP.format(flags=render_help(EVAL_FLAGS)))
        return 0
    terminal = Terminal()
    try:
        evaluation = _Evaluation(parse_eval_settings(argv), terminal)
        # Before there is a loop, whose signal handlers would wait for a read of stdin to end.
        files, text = evaluation.read()
        return asyncio.run(evaluation.run(files, text))
    except ConfigurationError as error:
        terminal.line(f"krm-runner eval: {error}")
        return 2


class _Evaluation:
    """One evaluation, step by step: read, run, show, write."""

    def __init__(self, settings: EvalSettings, terminal: Terminal) -> None:
        self._settings = settings
        self._terminal = terminal

    async def run(self, files: list[PackageFile], text: str) -> int:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - asyncio.run makes one
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        try:
            result = await self._evaluate(text)
            if result is None:
                return 1
            output = str(result.resource_list, "utf-8")
            if self._settings.output in _TO_STDOUT:
                changes = Changes()
            else:
                # In a thread, so that an interruption is noticed.
                changes = await asyncio.to_thread(to_changes, files, output)
        except asyncio.CancelledError:
            self._terminal.tagged("FAIL", f'"{self._settings.image}" interrupted; nothing was changed')
            return _INTERRUPTED
        self._write(files, output, changes)
        return 0

    # --- read -----------------------------------------------------------------------------------------------------

    def read(self) -> tuple[list[PackageFile], str]:
        """The package, after a look at whether there is a place for the result."""
        settings = self._settings
        if settings.output and settings.output not in _TO_STDOUT:
            check_is_new(Path(settings.output))
        if settings.results_dir is not None:
            self._make_results_folder(settings.results_dir)
        config = self._function_config()
        if settings.package == "-":
            return [], _list_from_stdin(config)
        files = read_package(
            Path(settings.package), include_meta=settings.include_meta, progress=self._terminal.progress("reading")
        )
        return files, to_resource_list(files, config)

    def _function_config(self) -> dict[str, Any] | None:
        settings = self._settings
        if settings.config_values:
            return config_map(settings.config_values)
        if settings.config_file is None:
            return None
        try:
            config: object = yaml.load(settings.config_file.read_bytes(), Loader=yaml.CSafeLoader)
        except (OSError, yaml.YAMLError) as error:
            raise ConfigurationError(f"cannot read {settings.config_file}: {' '.join(str(error).split())}") from error
        if not isinstance(config, dict):
            raise ConfigurationError(f"{settings.config_file}: a function config is a resource, a mapping")
        return cast(dict[str, Any], config)

    # --- run and show ---------------------------------------------------------------------------------------------

    async def _evaluate(self, text: str) -> EvaluationResult | None:
        image = self._settings.image
        started = time.monotonic()
        self._terminal.tagged("RUNNING", f'"{image}"')
        try:
            async with evaluator_for(self._settings) as evaluator, self._terminal.waiting(f'running "{image}"'):
                result = await evaluate(evaluator, self._settings, text.encode())
        except EvaluationError as error:
            self._terminal.tagged("FAIL", f'"{image}" in {time.monotonic() - started:.1f}s')
            self._show_failure(error)
            return None
        self._terminal.tagged("PASS", f'"{image}" in {time.monotonic() - started:.1f}s')
        results = await asyncio.to_thread(_results_of, result)
        self._show("Results", [str(item) for item in results])
        self._show("Stderr", printable(result.log).splitlines())
        self._save_results(exit_code=0, output=bytes(result.resource_list), stderr=printable(result.log))
        return result

    def _show_failure(self, error: EvaluationError) -> None:
        lines = str(error).splitlines()
        if isinstance(error, FunctionNotFoundError) and not self._settings.address:
            lines.append(
                f"no executable is named for it in {self._settings.function_table} (--config); "
                "a runner may know it: --address"
            )
        for line in lines:
            self._terminal.line(f"  {line}")
        exit_code = error.facts.get("exit_code", "1")
        # Those of a function that a runner executed are in its message alone.
        output = error.output if isinstance(error, FunctionFailedError) else b""
        self._save_results(exit_code=int(exit_code), output=output, stderr=str(error))

    def _show(self, title: str, lines: list[str]) -> None:
        if not lines:
            return
        self._terminal.line(f"  {title}:")
        for line in lines[:_MAX_SHOWN]:
            self._terminal.line(f"    {line}")
        if len(lines) > _MAX_SHOWN:
            self._terminal.line(f"    ... and {len(lines) - _MAX_SHOWN} more")

    def _save_results(self, *, exit_code: int, output: bytes, stderr: str) -> None:
        folder = self._settings.results_dir
        if folder is None:
            return
        item: dict[str, Any] = {"image": self._settings.image, "exitCode": exit_code}
        if stderr.strip():
            item["stderr"] = stderr
        if results := _raw_results(output):
            item["results"] = results
        document = {
            "apiVersion": "kpt.dev/v1",
            "kind": "FunctionResultList",
            "metadata": {"name": "fnresults"},
            "exitCode": exit_code,
            "items": [item],
        }
        self._make_results_folder(folder)
        try:
            (folder / "results.yaml").write_text(yaml_text(document) + "\n")
        except OSError as error:
            raise ConfigurationError(f"cannot write results to {folder}: {error.strerror}") from error

    def _make_results_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(f"cannot make the folder {folder} for results: {error.strerror}") from error

    # --- write ----------------------------------------------------------------------------------------------------

    def _write(self, files: list[PackageFile], output: str, changes: Changes) -> None:
        settings = self._settings
        if settings.output == "stdout":
            sys.stdout.write(output)
            return
        if settings.output == "unwrap":
            sys.stdout.write(unwrap(output))
            return
        if settings.output:
            store_as_new(Path(settings.output), files, changes)
            self._terminal.line(f"package written to {settings.output}")
            return
        if settings.package == "-":
            raise ConfigurationError("a ResourceList from stdin goes to --output=stdout, unwrap or a new folder")
        store(Path(settings.package), changes, progress=self._terminal.progress("writing"))
        touched = [*changes.written, *(f"{path} (deleted)" for path in changes.deleted)]
        if touched:
            self._show(f"Changed {len(touched)} of {len(files)} files", touched)
        else:
            self._terminal.line(f"  No file changed of {len(files)}")


def _list_from_stdin(config: dict[str, Any] | None) -> str:
    data = sys.stdin.buffer.read()
    try:
        resource_list.parse(data)
    except resource_list.NotAResourceListError as error:
        raise ConfigurationError(f"stdin is no ResourceList: {error}") from error
    if config is None:
        return data.decode()
    document = Document(data.decode())
    document.root["functionConfig"] = config
    return document.render()


def _results_of(result: EvaluationResult) -> Sequence[object]:
    return resource_list.parse(bytes(result.resource_list)).results


def _raw_results(output: bytes) -> list[Any]:
    """The results as the function wrote them, in its ResourceList if there is one."""
    try:
        # YAML does not know how JSON writes characters beyond its escapes; dates and tags must not be understood.
        document = json.loads(output) if output.lstrip()[:1] == b"{" else plain_value(compose(output.decode()))
    except (ValueError, yaml.YAMLError):
        return []
    found: object = document.get("results") if is_mapping(document) else None
    return list(found) if is_sequence(found) else []
