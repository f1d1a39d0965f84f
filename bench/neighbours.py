"""What cold starts of some functions cost the calls of others.

Runs in the network of the tests' cluster: `make bench-pods`. Functions with warm pods are called at a steady pace: in
quiet; while as many others, which have no pods, are called for the first time, all at once; and while the same happens
in another runner, with its pods in another namespace: that shows what starts of pods do to calls, whoever starts them.
Of each warm call the figure is what the runner added: its own time, from request to answer, less that of the pod's
wrapper server. Both are logged; the calls of one function come one after the other, so that their lines are in the same
order.

A cluster has its control plane and its new pods on other machines, and here they are on the same CPUs. So there are two
arrangements, in turns: all of it on all CPUs; and the runner and the warm pods on the last one, everything else on the
others, the kernel's own threads included. The other functions begin at a random moment between two warm calls. The
runner and the functions share CPUs as they do where deploy/base installs them: by what their containers ask for. See
docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import re
import statistics
from collections.abc import Awaitable, Generator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from bench import cpus, report
from bench.measure import BenchmarkError, progress
from bench.pod_runtime import call, installation
from bench.server import cpu_of, front_of
from bench.table import Column
from cluster import layout
from cluster.full import FullCluster
from support import function_images
from support.client import Client
from support.kube import wait_until
from support.runner import RunnerProcess
from support.site import ASKED_FOR, Site

FUNCTIONS = 10
"""So many are warm, and so many start at a time."""
CALLS_PER_SECOND = 40
QUIET_SECONDS = 10.0
RUNNER_MILLICORES = 200
"""As deploy/base/deployment.yaml has it."""
_FUNCTION_LIMITS = Path("deploy/base/function-limits.yaml")
_SHARED, _APART = "all on all CPUs", "the cluster on others"
_EVALUATED = re.compile(r"\bevent=evaluated image=(\S+) .*?\sseconds=([0-9.]+)")
COLUMNS = (
    Column("", "arrangement", left=True),
    Column("", "warm calls", left=True),
    Column("", "calls"),
    Column("added by the runner, ms", "p50"),
    Column("added by the runner, ms", "p99"),
    Column("added by the runner, ms", "longest"),
    Column("p99", "rounds"),
    Column("runner, ms/call", "on a CPU"),
    Column("runner, ms/call", "waiting for one"),
)


@dataclass(frozen=True, slots=True)
class Usage:
    """Seconds of a process so far: on CPUs, and ready to run without one."""

    cpu: float
    waiting: float

    @classmethod
    def of(cls, pid: int) -> Usage:
        """A runner, its front included; all of their threads that live."""
        threads = [file for part in (pid, *front_of(pid)) for file in Path(f"/proc/{part}/task").glob("*/schedstat")]
        waiting = sum(int(file.read_text().split()[1]) for file in threads) / 1e9
        return cls(cpu_of(pid).server, waiting)


@dataclass(slots=True)
class Phase:
    """One stretch of steady calls: which they were (image, and number among its calls), and what the runner used."""

    calls: list[tuple[str, int]] = field(default_factory=list[tuple[str, int]])
    cpu: float = 0.0
    waiting: float = 0.0


class Steady:
    """Calls warm functions in turn, at a pace."""

    def __init__(self, client: Client, runner: RunnerProcess, images: list[str]) -> None:
        self._client = client
        self._runner = runner
        self._made = dict.fromkeys(images, 0)

    async def warm_up(self) -> None:
        """A first call of every function."""
        await asyncio.gather(*(self._call(image) for image in self._made))

    async def during(self, work: Awaitable[object]) -> Phase:
        """The calls that were made until the work was done."""
        phase, before = Phase(), Usage.of(self._runner.pid)
        over = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for index, image in enumerate(self._made):
                group.create_task(self._caller(image, phase, over, delay=index / CALLS_PER_SECOND))
            await work
            over.set()
        after = Usage.of(self._runner.pid)
        phase.cpu, phase.waiting = after.cpu - before.cpu, after.waiting - before.waiting
        return phase

    async def _caller(self, image: str, phase: Phase, over: asyncio.Event, *, delay: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + delay
        while True:
            await asyncio.sleep(due - loop.time())
            if over.is_set():
                return
            phase.calls.append((image, await self._call(image)))
            due = max(due + len(self._made) / CALLS_PER_SECOND, loop.time())

    async def _call(self, image: str) -> int:
        self._made[image] += 1
        number_of_call = self._made[image] - 1
        await call(self._client, image)
        return number_of_call


def main() -> None:
    """Measure and print."""
    arguments = parse_arguments()
    cluster = FullCluster(layout.full())
    if not cluster.enclosure.is_home:
        raise BenchmarkError("not in the network of the cluster: `make bench-pods`")
    if (os.cpu_count() or 1) < 2:
        raise BenchmarkError("there is one CPU: the cluster cannot be kept apart")
    rounds = 1 if arguments.quick else arguments.rounds
    with installation(cluster) as (elsewhere, _), installation(cluster) as (site, push):
        limits = yaml.safe_load(_FUNCTION_LIMITS.read_text())
        site.functions.kube.create(limits | {"metadata": {"name": "limits", "namespace": site.functions.name}})
        progress("images are pushed")
        function = function_images.catalog("set-namespace", "distroless")
        warm, *cold = (
            [push("set-namespace", function, tag=f"group-{group}-{tag}") for tag in range(FUNCTIONS)]
            for group in range(4 * rounds + 1)
        )
        runner = site.start(site.account(), "--pod-ttl=10m", "--log-level=2")
        other = elsewhere.start(elsewhere.account(), "--pod-ttl=10m", "--log-level=2")
        starters = Starter(site, runner), Starter(elsewhere, other)
        measured = asyncio.run(measure(cluster, starters, warm, cold))
        added = added_seconds(site, runner, warm)
    rows = [row for name, phases in measured.items() for row in rows_of(name, phases, added)]
    about = (
        f"{report.machine()}, Kubernetes {layout.KUBERNETES_VERSION}; {FUNCTIONS} functions (set-namespace, Go), "
        f"{CALLS_PER_SECOND} calls/s in all, {rounds} rounds."
    )
    report.publish(arguments, "neighbours", about, COLUMNS, rows)


@dataclass(frozen=True, slots=True)
class Phases:
    """Of one arrangement: in quiet, and with cold starts in the same runner and in another, in turns."""

    quiet: list[Phase] = field(default_factory=list[Phase])
    busy: list[Phase] = field(default_factory=list[Phase])
    others: list[Phase] = field(default_factory=list[Phase])


@dataclass(frozen=True, slots=True)
class Starter:
    """A runner that is asked for functions without pods."""

    site: Site
    runner: RunnerProcess

    async def first_calls(self, images: list[str]) -> None:
        """All at once."""
        async with Client(self.runner.address) as client:
            await asyncio.sleep(random.uniform(0, 1 / CALLS_PER_SECOND))
            await asyncio.gather(*(call(client, image) for image in images))

    def delete_pods(self, images: list[str]) -> None:
        """Of these functions, and wait until they are gone."""

        def found() -> list[str]:
            pods = self.site.pods()
            return [pod["metadata"]["name"] for pod in pods if pod["metadata"]["annotations"][ASKED_FOR] in images]

        for name in found():
            self.site.delete_pod(name)
        wait_until(lambda: not found(), what="the pods of the other functions are gone")


async def measure(
    cluster: FullCluster, starters: tuple[Starter, Starter], warm: list[str], cold: list[list[str]]
) -> dict[str, Phases]:
    """Of both arrangements, in turns."""
    measured = {name: Phases() for name in (_SHARED, _APART)}
    runner = starters[0].runner
    async with Client(runner.address) as client:
        steady = Steady(client, runner, warm)
        progress("the warm functions start")
        await steady.warm_up()
        pod = next(pid for pid in cpus.descendants(cluster.enclosure.require().pid) if cpus.is_of_a_pod(pid))
        with cpus.as_a_container(runner.parts, beside=pod, millicores=RUNNER_MILLICORES):
            for number, groups in enumerate(zip(cold[::2], cold[1::2], strict=True)):
                name = _APART if number % 2 else _SHARED
                progress(f"round {number // 2 + 1} of {len(cold) // 4}: {name}")
                phases = measured[name]
                with apart(cluster, starters) if name == _APART else nullcontext():
                    await rest()
                    phases.quiet.append(await steady.during(asyncio.sleep(QUIET_SECONDS)))
                    turns = list(zip(starters, groups, (phases.busy, phases.others), strict=True))
                    for starter, images, found in turns if number // 2 % 2 else reversed(turns):
                        await rest()
                        found.append(await steady.during(starter.first_calls(images)))
                        await asyncio.to_thread(starter.delete_pods, images)
    return measured


async def rest() -> None:
    """What the last phase left to do is done."""
    if not await asyncio.to_thread(cpus.wait_until_idle):
        progress("the machine does not come to rest: the figures in quiet are of a busy machine")


@contextmanager
def apart(cluster: FullCluster, starters: tuple[Starter, Starter]) -> Generator[None]:
    """The first runner and the pods that there are have the last CPU for themselves."""
    runner, other = (starter.runner for starter in starters)
    *others, last = range(os.cpu_count() or 1)
    inside = cpus.descendants(cluster.enclosure.require().pid)
    pods = [pid for pid in inside if cpus.is_of_a_pod(pid)]
    with ExitStack() as stack:
        stack.enter_context(cpus.kernel_restricted(others))
        stack.enter_context(cpus.restricted([*(set(inside) - set(pods)), *other.parts, os.getpid()], others))
        stack.enter_context(cpus.restricted([*pods, *runner.parts], [last]))
        yield


def added_seconds(site: Site, runner: RunnerProcess, images: list[str]) -> dict[tuple[str, int], float]:
    """What the runner added to each call."""
    ours: dict[str, list[float]] = {}
    for image, seconds in _EVALUATED.findall("\n".join(runner.lines)):
        ours.setdefault(image, []).append(float(seconds))
    pods = {pod["metadata"]["annotations"][ASKED_FOR]: pod["metadata"]["name"] for pod in site.living()}
    added: dict[tuple[str, int], float] = {}
    for image in images:
        log = site.functions.logs(pods[image], "function")
        theirs = [float(seconds) for _, seconds in _EVALUATED.findall(log)]
        if len(theirs) != len(ours[image]):
            raise BenchmarkError(f"{len(ours[image])} calls of {image}, and its pod has logged {len(theirs)}")
        for index, (whole, inner) in enumerate(zip(ours[image], theirs, strict=True)):
            added[image, index] = whole - inner
    return added


def rows_of(name: str, phases: Phases, added: dict[tuple[str, int], float]) -> list[list[str]]:
    """The lines of one arrangement."""
    return [
        [name, "in quiet", *figures(phases.quiet, added)],
        [name, f"while another runner starts {FUNCTIONS}", *figures(phases.others, added)],
        [name, f"while {FUNCTIONS} others start", *figures(phases.busy, added)],
        [name, "**to quiet**", *ratios(phases.busy, phases.quiet, added)],
        [name, "**to another runner's**", *ratios(phases.busy, phases.others, added)],
    ]


def figures(phases: list[Phase], added: dict[tuple[str, int], float]) -> list[str]:
    """One line of the table."""
    times = sorted(milliseconds(phases, added))
    return [
        str(len(times)),
        f"{statistics.median(times):.2f}",
        f"{p99(times):.2f}",
        f"{times[-1]:.2f}",
        "-".join(f"{of([p99(milliseconds([phase], added)) for phase in phases]):.2f}" for of in (min, max)),
        f"{sum(phase.cpu for phase in phases) / len(times) * 1e3:.2f}",
        f"{sum(phase.waiting for phase in phases) / len(times) * 1e3:.2f}",
    ]


def ratios(busy: list[Phase], others: list[Phase], added: dict[tuple[str, int], float]) -> list[str]:
    """With cold starts to without."""
    before, after = milliseconds(others, added), milliseconds(busy, added)
    rounds = [
        p99(milliseconds([loud], added)) / p99(milliseconds([still], added))
        for still, loud in zip(others, busy, strict=True)
    ]
    return [
        "",
        f"{statistics.median(after) / statistics.median(before):.2f}",
        f"**{p99(after) / p99(before):.2f}**",
        "",
        f"{min(rounds):.2f}-{max(rounds):.2f}",
        "",
        "",
    ]


def milliseconds(phases: list[Phase], added: dict[tuple[str, int], float]) -> list[float]:
    """What was added to the calls of these phases."""
    return [added[which] * 1e3 for phase in phases for which in phase.calls]


def p99(times: list[float]) -> float:
    """As the load generators have it."""
    return sorted(times)[(len(times) - 1) * 99 // 100]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = report.parser("neighbours", __doc__, quick="one round")
    parser.add_argument("--rounds", type=int, default=8, help="a quiet phase and one with cold starts (default 8)")
    return parser.parse_args()


if __name__ == "__main__":
    report.run(main)
