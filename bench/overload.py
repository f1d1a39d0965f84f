"""More calls than can be served: how much of the peak is left, how long accepted calls take, how soon others hear no.

First the peak: callers that wait for their answers. Then calls at that rate and at twice that rate, started whether or
not others are answered, each with a deadline. The rounds take turns within one run, so that the machine's noise hits
all; the figures to trust are the ratios: the medians of the rounds' own. See docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import inputs, programs, report
from bench.measure import SIZES, BenchmarkError, number, progress, ratios, run_report
from bench.programs import Function, LoadGenerator
from bench.served import SERVERS
from bench.server import Server, image_of
from bench.table import Column

FACTORS = (1.0, 2.0)
_CALLERS_AT_THE_PEAK = 8
_FUNCTIONS = ("set-namespace-go", "set-namespace-py")
"""One whose calls are short, so that every refusal counts, and one whose calls are not."""

COLUMNS = (
    Column("", "function", left=True),
    Column("", "load"),
    Column("answered in time", "calls/s"),
    Column("answered in time", "of the peak"),
    Column("answered in time", "rounds"),
    Column("accepted", "p50 ms"),
    Column("accepted", "p99 ms"),
    Column("refused", "share"),
    Column("refused", "p50 ms"),
    Column("refused", "p99 ms"),
    Column("deadline exceeded", "share"),
    Column("CPUs used", "server"),
    Column("CPUs used", "functions"),
    Column("CPUs used", "load"),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """How long, and how much."""

    rounds: int
    seconds: float
    timeout_ms: int
    size: str


@dataclass(frozen=True, slots=True)
class Round:
    """What became of the calls of one round."""

    rate: float
    """Answered a second, while calls were started."""
    p50_ms: float
    p99_ms: float
    refused: float
    refused_p50_ms: float
    refused_p99_ms: float
    late: float
    server_cpus: float
    function_cpus: float
    load_cpus: float


class Bench:
    """Loads one server."""

    def __init__(self, plan: Plan, load: LoadGenerator, server: Server, function: Function, data: Path) -> None:
        self._plan = plan
        self._server = server
        self._name = function.name
        self._command = (
            *load.command,
            *(f"-addresses={','.join(server.addresses)}", f"-image={image_of(function.executable)}", f"-input={data}"),
        )

    def rows(self) -> list[list[str]]:
        """The peak, and one line for each factor of it."""
        peaks: list[Round] = []
        loads: dict[float, list[Round]] = {factor: [] for factor in FACTORS}
        for turn in range(self._plan.rounds):
            peaks.append(self._round(f"-callers={_CALLERS_AT_THE_PEAK}"))
            # Whoever comes first may find other caches: they take turns in that, too.
            for factor in FACTORS[:: 1 if turn % 2 == 0 else -1]:
                rate = factor * peaks[-1].rate
                loads[factor].append(self._round(f"-rate={rate}", f"-timeout={self._plan.timeout_ms}ms"))
                progress(f"  {factor:g}: {loads[factor][-1].rate / peaks[-1].rate:.2f} of the peak")
        rates = [peak.rate for peak in peaks]
        return [
            self._row(f"{_CALLERS_AT_THE_PEAK} callers", peaks, rates),
            *(self._row(f"{factor:g} x peak", rounds, rates) for factor, rounds in loads.items()),
        ]

    def _round(self, *load: str) -> Round:
        seconds = self._plan.seconds
        before = self._server.cpu()
        found = run_report(*self._command, f"-seconds={seconds}", *load, seconds=seconds)
        cpu = self._server.cpu().since(before)
        calls = found["calls"]
        return Round(
            rate=found["good"] / seconds,
            p50_ms=found["p50_ms"],
            p99_ms=found["p99_ms"],
            refused=found["refused"] / calls,
            refused_p50_ms=found["refused_p50_ms"],
            refused_p99_ms=found["refused_p99_ms"],
            late=found["late"] / calls,
            server_cpus=cpu.server / seconds,
            function_cpus=cpu.functions / seconds,
            load_cpus=found["cpu_seconds"] / seconds,
        )

    def _row(self, name: str, rounds: Sequence[Round], peaks: Sequence[float]) -> list[str]:
        def median(of: Callable[[Round], float]) -> float:
            return statistics.median(map(of, rounds))

        rates = [one.rate for one in rounds]
        has_refused = median(lambda one: one.refused) > 0
        return [
            self._name,
            name,
            number(statistics.median(rates)),
            f"{statistics.median(rate / peak for rate, peak in zip(rates, peaks, strict=True)):.2f}",
            ratios(rates, peaks),
            number(median(lambda one: one.p50_ms)),
            number(median(lambda one: one.p99_ms)),
            f"{median(lambda one: one.refused):.0%}",
            number(median(lambda one: one.refused_p50_ms)) if has_refused else "",
            number(median(lambda one: one.refused_p99_ms)) if has_refused else "",
            f"{median(lambda one: one.late):.1%}",
            f"{median(lambda one: one.server_cpus):.2f}",
            f"{median(lambda one: one.function_cpus):.2f}",
            f"{median(lambda one: one.load_cpus):.2f}",
        ]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = report.parser("overload", __doc__, quick="one round")
    parser.add_argument("--server", choices=SERVERS, default="exec", help="the exec runtime, or the wrapper server")
    parser.add_argument("--function", action="append", help="only this one (may be repeated)")
    parser.add_argument("--size", choices=SIZES, default="2KB", help="of the input (default 2KB)")
    parser.add_argument("--timeout-ms", type=int, default=1000, help="deadline of a call (default 1000)")
    parser.add_argument("--rounds", type=int, help="turns of each load (default 9)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a turn (default 2)")
    return parser.parse_args()


def main() -> None:
    """Measure and print."""
    arguments = parse_arguments()
    # The functions' interpreter is the one of this virtual environment.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    plan = Plan(
        rounds=arguments.rounds or (1 if arguments.quick else 9),
        seconds=arguments.seconds,
        timeout_ms=arguments.timeout_ms,
        size=arguments.size,
    )
    progress("building what is needed")
    load = programs.load_generator()
    wanted = arguments.function or _FUNCTIONS
    functions = [function for function in programs.functions() if function.name in wanted]
    if not functions:
        raise BenchmarkError("nothing to measure: there is no such function here")
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="krm-runner-bench-") as temporary:
        for function in functions:
            progress(f"{function.name} ...")
            directory = Path(temporary) / function.name
            directory.mkdir()
            data = directory / "input.yaml"
            data.write_bytes(inputs.generated(SIZES[plan.size], function.config))
            with SERVERS[arguments.server](function, directory) as server:
                rows += Bench(plan, load, server, function, data).rows()
    about = (
        f"{report.machine()}; {plan.size}; {plan.rounds} rounds of {plan.seconds:g} s each; calls that do not wait for "
        f"others have a deadline of {plan.timeout_ms} ms; load generator: {load.name}."
    )
    report.publish(arguments, "overload" if arguments.server == "exec" else "overload-wrapper", about, COLUMNS, rows)


if __name__ == "__main__":
    report.run(main)
