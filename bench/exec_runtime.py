"""The exec runtime against the floor: the same functions through the runner and through a bare loop in C.

Both take turns in short rounds within one run, so that the machine's noise hits both; the figure to trust is their
ratio. See docs/performance.md.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import cast

from bench import inputs, programs, table
from bench.programs import Function, LoadGenerator
from bench.runner import CpuSeconds, Runner, image_of
from bench.table import Column

SIZES = {"2KB": 2_000, "100KB": 100_000, "5MB": 5_000_000}
CALLERS = (1, 8, 32)
_SLACK_SECONDS = 300
_WARM_UP_CALLS = 1

COLUMNS = (
    Column("", "function", left=True),
    Column("", "size"),
    Column("", "callers"),
    Column("calls/s", "bare"),
    Column("calls/s", "runner"),
    Column("runner/bare", "ratio"),
    Column("runner/bare", "rounds"),
    Column("p50 ms", "bare"),
    Column("p50 ms", "runner"),
    Column("p99 ms", "bare"),
    Column("p99 ms", "runner"),
    Column("CPU ms/call", "bare loop"),
    Column("CPU ms/call", "its function"),
    Column("CPU ms/call", "runner"),
    Column("CPU ms/call", "its function"),
    Column("CPU ms/call", "load"),
    Column("runner", "peak MB"),
)


class BenchmarkError(Exception):
    """A figure would be worthless; the message says why."""


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table."""

    function: Function
    size: str
    callers: int


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one side."""

    calls: int
    seconds: float
    p50_ms: float
    p99_ms: float
    own_cpu: float
    """Of the bare loop, or of the runner."""
    function_cpu: float
    load_cpu: float = 0.0
    executions: int = 0
    """Calls and the load generator's first one, which the counters of CPU time include."""


class Laps:
    """All rounds of one side of a row, put together."""

    def __init__(self) -> None:
        self.samples: list[Sample] = []

    @property
    def rate(self) -> float:
        """Calls per second."""
        return self._sum(lambda sample: sample.calls) / self._sum(lambda sample: sample.seconds)

    @property
    def rates(self) -> list[float]:
        """Calls per second, round by round."""
        return [sample.calls / sample.seconds for sample in self.samples]

    def median(self, of: Callable[[Sample], float]) -> float:
        """Of the rounds."""
        return statistics.median(of(sample) for sample in self.samples)

    def ms_per_call(self, of: Callable[[Sample], float]) -> float:
        """Of CPU time."""
        return self._sum(of) / self._sum(lambda sample: sample.executions) * 1e3

    def _sum(self, of: Callable[[Sample], float]) -> float:
        return sum(of(sample) for sample in self.samples)


class Bench:
    """Runs cases with what was built for them."""

    def __init__(
        self,
        *,
        bare_loop: Path,
        load: LoadGenerator,
        directory: Path,
        rounds: int,
        seconds: float,
        flags: Sequence[str],
    ) -> None:
        self._bare_loop = bare_loop
        self._load = load
        self._directory = directory
        self._rounds = rounds
        self._seconds = seconds
        self._flags = flags

    def run(self, cases: Sequence[Case]) -> list[list[str]]:
        """The rows; a runner of its own for every function and size, so that peak memory belongs to them."""
        rows: list[list[str]] = []
        started = time.monotonic()
        for (function, size), group in groupby(cases, key=lambda case: (case.function, case.size)):
            directory = self._directory / f"{function.name}-{size}"
            directory.mkdir()
            data = directory / "input.yaml"
            data.write_bytes(inputs.generated(SIZES[size], function.config))
            with Runner(directory, [function.executable], self._flags) as runner:
                for case in group:
                    where = f"[{len(rows) + 1}/{len(cases)} {time.monotonic() - started:.0f}s]"
                    progress(f"{where} {function.name}, {size}, callers: {case.callers} ...")
                    rows.append(self._row(case, data, runner))
                    progress(f"{where} ratio {rows[-1][5]}")
        return rows

    def _row(self, case: Case, data: Path, runner: Runner) -> list[str]:
        bare, through = Laps(), Laps()
        runner.forget_peak_memory()
        for _ in range(self._rounds):
            bare.samples.append(self._bare(case, data))
            through.samples.append(self._through_runner(case, data, runner))
        ratios = [ours / floor for ours, floor in zip(through.rates, bare.rates, strict=True)]
        return [
            case.function.name,
            case.size,
            str(case.callers),
            number(bare.rate),
            number(through.rate),
            f"{through.rate / bare.rate:.2f}",
            f"{min(ratios):.2f}-{max(ratios):.2f}",
            *(number(side.median(lambda sample: sample.p50_ms)) for side in (bare, through)),
            *(number(side.median(lambda sample: sample.p99_ms)) for side in (bare, through)),
            f"{bare.ms_per_call(lambda sample: sample.own_cpu):.2f}",
            f"{bare.ms_per_call(lambda sample: sample.function_cpu):.2f}",
            f"{through.ms_per_call(lambda sample: sample.own_cpu):.2f}",
            f"{through.ms_per_call(lambda sample: sample.function_cpu):.2f}",
            f"{through.ms_per_call(lambda sample: sample.load_cpu):.2f}",
            f"{runner.peak_memory() / 1e6:.0f}",
        ]

    def _bare(self, case: Case, data: Path) -> Sample:
        report = self._report(
            str(self._bare_loop), str(self._seconds), str(case.callers), str(data), str(case.function.executable)
        )
        return _sample(
            report, CpuSeconds(report["cpu_seconds"], report["functions_cpu_seconds"]), load=0, more_executions=0
        )

    def _through_runner(self, case: Case, data: Path, runner: Runner) -> Sample:
        before = runner.cpu()
        report = self._report(
            *self._load.command,
            *(f"-port={runner.port}", f"-seconds={self._seconds}", f"-callers={case.callers}"),
            *(f"-image={image_of(case.function.executable)}", f"-input={data}"),
        )
        cpu = runner.cpu().since(before)
        return _sample(report, cpu, load=report["cpu_seconds"], more_executions=_WARM_UP_CALLS)

    def _report(self, *command: str) -> dict[str, float]:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=self._seconds + _SLACK_SECONDS, check=False
        )
        if done.returncode:
            raise BenchmarkError(f"{Path(command[0]).name} failed: {done.stderr.strip()}")
        report = json.loads(done.stdout)
        if report["failures"]:
            raise BenchmarkError(f"{report['failures']} calls failed: {report.get('failure', 'exit code not 0')}")
        return cast(dict[str, float], report)


def _sample(report: dict[str, float], cpu: CpuSeconds, *, load: float, more_executions: int) -> Sample:
    calls = int(report["calls"])
    return Sample(
        calls=calls,
        seconds=report["seconds"],
        p50_ms=report["p50_ms"],
        p99_ms=report["p99_ms"],
        own_cpu=cpu.runner,
        function_cpu=cpu.functions,
        load_cpu=load,
        executions=calls + more_executions,
    )


def number(value: float) -> str:
    """Three digits that matter."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def progress(line: str) -> None:
    """What goes on, for whoever waits."""
    print(line, file=sys.stderr, flush=True)


def chosen(arguments: argparse.Namespace, functions: Sequence[Function]) -> list[Case]:
    """The rows to measure: what is slow only if it is asked for."""
    sizes = arguments.size or (["2KB"] if arguments.quick else list(SIZES))
    callers = arguments.callers or ([8] if arguments.quick else list(CALLERS))
    asked_for = arguments.size and arguments.callers
    return [
        Case(function, size, count)
        for function in functions
        if not arguments.function or function.name in arguments.function
        for size in sizes
        for count in callers
        if asked_for or SIZES[size] * count <= function.most_bytes
    ]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.exec_runtime", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="2 KB, 8 callers, one round: half a minute")
    parser.add_argument("--function", action="append", help="only this one (may be repeated)")
    parser.add_argument("--size", action="append", choices=SIZES, help="only this one (may be repeated)")
    parser.add_argument("--callers", action="append", type=int, help="only this many at a time (may be repeated)")
    parser.add_argument("--rounds", type=int, help="turns of bare loop and runner in each row (default 3)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn (default 1)")
    parser.add_argument("--runner-flag", action="append", default=[], help="a flag for the runner (may be repeated)")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--update", type=Path, metavar="FILE", help="put the table into this document, at its marks")
    return parser.parse_args()


def update(document: Path, rendered: str) -> None:
    """Replace what stands between the marks."""
    content = document.read_text()
    marked = re.compile(r"(?<=<!-- measured -->\n).*?(?=<!-- /measured -->)", re.DOTALL)
    if not marked.search(content):
        raise BenchmarkError(f"{document} has no marks <!-- measured --> and <!-- /measured -->")
    document.write_text(marked.sub(lambda _: f"\n{rendered}\n\n", content, count=1))


def main() -> None:
    """Measure and print."""
    arguments = parse_arguments()
    # The functions' interpreter is the one of this virtual environment, for both sides.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    progress("building what is needed")
    load = programs.load_generator()
    cases = chosen(arguments, programs.functions())
    if not cases:
        raise BenchmarkError("nothing to measure: there is no such function here, or its calls would be too large")
    with tempfile.TemporaryDirectory(prefix="krm-runner-bench-") as directory:
        bench = Bench(
            bare_loop=programs.bare_loop(),
            load=load,
            directory=Path(directory),
            rounds=rounds,
            seconds=arguments.seconds,
            flags=arguments.runner_flag,
        )
        rows = bench.run(cases)
    about = (
        f"{os.cpu_count()} CPUs, Linux {platform.release().partition('-')[0]}, Python {platform.python_version()}; "
        f"{rounds} rounds of {arguments.seconds:g} s each; load generator: {load.name}."
    )
    render = table.markdown if arguments.markdown or arguments.update else table.text
    rendered = f"{about}\n\n{render(COLUMNS, rows)}"
    print(rendered)
    if arguments.update:
        update(arguments.update, rendered)


if __name__ == "__main__":
    try:
        main()
    except (BenchmarkError, programs.MissingToolError) as error:
        sys.exit(f"bench: {error}")
