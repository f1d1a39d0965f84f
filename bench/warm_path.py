"""What the runner adds to a call that a pod serves: wrapper servers called through it, and called directly.

Both sides take turns in one run, with the same wrapper servers and the same function. The pods, one or several, are
objects of a real API server whose status is played, and a wrapper server listens on the address of each: what a cluster
adds is its network alone. Directly called, several share the callers. See docs/performance.md.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import inputs, pod_network, pool_size, programs, report
from bench.measure import CALLERS, SIZES, Laps, Served, number, progress, ratios, through
from bench.pool_size import IMAGE, PORT, place
from bench.programs import Function, LoadGenerator
from bench.server import Group, Server
from bench.table import Column
from cluster.api_only import ApiServer
from support.kube import Kube

PODS = (1, 4)
_SIZES = ("2KB", "100KB")
COLUMNS = (
    Column("", "function", left=True),
    Column("", "size"),
    Column("", "pods"),
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


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and how long."""

    sizes: tuple[str, ...]
    callers: tuple[int, ...]
    rounds: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Sides:
    """The wrapper servers of a function, and a runner that knows them as its pods."""

    function: Function
    pods: int
    direct: Served
    runner: Served
    image: str = IMAGE


def main() -> None:
    """Measure and print."""
    arguments = parse_arguments()
    plan = Plan(
        sizes=tuple(arguments.sizes),
        callers=tuple(arguments.callers),
        rounds=arguments.rounds or (2 if arguments.quick else 5),
        seconds=1.0 if arguments.quick else 3.0,
    )
    wrapper, load = programs.wrapper_server(), programs.load_generator()
    wanted = [function for function in programs.functions() if function.name in arguments.functions]
    rows: list[list[str]] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="krm-runner-bench-")))
        progress("an API server starts")
        api = stack.enter_context(ApiServer(directory / "api"))
        kube = stack.enter_context(Kube(api.layout.kubeconfig()))
        for function in wanted:
            for pods in arguments.pods:
                own = directory / f"{function.name}-{pods}"
                own.mkdir()
                kubeconfig = api.layout.kubeconfig()
                with sides(function, pods, wrapper=wrapper, kube=kube, kubeconfig=kubeconfig, directory=own) as both:
                    rows += measured(both, plan, load, own)
    about = f"{report.machine()}; {plan.rounds} rounds of {plan.seconds:g} s each; load generator: {load.name}."
    report.publish(arguments, "warm", about, COLUMNS, rows)


@contextmanager
def sides(
    function: Function, pods: int, *, wrapper: Path, kube: Kube, kubeconfig: Path, directory: Path
) -> Generator[Sides]:
    """Started, and ended."""
    command = (str(wrapper), f"--port={PORT}", "--", str(function.executable))
    with ExitStack() as stack:
        servers: list[Server] = []
        for pod in range(1, pods + 1):
            own = directory / f"pod-{pod}"
            own.mkdir()
            # A single one needs no network of its own.
            server = Server(own, command) if pods == 1 else pod_network.in_a_pod(own, command, pod)
            servers.append(stack.enter_context(server))
        address = pool_size.loopback_address if pods == 1 else pod_network.address
        namespace = f"{function.name}-{pods}"
        runner = stack.enter_context(place(kube, directory, kubeconfig, pods, namespace=namespace, address=address))
        yield Sides(function, pods, Group(servers), runner.server)


def measured(both: Sides, plan: Plan, load: LoadGenerator, directory: Path) -> list[list[str]]:
    """The lines of the table; callers that are fewer than the pods would leave some of them out.

    What is slow with so much input under way is left out, too.
    """
    rows: list[list[str]] = []
    for size in plan.sizes:
        data = directory / f"{size}.yaml"
        data.write_bytes(inputs.generated(SIZES[size], both.function.config))
        for callers in plan.callers:
            if callers < both.pods or SIZES[size] * callers > both.function.most_bytes:
                continue
            progress(f"{both.function.name}, {size}, pods: {both.pods}, callers: {callers} ...")
            direct, runner = Laps(), Laps()
            for _ in range(plan.rounds):
                for laps, server in ((direct, both.direct), (runner, both.runner)):
                    laps.samples.append(
                        through(server, load, callers=callers, seconds=plan.seconds, image=both.image, data=data)
                    )
            rows.append(row(both, size, callers, direct, runner))
            progress(f"  {rows[-1][6]} of the rate, {rows[-1][7]}")
    return rows


def row(both: Sides, size: str, callers: int, direct: Laps, runner: Laps) -> list[str]:
    """One line of the table."""
    p50 = [side.median(lambda sample: sample.p50_ms) for side in (direct, runner)]
    p99 = [side.median(lambda sample: sample.p99_ms) for side in (direct, runner)]
    return [
        both.function.name,
        size,
        str(both.pods),
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
    parser.add_argument("--sizes", choices=SIZES, nargs="+", default=_SIZES, help="of the input (default 2KB 100KB)")
    parser.add_argument("--pods", type=int, nargs="+", default=PODS, help="so many (default 1 4); 1 needs no root")
    parser.add_argument("--callers", type=int, nargs="+", default=CALLERS, help="so many (default 1 8 32)")
    parser.add_argument("--rounds", type=int, help="turns of both sides in each row (default 5)")
    return parser.parse_args()


if __name__ == "__main__":
    report.run(main)
