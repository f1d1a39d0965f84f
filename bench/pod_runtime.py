"""A function's first call, from the call to its answer, beside what Kubernetes alone takes for the same pod.

Runs in the network of the tests' cluster: `make bench-pods`. They take turns: a first call for a function that has no
pod (its image is on the node), then the very same pod, created and waited for with kubectl, then a first call for the
same function by a runner that delivers the wrapper server in ConfigMaps. Phases are those that the runners themselves
log. See docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench import table
from bench.measure import BenchmarkError, number, progress, update
from bench.table import Column
from cluster import layout
from cluster.full import FullCluster
from images.__main__ import wrapper_server_image
from support import function_images
from support.calls import wish
from support.client import Client
from support.in_cluster import InCluster
from support.kube import Json, Kube, wait_until
from support.namespace import Namespace
from support.push import Push
from support.runner import RunnerProcess
from support.site import ASKED_FOR, LABEL, RESTRICTED, WRAPPER_RIGHTS, Site
from support.wrapper import packed_wrapper

STARTS = 10
WARM_CALLS = 200
_SECONDS = 60
_PHASES = {
    "create": "until the API server has the pod",
    "schedule": "until it has a node",
    "init": "until it is initialized: the wrapper server is copied, or was mounted",
    "run": "until its container runs",
    "healthy": "until the wrapper server answers",
}
COLUMNS = (
    Column("", "", left=True),
    Column("ms", "median"),
    Column("ms", "lowest"),
    Column("ms", "highest"),
)


def main() -> None:
    """Measure and print."""
    arguments = parse_arguments()
    cluster = FullCluster(layout.full())
    if not cluster.enclosure.is_home:
        raise BenchmarkError("not in the network of the cluster: `make bench-pods`")
    starts = 3 if arguments.quick else STARTS
    with installation(cluster) as (site, push):
        function = function_images.catalog("set-namespace", "distroless")
        images = [push("set-namespace", function, tag=f"v{start}") for start in range(starts + 1)]
        flags = ("--pod-ttl=10m", "--log-level=2")
        packed = ("--wrapper-delivery=config-map", f"--wrapper-file={packed_wrapper()}")
        runner = site.start(site.account(), *flags)
        quicker = site.start(site.account("quicker", WRAPPER_RIGHTS), *flags, *packed)
        measured = asyncio.run(measure(site, runner, quicker, images))
    rows = [row(name, milliseconds) for name, milliseconds in measured.items()]
    about = (
        f"{os.cpu_count()} CPUs, Linux {platform.release().partition('-')[0]}, Kubernetes {layout.KUBERNETES_VERSION}; "
        f"{starts} first calls of set-namespace (Go), each for a function without a pod, its image on the node; and "
        f"{WARM_CALLS} further calls."
    )
    render = table.markdown if arguments.markdown or arguments.update else table.text
    rendered = f"{about}\n\n{render(COLUMNS, rows)}"
    print(rendered)
    if arguments.update:
        update(arguments.update, "pods", rendered)


@contextmanager
def installation(cluster: FullCluster) -> Generator[tuple[Site, Push]]:
    """As a test has it."""
    with ExitStack() as stack:
        kube = stack.enter_context(Kube(cluster.layout.kubeconfig()))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="krm-runner-bench-")))
        name = f"test-bench-{uuid.uuid4().hex[:6]}"
        system, functions = Namespace(kube, f"{name}-system"), Namespace(kube, f"{name}-functions", RESTRICTED)
        for namespace in (system, functions):
            stack.callback(namespace.delete)
            namespace.wait_for_service_account()
        push = Push(name, cluster.layout)
        wrapper = push("wrapper-server", wrapper_server_image())

        def place(namespace: Namespace, account: str) -> InCluster:
            return InCluster(cluster.layout, namespace, account, directory / account)

        site = Site(system, functions, wrapper, place, directory)
        stack.callback(site.close, failed=False)
        yield site, push


async def measure(
    site: Site, runner: RunnerProcess, quicker: RunnerProcess, images: list[str]
) -> dict[str, list[float]]:
    """What took how many milliseconds; `quicker` is the runner whose pods have no init container."""
    first: list[float] = []
    quick: list[float] = []
    peers: list[float] = []
    phases: dict[str, list[float]] = {}
    quick_phases: dict[str, list[float]] = {}
    async with Client(runner.address) as client, Client(quicker.address) as other:
        progress("the image is pulled")
        await call(client, images[0])
        warm = [await call(client, images[0]) for _ in range(WARM_CALLS)]
        await call(other, images[0])
        await asyncio.to_thread(delete_all, site)
        for count, image in enumerate(images[1:], start=1):
            progress(f"start {count} of {len(images) - 1}")
            first.append(await call(client, image))
            pod = pod_of(site, image)
            note(phases, runner, image)
            peers.append(await asyncio.to_thread(by_kubectl, site, pod, f"peer-{count}"))
            site.delete_pod(f"peer-{count}")
            await asyncio.to_thread(delete_all, site)
            quick.append(await call(other, image))
            note(quick_phases, quicker, image)
            await asyncio.to_thread(delete_all, site)
    rest = [whole - start for whole, start in zip(first, phases.pop("total"), strict=True)]
    quick_phases.pop("total")
    return {
        "**first call, from call to answer**": first,
        "image looked up; the function itself": rest,
        **explained(phases),
        "**the same pod, created and Ready by kubectl**": peers,
        "**first call, the wrapper server from ConfigMaps**": quick,
        **{f"{name}, from ConfigMaps": times for name, times in explained(quick_phases).items()},
        "**what that saves**": [slow - fast for slow, fast in zip(first, quick, strict=True)],
        "a further call": warm,
    }


def delete_all(site: Site) -> None:
    """The pods; then a moment, of another length each time: the kubelet looks at its containers once a second."""
    for pod in site.pods():
        site.delete_pod(pod["metadata"]["name"])
    wait_until(lambda: not site.pods(), what="all pods are gone")
    time.sleep(random.uniform(0.5, 1.5))


def pod_of(site: Site, image: str) -> Json:
    """The one that serves this image, and is not on its way out."""
    return next(pod for pod in site.living() if pod["metadata"]["annotations"].get(ASKED_FOR) == image)


def note(phases: dict[str, list[float]], runner: RunnerProcess, image: str) -> None:
    """The phases of the start that a runner has just logged, in milliseconds."""
    for name, seconds in phases_of(runner, image).items():
        phases.setdefault(name, []).append(seconds * 1e3)


def explained(phases: dict[str, list[float]]) -> dict[str, list[float]]:
    """In their order, with what they are."""
    return {f"{name}: {_PHASES[name]}": phases[name] for name in _PHASES if phases.get(name)}


async def call(client: Client, image: str) -> float:
    """Milliseconds from the call to its answer."""
    began = time.perf_counter()
    answer = await client.evaluate(image, wish(namespace="staging"), timeout=_SECONDS)
    if answer.code != "OK":
        raise BenchmarkError(f"a call failed: {answer.code}: {answer.message}")
    return (time.perf_counter() - began) * 1e3


def phases_of(runner: RunnerProcess, image: str) -> dict[str, float]:
    """Of a function's cold start, as the runner has logged it."""
    line = runner.wait_for_line(rf'event="pod ready".*image={re.escape(image)}\s').string
    return {name: float(seconds) for name, seconds in re.findall(r"\b(\w+)_seconds=([0-9.]+)", line)}


def by_kubectl(site: Site, pod: Json, name: str) -> float:
    """Milliseconds until Kubernetes calls a pod of the same specification Ready."""
    spec = {key: value for key, value in pod["spec"].items() if key not in ("nodeName", "serviceAccount")}
    labels = {key: value for key, value in pod["metadata"]["labels"].items() if key != LABEL}
    metadata = {"name": name, "namespace": site.functions.name, "labels": labels}
    manifest = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    began = time.perf_counter()
    kubectl("create", "-f", "-", stdin=manifest)
    kubectl(
        "wait", "--for=condition=Ready", f"--timeout={_SECONDS}s", f"--namespace={site.functions.name}", f"pod/{name}"
    )
    return (time.perf_counter() - began) * 1e3


def kubectl(*arguments: str, stdin: str = "") -> None:
    """As a person would."""
    done = subprocess.run(
        ["kubectl", *arguments], input=stdin, capture_output=True, text=True, timeout=2 * _SECONDS, check=False
    )
    if done.returncode:
        raise BenchmarkError(f"kubectl {arguments[0]} failed: {done.stderr.strip()}")


def row(name: str, milliseconds: list[float]) -> list[str]:
    """One line of the table."""
    return [name, *(number(of(milliseconds)) for of in (statistics.median, min, max))]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m bench.pod_runtime", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="three starts")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--update", type=Path, metavar="FILE", help="put the table into this document, at its marks")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        main()
    except BenchmarkError as error:
        sys.exit(f"bench: {error}")
