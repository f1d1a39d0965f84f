"""Processes in standby: the same server with and without them, in turns within one run.

Servers run side by side, all but one of them idle at any time: without standby, with one process of the function, with
two. What standby saves is seen by one caller that takes a break between calls, as a person's or a pipeline's client
does; what it must not cost, by many callers without one. The figures to trust are the ratios: the median of the rounds'
own. See docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from bench import inputs, programs, report
from bench.measure import SIZES, BenchmarkError, Laps, number, progress, ratios, through
from bench.programs import Function, LoadGenerator
from bench.served import SERVERS, StartServer
from bench.server import Server, image_of
from bench.table import Column

COLUMNS = (
    Column("", "function", left=True),
    Column("", "in standby"),
    Column("p50 ms, 1 caller", "on demand"),
    Column("p50 ms, 1 caller", "standby"),
    Column("standby/on demand", "ratio"),
    Column("standby/on demand", "rounds"),
    Column("p99 ms", "on demand"),
    Column("p99 ms", "standby"),
    Column("calls/s, many callers", "on demand"),
    Column("calls/s, many callers", "standby"),
    Column("standby/on demand", "ratio"),
    Column("standby/on demand", "rounds"),
    Column("waiting", "MB"),
)

_SETTLING_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, and how much."""

    rounds: int
    seconds: float
    pause_ms: int
    callers: int
    size: str
    kept: tuple[int, ...]
    """How many processes of the function, each measured against none."""


class Bench:
    """Measures functions, one after the other."""

    def __init__(self, plan: Plan, load: LoadGenerator, start: StartServer, directory: Path) -> None:
        self._plan = plan
        self._load = load
        self._start = start
        self._directory = directory

    def rows(self, function: Function) -> list[list[str]]:
        """The lines of the table: one for each number of processes."""
        data = self._directory / f"{function.name}.yaml"
        data.write_bytes(inputs.generated(SIZES[self._plan.size], function.config))
        numbers = (0, *self._plan.kept)
        alone = {kept: Laps() for kept in numbers}
        crowd = {kept: Laps() for kept in numbers}
        memory = dict.fromkeys(numbers, 0)
        with ExitStack() as stack:
            servers: dict[int, Server] = {}
            for kept in numbers:
                directory = self._directory / f"{function.name}-{kept}"
                directory.mkdir()
                servers[kept] = stack.enter_context(self._start(function, directory, f"--standby={kept}"))

            def measure(laps: dict[int, Laps], turn: int, *, callers: int, pause_ms: int = 0) -> None:
                # Whoever comes first may find other caches: they take turns in that, too.
                first = turn % len(numbers)
                for kept in numbers[first:] + numbers[:first]:
                    sample = through(
                        servers[kept],
                        self._load,
                        callers=callers,
                        pause_ms=pause_ms,
                        seconds=self._plan.seconds,
                        image=image_of(function.executable),
                        data=data,
                    )
                    laps[kept].samples.append(sample)

            for turn in range(self._plan.rounds):
                measure(alone, turn, callers=1, pause_ms=self._plan.pause_ms)
                time.sleep(_SETTLING_SECONDS)
                for kept, server in servers.items():
                    memory[kept] = max(memory[kept], server.memory_of_functions())
                measure(crowd, turn, callers=self._plan.callers)
        return [_cells(function.name, kept, alone, crowd, memory[kept]) for kept in self._plan.kept]


def _cells(name: str, kept: int, alone: dict[int, Laps], crowd: dict[int, Laps], memory: int) -> list[str]:
    p50s = {which: [sample.p50_ms for sample in alone[which].samples] for which in (0, kept)}
    return [
        name,
        str(kept),
        *(number(statistics.median(p50s[which])) for which in (0, kept)),
        median_ratio(p50s[kept], p50s[0]),
        ratios(p50s[kept], p50s[0]),
        *(number(alone[which].median(lambda sample: sample.p99_ms)) for which in (0, kept)),
        *(number(crowd[which].rate) for which in (0, kept)),
        median_ratio(crowd[kept].rates, crowd[0].rates),
        ratios(crowd[kept].rates, crowd[0].rates),
        f"{memory / 1e6:.1f}",
    ]


def median_ratio(sides: Sequence[float], floors: Sequence[float]) -> str:
    """Of the rounds."""
    return f"{statistics.median(side / floor for side, floor in zip(sides, floors, strict=True)):.2f}"


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = report.parser("standby", __doc__, quick="one round")
    parser.add_argument("--server", choices=SERVERS, default="exec", help="the exec runtime, or the wrapper server")
    parser.add_argument("--function", action="append", help="only this one (may be repeated)")
    parser.add_argument("--size", choices=SIZES, default="2KB", help="of the input (default 2KB)")
    parser.add_argument("--pause-ms", type=int, default=50, help="between the calls of the one caller (default 50)")
    parser.add_argument("--callers", type=int, default=32, help="how many are many (default 32)")
    parser.add_argument(
        "--standby",
        type=int,
        action="append",
        help="how many processes in standby (may be repeated; default 1, 2)",
    )
    parser.add_argument("--rounds", type=int, help="turns of all in each row (default 5)")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of a turn (default 3)")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    arguments = parse_arguments()
    # The functions' interpreter is the one of this virtual environment.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    plan = Plan(
        rounds=arguments.rounds or (1 if arguments.quick else 5),
        seconds=arguments.seconds,
        pause_ms=arguments.pause_ms,
        callers=arguments.callers,
        size=arguments.size,
        kept=tuple(arguments.standby or (1, 2)),
    )
    progress("building what is needed")
    load = programs.load_generator()
    functions = [
        function for function in programs.functions() if not arguments.function or function.name in arguments.function
    ]
    if not functions:
        raise BenchmarkError("nothing to measure: there is no such function here")
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="krm-runner-bench-") as temporary:
        bench = Bench(plan, load, SERVERS[arguments.server], Path(temporary))
        for function in functions:
            progress(f"{function.name} ...")
            measured = bench.rows(function)
            for row in measured:
                progress(f"  {row[1]} in standby: {row[4]} of the time, {row[10]} of the rate")
            rows += measured
    about = (
        f"{report.machine()}, Python {platform.python_version()}; "
        f"{plan.size}; {plan.rounds} rounds of {plan.seconds:g} s each; 1 caller with {plan.pause_ms} ms between its "
        f"calls, {plan.callers} callers without; load generator: {load.name}."
    )
    report.publish(arguments, "standby" if arguments.server == "exec" else "standby-wrapper", about, COLUMNS, rows)


if __name__ == "__main__":
    report.run(main)
