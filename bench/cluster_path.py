"""Warm calls on a real cluster: the pods of a function called through the runner, and called directly.

Runs in the network of the tests' cluster: `make bench-pods`. The same figures as `bench.warm_path`, with real pods,
whose network, Services and kubelet are there as well. Every function has pods of its own, which wait for their calls;
both sides take turns with the same pods. See docs/performance.md.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench import programs, report
from bench.measure import CALLERS, SIZES, BenchmarkError, progress
from bench.pod_runtime import installation
from bench.programs import Function
from bench.server import CpuSeconds, cpu_of
from bench.warm_path import COLUMNS, PODS, Plan, Sides, measured
from cluster import layout
from cluster.full import FullCluster
from images.oci import Content, Image, single_layer
from support import function_images
from support.in_cluster import InCluster
from support.kube import wait_until
from support.processes import of_pod
from support.python_root import shared_libraries
from support.runner import RunnerProcess
from support.site import ASKED_FOR, WRAPPER_PORT, Site

_START_SECONDS = 120


@dataclass(frozen=True, slots=True)
class Runner:
    """See `bench.measure.Served`."""

    process: RunnerProcess

    @property
    def addresses(self) -> tuple[str, ...]:
        """Its port."""
        return (self.process.address,)

    def cpu(self) -> CpuSeconds:
        """Of runner and front."""
        return cpu_of(self.process.pid)


@dataclass(frozen=True, slots=True)
class Pods:
    """The same of a function's pods."""

    ips: tuple[str, ...]
    wrappers: tuple[int, ...]

    @property
    def addresses(self) -> tuple[str, ...]:
        """One for each."""
        return tuple(f"{ip}:{WRAPPER_PORT}" for ip in self.ips)

    def cpu(self) -> CpuSeconds:
        """Of the wrapper servers, and of their functions."""
        parts = [cpu_of(pid) for pid in self.wrappers]
        return CpuSeconds(sum(part.server for part in parts), sum(part.functions for part in parts))


def main() -> None:
    """Measure and print."""
    arguments = parse_arguments()
    cluster = FullCluster(layout.full())
    if not cluster.enclosure.is_home:
        raise BenchmarkError("not in the network of the cluster: `make bench-pods`")
    quick = arguments.quick
    plan = Plan(
        sizes=("2KB",) if quick else tuple(SIZES),
        callers=(8,) if quick else CALLERS,
        rounds=arguments.rounds or (1 if quick else 3),
        seconds=1.0,
    )
    load = programs.load_generator()
    wanted = [function for function in programs.functions() if function.name in (arguments.functions or _IMAGES)]
    rows: list[list[str]] = []
    with installation(cluster) as (site, push), tempfile.TemporaryDirectory(prefix="krm-runner-bench-") as directory:
        account = site.account()
        for function in wanted:
            made = _IMAGES[function.name](function)
            for pods in PODS:
                image = push(function.name, made, tag=f"pods-{pods}")
                with sides(site, account, function, pods, image) as both:
                    rows += measured(both, plan, load, Path(directory))
    about = (
        f"{report.machine()}, Kubernetes {layout.KUBERNETES_VERSION}; {plan.rounds} rounds of {plan.seconds:g} s each; "
        f"load generator: {load.name}."
    )
    report.publish(arguments, "cluster", about, COLUMNS, rows)


@contextmanager
def sides(site: Site, account: InCluster, function: Function, pods: int, image: str) -> Generator[Sides]:
    """A runner whose function has so many pods, which are gone afterwards."""
    progress(f"{function.name} gets {pods} pods")
    config = site.cache_config({"name": image, "maxParallelPodsPerFunction": pods, "minReadyPods": pods})
    runner = site.start(account, f"--pod-cache-config={config}", "--log-level=2")
    try:
        wait_until(lambda: ready(runner) == pods, what=f"{pods} pods are ready", seconds=_START_SECONDS)
        found = [pod for pod in site.living() if pod["metadata"]["annotations"][ASKED_FOR] == image]
        wrappers = [pid for pod in found for pid in of_pod(pod["metadata"]["uid"], "wrapper-server --port")]
        if len(wrappers) != pods:
            raise BenchmarkError(f"{pods} pods have {len(wrappers)} wrapper servers")
        direct = Pods(tuple(pod["status"]["podIP"] for pod in found), tuple(wrappers))
        yield Sides(function, pods, direct, Runner(runner), image)
    finally:
        runner.stop()
        for pod in site.pods():
            site.delete_pod(pod["metadata"]["name"])
        wait_until(lambda: not site.pods(), what="its pods are gone", seconds=_START_SECONDS)


def ready(runner: RunnerProcess) -> int:
    """How many pods a runner has."""
    return sum('event="pod ready"' in line for line in runner.lines)


def _copy(function: Function) -> Image:
    return Image((single_layer({"/function": function.executable}),), entrypoint=("/function",))


def _catalog(name: str) -> Image:
    return function_images.catalog(name, "distroless")


def _node(function: Function) -> Image:
    """This machine's Node.js and what it is linked with."""
    program = Path(shutil.which("node") or "").resolve()
    files: dict[str, Content] = {f"{path}": path for path in (program, *shared_libraries([program]))}
    layers = (single_layer(files), single_layer({"/function.js": function.executable}))
    return Image(layers, entrypoint=(str(program), "/function.js"))


_IMAGES: dict[str, Callable[[Function], Image]] = {
    "copy": _copy,
    "set-namespace-go": lambda _: _catalog("set-namespace"),
    "starlark-go": lambda _: _catalog("starlark"),
    "set-namespace-js": _node,
    "set-namespace-py": lambda _: function_images.python("set-namespace-v0.4.5"),
}


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = report.parser("cluster_path", __doc__, quick="2 KB, 8 callers, one round")
    parser.add_argument("--functions", nargs="+", choices=_IMAGES, metavar="NAME", help="only these (default all)")
    parser.add_argument("--rounds", type=int, help="turns of both sides in each row (default 3)")
    return parser.parse_args()


if __name__ == "__main__":
    report.run(main)
