"""What the runner adds to a call that a pod serves: the wrapper server called through it, and called directly.

Both sides take turns in one run, with the same wrapper server and the same function. The pod is an object of a real API
server whose status is played, and the wrapper server listens on its address: what a cluster adds is its network alone.
See docs/performance.md.
"""

from __future__ import annotations

import argparse
import tempfile
from contextlib import ExitStack
from pathlib import Path

from bench import inputs, programs, report
from bench.measure import CALLERS, SIZES, Laps, number, progress, ratios, through
from bench.pool_size import IMAGE, PORT, place
from bench.programs import Function
from bench.server import Server
from bench.table import Column
from cluster.api_only import ApiServer
from support.kube import Kube

_SIZES = ("2KB", "100KB")
COLUMNS = (
    Column("", "function", left=True),
    Column("", "size"),
    Column("", "callers"),
    Column("calls/s", "direct"),
    Column("calls/s", "runner"),
    Column("throughput", "ratio"),
    Column("throughput", "rounds"),
    Column("p50 ms", "direct"),
    Column("p50 ms", "runner"),
    Column("p50 ms", "added"),
    Column("p99 ms", "direct"),
    Column("p99 ms", "runner"),
    Column("CPU ms/call", "runner"),
    Column("CPU ms/call", "load"),
)


def main() -> None:
    """Measure and print."""
    arguments = parse_arguments()
    wrapper, load = programs.wrapper_server(), programs.load_generator()
    wanted = [function for function in programs.functions() if function.name in arguments.functions]
    rows: list[list[str]] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="krm-runner-bench-")))
        progress("an API server starts")
        api = stack.enter_context(ApiServer(directory / "api"))
        kube = stack.enter_context(Kube(api.layout.kubeconfig()))
        for function in wanted:
            own = directory / function.name
            own.mkdir()
            command = (str(wrapper), f"--port={PORT}", "--", str(function.executable))
            with (
                Server(own, command) as direct,
                place(kube, own, api.layout.kubeconfig(), 1, namespace=function.name) as runner,
            ):
                for size in _SIZES:
                    data = own / f"{size}.yaml"
                    data.write_bytes(inputs.generated(SIZES[size], function.config))
                    for callers in arguments.callers or CALLERS:
                        progress(f"{function.name}, {size}, callers: {callers} ...")
                        sides = direct, runner.server
                        laps = [Laps(), Laps()]
                        for _ in range(2 if arguments.quick else 5):
                            for lap, server in zip(laps, sides, strict=True):
                                seconds = 1.0 if arguments.quick else 3.0
                                lap.samples.append(
                                    through(server, load, callers=callers, seconds=seconds, image=IMAGE, data=data)
                                )
                        rows.append(row(function, size, callers, *laps))
    about = f"{report.machine()}; load generator: {load.name}."
    report.publish(arguments, "warm", about, COLUMNS, rows)


def row(function: Function, size: str, callers: int, direct: Laps, runner: Laps) -> list[str]:
    """One line of the table."""
    p50 = [side.median(lambda sample: sample.p50_ms) for side in (direct, runner)]
    p99 = [side.median(lambda sample: sample.p99_ms) for side in (direct, runner)]
    return [
        function.name,
        size,
        str(callers),
        number(direct.rate),
        number(runner.rate),
        f"{runner.rate / direct.rate:.2f}",
        ratios(runner.rates, direct.rates),
        *(number(value) for value in p50),
        f"{p50[1] - p50[0]:.2f}",
        *(number(value) for value in p99),
        f"{runner.ms_per_call(lambda sample: sample.own_cpu):.2f}",
        f"{runner.ms_per_call(lambda sample: sample.load_cpu):.2f}",
    ]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = report.parser("warm_path", __doc__, quick="two short rounds")
    parser.add_argument(
        "--functions",
        nargs="+",
        default=["copy", "set-namespace-go"],
        metavar="NAME",
        help="as `make bench` names them",
    )
    parser.add_argument("--callers", type=int, nargs="+", help="only these numbers of callers")
    return parser.parse_args()


if __name__ == "__main__":
    report.run(main)
