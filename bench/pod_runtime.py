"""A function's first call, from the call to its answer, beside what Kubernetes alone takes for the same pod.

Runs in the network of the tests' cluster: `make bench-pods`. They take turns: a first call for a function that has no
pod (its image is on the node), then the very same pod, created and waited for with kubectl; then both again by a runner
that delivers the wrapper server in ConfigMaps. Phases are those that the runners themselves log. See
docs/performance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import statistics
import subprocess
import tempfile
import time
import uuid
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from bench import report
from bench.measure import BenchmarkError, number, progress
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
    "init": "until it is initialized, the wrapper server copied",
    "run": "until its container is seen running",
    "healthy": "until the wrapper server answers",
}
_REST = "image looked up; the function itself"
_LISTENS = "from call to when the wrapper server serves, by its own log"
_KUBECTL = "**the same pod, created and Ready by kubectl**"
COLUMNS = (
    Column("", "", left=True),
    Column("init container, ms", "median"),
    Column("init container, ms", "lowest"),
    Column("init container, ms", "highest"),
    Column("ConfigMaps, ms", "median"),
    Column("ConfigMaps, ms", "lowest"),
    Column("ConfigMaps, ms", "highest"),
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
        copied = Starts(site, site.start(site.account(), *flags))
        mounted = Starts(site, site.start(site.account("mounted", WRAPPER_RIGHTS), *flags, *packed))
        warm = asyncio.run(measure(site, copied, mounted, images))
    names = [_REST, *(f"{name}: {_PHASES[name]}" for name in _PHASES), _LISTENS, _KUBECTL]
    rows = [row("**first call, from call to answer**", copied.whole, mounted.whole)]
    rows += [row(name, copied.rows.get(name, []), mounted.rows.get(name, [])) for name in names]
    rows.append(row("a further call", warm, []))
    saved = statistics.median(slow - fast for slow, fast in zip(copied.whole, mounted.whole, strict=True))
    about = (
        f"{report.machine()}, Kubernetes {layout.KUBERNETES_VERSION}; "
        f"{starts} first calls of set-namespace (Go), each for a function without a pod, its image on the node; and "
        f"{WARM_CALLS} further calls. Pair by pair, ConfigMaps save {number(saved)} ms of a first call (median)."
    )
    report.publish(arguments, "pods", about, COLUMNS, rows)


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


class Starts:
    """First calls by one runner, in milliseconds: in all, by phase, and what is measured beside."""

    def __init__(self, site: Site, runner: RunnerProcess) -> None:
        self.address = runner.address
        self.whole: list[float] = []
        self.rows: dict[str, list[float]] = {}
        self._site = site
        self._runner = runner

    async def one(self, client: Client, image: str, peer: str) -> None:
        """A first call for this image, then the same pod by kubectl under another name; then both go."""
        began = time.time()
        whole = await call(client, image)
        pod = next(pod for pod in self._site.living() if pod["metadata"]["annotations"].get(ASKED_FOR) == image)
        phases = phases_of(self._runner, image)
        self.whole.append(whole)
        self._note(_REST, whole / 1e3 - phases.pop("total"))
        for name, seconds in phases.items():
            self._note(f"{name}: {_PHASES[name]}", seconds)
        self._note(_KUBECTL, await asyncio.to_thread(by_kubectl, self._site, pod, peer))
        self._note(_LISTENS, await asyncio.to_thread(listening_since, self._site, pod) - began)
        self._site.delete_pod(peer)
        await asyncio.to_thread(delete_all, self._site)

    def _note(self, name: str, seconds: float) -> None:
        self.rows.setdefault(name, []).append(seconds * 1e3)


async def measure(site: Site, copied: Starts, mounted: Starts, images: list[str]) -> list[float]:
    """First calls by both in turns; the times of further calls."""
    async with Client(copied.address) as client, Client(mounted.address) as other:
        progress("the image is pulled")
        await call(client, images[0])
        warm = [await call(client, images[0]) for _ in range(WARM_CALLS)]
        await call(other, images[0])
        await asyncio.to_thread(delete_all, site)
        for count, image in enumerate(images[1:], start=1):
            progress(f"start {count} of {len(images) - 1}")
            await copied.one(client, image, f"peer-{count}")
            await mounted.one(other, image, f"other-{count}")
    return warm


def listening_since(site: Site, pod: Json) -> float:
    """When the wrapper server of a pod began to serve, by its own log."""
    name = pod["metadata"]["name"]
    # There is no log before the kubelet has looked.
    site.functions.wait_until_running(name)
    log = site.functions.logs(name, "function")
    found = re.search(r"timestamp=(\S+) \S+ event=serving", log)
    if found is None:
        raise BenchmarkError("the wrapper server does not say since when it serves")
    return datetime.fromisoformat(found[1]).timestamp()


def delete_all(site: Site) -> None:
    """The pods; then a moment, of another length each time: the kubelet looks at its containers once a second."""
    for pod in site.pods():
        site.delete_pod(pod["metadata"]["name"])
    wait_until(lambda: not site.pods(), what="all pods are gone")
    time.sleep(random.uniform(0.5, 1.5))


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
    """Seconds until Kubernetes calls a pod of the same specification Ready."""
    spec = {key: value for key, value in pod["spec"].items() if key not in ("nodeName", "serviceAccount")}
    labels = {key: value for key, value in pod["metadata"]["labels"].items() if key != LABEL}
    metadata = {"name": name, "namespace": site.functions.name, "labels": labels}
    manifest = json.dumps({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    began = time.perf_counter()
    kubectl("create", "-f", "-", stdin=manifest)
    kubectl(
        "wait", "--for=condition=Ready", f"--timeout={_SECONDS}s", f"--namespace={site.functions.name}", f"pod/{name}"
    )
    return time.perf_counter() - began


def kubectl(*arguments: str, stdin: str = "") -> None:
    """As a person would."""
    done = subprocess.run(
        ["kubectl", *arguments], input=stdin, capture_output=True, text=True, timeout=2 * _SECONDS, check=False
    )
    if done.returncode:
        raise BenchmarkError(f"kubectl {arguments[0]} failed: {done.stderr.strip()}")


def row(name: str, copied: list[float], mounted: list[float]) -> list[str]:
    """One line of the table; a phase that is not seen in one of the two has no figures there."""
    return [
        name,
        *(number(of(each)) if each else "" for each in (copied, mounted) for of in (statistics.median, min, max)),
    ]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = report.parser("pod_runtime", __doc__, quick="three starts")
    return parser.parse_args()


if __name__ == "__main__":
    report.run(main)
