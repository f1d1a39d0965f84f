"""What TLS, tokens and tracing cost at the port: the same functions behind runners that differ in that alone.

The runners take turns in short rounds within one run, so that the machine's noise hits all of them; trust the ratios to
plain text. Load generator, functions and the collector of traces share the machine. See docs/security.md.
"""

from __future__ import annotations

import contextlib
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from bench import inputs, programs, report
from bench.measure import SIZES, Laps, number, progress, ratios, through
from bench.programs import LoadGenerator, MissingToolError
from bench.server import Server, image_of, runner
from bench.table import Column
from support.certificates import Authority

PLAIN, TLS, TOKEN, TRACED = "plain text", "TLS", "a token", "traced"
COLUMNS = (
    Column("", "function", left=True),
    Column("", "callers"),
    Column("calls/s", PLAIN),
    *(Column(f"{name}/{PLAIN}", column) for name in (TLS, TOKEN, TRACED) for column in ("ratio", "rounds")),
    Column("spans", "of calls"),
)
CALLERS = (8, 32)
SIZE = "2KB"
_FLUSH_SECONDS = 7
"""Spans leave in batches, the last one five seconds later."""
SECRET = "dG9rZW4gZm9yIGEgYmVuY2htYXJrLCBubyBzZWNyZXQ"


@dataclass(frozen=True, slots=True)
class Side:
    """One of the runners, and what calls it."""

    server: Server
    load: LoadGenerator


@contextlib.contextmanager
def _collector(log: Path) -> Generator[str]:
    """A collector of traces on a free port of loopback, which notes how many spans it was sent; its URL."""
    command = [sys.executable, "-m", "bench.trace_sink"]
    with log.open("wb") as output, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=output, text=True) as sink:
        try:
            assert sink.stdout is not None
            yield f"http://127.0.0.1:{int(sink.stdout.readline())}"
        finally:
            sink.terminate()


def _sides(stack: ExitStack, directory: Path, executable: Path, load: LoadGenerator, collector: str) -> dict[str, Side]:
    certificate, key = (authority := Authority(directory / "ca")).sign("runner")
    tokens = directory / "tokens"
    tokens.write_text(SECRET)
    traces = {
        "OTEL_TRACES_EXPORTER": "otlp", "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector,
    }  # fmt: skip

    def side(name: str, *flags: str, environment: Mapping[str, str] | None = None, calls: tuple[str, ...] = ()) -> Side:
        (own := directory / name).mkdir()
        server = stack.enter_context(runner(own, [executable], flags, environment=environment))
        return Side(server, replace(load, command=(*load.command, *calls)))

    return {
        PLAIN: side(PLAIN),
        TLS: side(
            TLS, f"--tls-cert-file={certificate}", f"--tls-key-file={key}", calls=(f"-ca={authority.certificate}",)
        ),
        TOKEN: side(TOKEN, f"--auth-token-file={tokens}", calls=(f"-token={SECRET}",)),
        TRACED: side(TRACED, environment=traces),
    }


def _row(
    sides: Mapping[str, Side], executable: Path, data: Path, *, callers: int, rounds: int, seconds: float
) -> dict[str, Laps]:
    laps = {name: Laps() for name in sides}
    for turn in range(rounds):
        progress(f"round {turn + 1} of {rounds}")
        for name, side in sides.items():
            sample = through(
                side.server, side.load, callers=callers, seconds=seconds, image=image_of(executable), data=data
            )
            laps[name].samples.append(sample)
    return laps


def main() -> None:
    """Measure and print."""
    parser = report.parser("port", __doc__, quick="one round")
    parser.add_argument("--rounds", type=int, default=8, help="turns of each runner in each row (default 8)")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a turn (default 2)")
    arguments = parser.parse_args()
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    rounds = 1 if arguments.quick else arguments.rounds
    load = programs.load_generator()
    if load.name != "Rust":
        raise MissingToolError("no cargo: only the load generator in Rust speaks TLS")
    rows: list[list[str]] = []
    for function in programs.functions()[:2]:
        with tempfile.TemporaryDirectory(prefix="krm-runner-bench-") as name, ExitStack() as stack:
            directory = Path(name)
            (data := directory / "input.yaml").write_bytes(inputs.generated(SIZES[SIZE], function.config))
            sink = directory / "sink"
            sides = _sides(stack, directory, function.executable, load, stack.enter_context(_collector(sink)))
            for callers in CALLERS:
                progress(f"{function.name}, callers: {callers}")
                seen = _spans(sink)
                laps = _row(sides, function.executable, data, callers=callers, rounds=rounds, seconds=arguments.seconds)
                plain = laps[PLAIN]
                traced = sum(sample.calls for sample in laps[TRACED].samples)
                time.sleep(_FLUSH_SECONDS)
                compared = [
                    cell
                    for name in (TLS, TOKEN, TRACED)
                    for cell in (_median_ratio(laps[name], plain), ratios(laps[name].rates, plain.rates))
                ]
                spans = f"{(_spans(sink) - seen) / traced:.2f}"
                rows.append([function.name, str(callers), number(plain.rate), *compared, spans])
    about = f"{report.machine()}; {SIZE}, {rounds} rounds of {arguments.seconds:g} s each."
    report.publish(arguments, "port", about, COLUMNS, rows)


def _median_ratio(side: Laps, plain: Laps) -> str:
    return f"{statistics.median(a / b for a, b in zip(side.rates, plain.rates, strict=True)):.2f}"


def _spans(log: Path) -> int:
    return sum(map(int, re.findall(r"^(\d+) spans$", log.read_text(), re.MULTILINE)))


if __name__ == "__main__":
    report.run(main)
