"""The exec runtime against the floor: the same functions through the runner and through a bare loop in C.

Both take turns in short rounds within one run, so that the machine's noise hits both; the figure to trust is their
ratio. See docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from bench import inputs, programs, report
from bench.measure import (
    CALLERS,
    SIZES,
    BenchmarkError,
    Laps,
    Sample,
    number,
    progress,
    ratios,
    run_report,
    sample_of,
    through,
)
from bench.programs import Function, LoadGenerator
from bench.server import CpuSeconds, Server, image_of, runner
from bench.table import Column

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


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the table."""

    function: Function
    size: str
    callers: int


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
            with runner(directory, [function.executable], self._flags) as server:
                for case in group:
                    where = f"[{len(rows) + 1}/{len(cases)} {time.monotonic() - started:.0f}s]"
                    progress(f"{where} {function.name}, {size}, callers: {case.callers} ...")
                    rows.append(self._row(case, data, server))
                    progress(f"{where} ratio {rows[-1][5]}")
        return rows

    def _row(self, case: Case, data: Path, server: Server) -> list[str]:
        bare, ours = Laps(), Laps()
        server.forget_peak_memory()
        for _ in range(self._rounds):
            bare.samples.append(self._bare(case, data))
            ours.samples.append(
                through(
                    server,
                    self._load,
                    callers=case.callers,
                    seconds=self._seconds,
                    image=image_of(case.function.executable),
                    data=data,
                )
            )
        return [
            case.function.name,
            case.size,
            str(case.callers),
            number(bare.rate),
            number(ours.rate),
            f"{ours.rate / bare.rate:.2f}",
            ratios(ours.rates, bare.rates),
            *(number(side.median(lambda sample: sample.p50_ms)) for side in (bare, ours)),
            *(number(side.median(lambda sample: sample.p99_ms)) for side in (bare, ours)),
            f"{bare.ms_per_call(lambda sample: sample.own_cpu):.2f}",
            f"{bare.ms_per_call(lambda sample: sample.function_cpu):.2f}",
            f"{ours.ms_per_call(lambda sample: sample.own_cpu):.2f}",
            f"{ours.ms_per_call(lambda sample: sample.function_cpu):.2f}",
            f"{ours.ms_per_call(lambda sample: sample.load_cpu):.2f}",
            f"{server.peak_memory() / 1e6:.0f}",
        ]

    def _bare(self, case: Case, data: Path) -> Sample:
        report = run_report(
            *(str(self._bare_loop), str(self._seconds), str(case.callers), str(data), str(case.function.executable)),
            seconds=self._seconds,
        )
        return sample_of(
            report, CpuSeconds(report["cpu_seconds"], report["functions_cpu_seconds"]), load=0, more_executions=0
        )


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
    parser = report.parser("exec_runtime", __doc__, quick="2 KB, 8 callers, one round: half a minute")
    parser.add_argument("--function", action="append", help="only this one (may be repeated)")
    parser.add_argument("--size", action="append", choices=SIZES, help="only this one (may be repeated)")
    parser.add_argument("--callers", action="append", type=int, help="only this many at a time (may be repeated)")
    parser.add_argument("--rounds", type=int, help="turns of bare loop and runner in each row (default 3)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn (default 1)")
    parser.add_argument("--runner-flag", action="append", default=[], help="a flag for the runner (may be repeated)")
    return parser.parse_args()


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
        f"{report.machine()}, Python {platform.python_version()}; "
        f"{rounds} rounds of {arguments.seconds:g} s each; load generator: {load.name}."
    )
    report.publish(arguments, "measured", about, COLUMNS, rows)


if __name__ == "__main__":
    report.run(main)
