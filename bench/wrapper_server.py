"""The wrapper server against a minimal one in Go that does the same, and one that parses every output as a whole.

Also against itself without processes in standby, which must not cost throughput. All of them take turns in short rounds
within one run, so that the machine's noise hits all of them; the figures to trust are the ratios. And how fast it
starts, and how little it weighs, alone and with a process in standby. See docs/performance.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

from bench import inputs, programs, report
from bench.measure import CALLERS, SIZES, BenchmarkError, Laps, number, progress, ratios, through
from bench.server import Server, image_of
from bench.table import Column

STARTS = 15
_START_SECONDS = 10
_SETTLING_SECONDS = 1

COLUMNS = (
    Column("", "size"),
    Column("", "callers"),
    Column("calls/s", "Go"),
    Column("calls/s", "Go, parses"),
    Column("calls/s", "wrapper"),
    Column("wrapper/Go", "ratio"),
    Column("wrapper/Go", "rounds"),
    Column("wrapper/Go, parses", "ratio"),
    Column("wrapper/no standby", "ratio"),
    Column("wrapper/no standby", "rounds"),
    Column("p50 ms", "Go"),
    Column("p50 ms", "wrapper"),
    Column("p99 ms", "Go"),
    Column("p99 ms", "wrapper"),
    Column("own CPU ms/call", "Go"),
    Column("own CPU ms/call", "wrapper"),
    Column("peak MB", "Go"),
    Column("peak MB", "wrapper"),
)


def main() -> None:
    """Measure and print."""
    arguments = parse_arguments()
    progress("building what is needed")
    wrapper, peer, load = programs.wrapper_server(), programs.go_wrapper(), programs.load_generator()
    function = programs.functions()[0].executable
    rounds = arguments.rounds or (1 if arguments.quick else 3)
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory(prefix="krm-runner-bench-") as temporary:
        weight = weigh(wrapper, function, Path(temporary)) + waiting_memory(wrapper, Path(temporary))
        for size in arguments.size or (["2KB"] if arguments.quick else SIZES):
            data = Path(temporary) / f"{size}.yaml"
            data.write_bytes(inputs.generated(SIZES[size], inputs.SET_NAMESPACE_CONFIG))
            commands = {
                "wrapper": (str(wrapper), "--port=0", "--", str(function)),
                "no standby": (str(wrapper), "--port=0", "--standby=0", "--", str(function)),
                "go": (str(peer), str(function)),
                "parsing": (str(peer), "-parse", str(function)),
            }
            for callers in arguments.callers or ([8] if arguments.quick else CALLERS):
                progress(f"{size}, callers: {callers} ...")
                laps = {name: Laps() for name in commands}
                peaks: dict[str, int] = {}
                for turn in range(rounds):
                    # Whoever comes first may find other caches: they take turns in that, too.
                    for name, command in list(commands.items())[:: 1 if turn % 2 == 0 else -1]:
                        with Server(Path(temporary), command) as server:
                            laps[name].samples.append(
                                through(
                                    server,
                                    load,
                                    callers=callers,
                                    seconds=arguments.seconds,
                                    image=image_of(function),
                                    data=data,
                                )
                            )
                            peaks[name] = max(peaks.get(name, 0), server.peak_memory())
                rows.append(row(size, callers, laps, peaks))
                progress(f"  {rows[-1][5]} of Go, {rows[-1][7]} of Go that parses, {rows[-1][8]} of no standby")
    about = (
        f"{report.machine()}; {rounds} rounds of "
        f"{arguments.seconds:g} s each; a trivial static function; load generator: {load.name}.\n\n{weight}"
    )
    report.publish(arguments, "wrapper", about, COLUMNS, rows)


def row(size: str, callers: int, laps: dict[str, Laps], peaks: dict[str, int]) -> list[str]:
    """One line of the table."""
    ours, peer, parsing, on_demand = (laps[name] for name in ("wrapper", "go", "parsing", "no standby"))
    return [
        size,
        str(callers),
        *(number(side.rate) for side in (peer, parsing, ours)),
        f"{ours.rate / peer.rate:.2f}",
        ratios(ours.rates, peer.rates),
        f"{ours.rate / parsing.rate:.1f}",
        f"{ours.rate / on_demand.rate:.2f}",
        ratios(ours.rates, on_demand.rates),
        *(number(side.median(lambda sample: sample.p50_ms)) for side in (peer, ours)),
        *(number(side.median(lambda sample: sample.p99_ms)) for side in (peer, ours)),
        *(f"{side.ms_per_call(lambda sample: sample.own_cpu):.2f}" for side in (peer, ours)),
        *(f"{peaks[name] / 1e6:.1f}" for name in ("go", "wrapper")),
    ]


def weigh(wrapper: Path, function: Path, directory: Path) -> str:
    """Size, memory when idle, and the time from exec to SERVING as the probe sees it, its own start included."""
    probe = directory / "grpc-health-probe"
    probe.symlink_to(wrapper)
    milliseconds: dict[int, list[float]] = {0: [], 1: []}
    memory = 0
    for number_of_start in range(2 * STARTS):
        port = 20_000 + os.getpid() % 10_000 + number_of_start
        standby = number_of_start % 2
        begin = time.perf_counter()
        with subprocess.Popen(
            [wrapper, f"--port={port}", f"--standby={standby}", "--", function],
            stderr=subprocess.DEVNULL,
            stdin=subprocess.DEVNULL,
        ) as server:
            while subprocess.run(
                [probe, "-addr", f"localhost:{port}"], stderr=subprocess.DEVNULL, check=False
            ).returncode:
                if time.perf_counter() - begin > _START_SECONDS:
                    server.kill()
                    raise BenchmarkError("the wrapper server does not start")
            milliseconds[standby].append((time.perf_counter() - begin) * 1e3)
            status = Path(f"/proc/{server.pid}/status").read_text()
            memory = max(memory, int(status.partition("VmRSS:")[2].split()[0]))
            server.terminate()
    return (
        f"{wrapper.stat().st_size / 1e6:.1f} MB on disk, {memory / 1024:.1f} MB resident when idle, "
        f"{statistics.median(milliseconds[1]):.1f} ms from exec to SERVING (without standby "
        f"{statistics.median(milliseconds[0]):.1f} ms; medians of {STARTS} in turns, the probe's own start included)."
    )


def waiting_memory(wrapper: Path, directory: Path) -> str:
    """What a process in standby adds to that, function by function: resident, and shared with nobody."""
    found: list[str] = []
    for function in programs.functions():
        home = directory / f"waiting-{function.name}"
        home.mkdir()
        with Server(home, (str(wrapper), "--port=0", "--", str(function.executable))) as server:
            time.sleep(_SETTLING_SECONDS)
            found.append(f"{function.name} {server.memory_of_functions() / 1e6:.1f}")
    return f" A process in standby adds, in MB: {', '.join(found)}."


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = report.parser("wrapper_server", __doc__, quick="2 KB, 8 callers, one round")
    parser.add_argument("--size", action="append", choices=SIZES, help="only this one (may be repeated)")
    parser.add_argument("--callers", action="append", type=int, help="only this many at a time (may be repeated)")
    parser.add_argument("--rounds", type=int, help="turns of each server in each row (default 3)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn (default 1)")
    return parser.parse_args()


if __name__ == "__main__":
    report.run(main)
