"""What one benchmark run measures: rounds of load, their samples, and what the samples of one side make together."""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from bench.programs import LoadGenerator
from bench.server import CpuSeconds

SIZES = {"2KB": 2_000, "100KB": 100_000, "5MB": 5_000_000}
CALLERS = (1, 8, 32)
_SLACK_SECONDS = 300


class BenchmarkError(Exception):
    """A figure would be worthless; the message says why."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One round of one side."""

    calls: int
    seconds: float
    p50_ms: float
    p99_ms: float
    own_cpu: float
    """Of the bare loop, or of the server."""
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


class Served(Protocol):
    """What is called: a server, or several that share the load."""

    @property
    def addresses(self) -> Sequence[str]:
        """Where they listen."""
        ...

    def cpu(self) -> CpuSeconds:
        """So far."""
        ...


def through(
    server: Served,
    load: LoadGenerator,
    *,
    callers: int,
    seconds: float,
    image: str,
    data: Path,
    pause_ms: int = 0,
) -> Sample:
    """One round of load; with a pause, between an answer and the same caller's next call."""
    before = server.cpu()
    report = run_report(
        *load.command,
        *(f"-addresses={','.join(server.addresses)}", f"-seconds={seconds}", f"-callers={callers}"),
        *(f"-pause={pause_ms}ms", f"-image={image}", f"-input={data}"),
        seconds=seconds,
    )
    cpu = server.cpu().since(before)
    # Each connection has one call more, before time is taken.
    return sample_of(report, cpu, load=report["cpu_seconds"], more_executions=len(server.addresses))


def run_report(*command: str, seconds: float) -> dict[str, float]:
    """What a program that makes load reports; none of its calls may fail."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds + _SLACK_SECONDS, check=False)
    if done.returncode:
        raise BenchmarkError(f"{Path(command[0]).name} failed: {done.stderr.strip()}")
    report = json.loads(done.stdout)
    if report["failures"]:
        raise BenchmarkError(f"{report['failures']} calls failed: {report.get('failure', 'exit code not 0')}")
    return cast(dict[str, float], report)


def sample_of(report: dict[str, float], cpu: CpuSeconds, *, load: float, more_executions: int) -> Sample:
    """Of what was reported."""
    calls = int(report["calls"])
    return Sample(
        calls=calls,
        seconds=report["seconds"],
        p50_ms=report["p50_ms"],
        p99_ms=report["p99_ms"],
        own_cpu=cpu.server,
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


def ratios(sides: Sequence[float], floors: Sequence[float]) -> str:
    """The smallest and the largest of the rounds."""
    found = [side / floor for side, floor in zip(sides, floors, strict=True)]
    return f"{min(found):.2f}-{max(found):.2f}"


def update(document: Path, mark: str, rendered: str) -> None:
    """Replace what stands between the marks."""
    content = document.read_text()
    marked = re.compile(rf"(?<=<!-- {mark} -->\n).*?(?=<!-- /{mark} -->)", re.DOTALL)
    if not marked.search(content):
        raise BenchmarkError(f"{document} has no marks <!-- {mark} --> and <!-- /{mark} -->")
    document.write_text(marked.sub(lambda _: f"\n{rendered}\n\n", content, count=1))
