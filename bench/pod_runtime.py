"""A function's first call, from the call to its answer, beside what Kubernetes alone takes for the same pod.

Runs in the network of the tests' cluster: `make bench-pods`. They take turns: a first call for a function that has no
pod (its image is on the node), then the very same pod, created and waited for with kubectl; then again by a runner that
keeps a spare pod. Phases are those that the runners themselves log. See docs/performance.md.
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
import threading
import time
import uuid
from collections.abc import Generator, Sequence
from contextlib import AsyncExitStack, ExitStack, contextmanager
from datetime import datetime
from pathlib import Path

from bench import report
from bench.measure import BenchmarkError, number, progress
from bench.table import Column
from cluster import layout
from cluster.full import FullCluster
from images.__main__ import wrapper_server_image
from krm_runner.core.spare import COMMAND, SPARE
from support import function_images
from support.calls import wish
from support.client import Client
from support.in_cluster import InCluster
from support.kube import Json, Kube, Watch, wait_until
from support.namespace import Namespace
from support.push import Push
from support.runner import RunnerProcess
from support.site import ASKED_FOR, LABEL, RESTRICTED, Site

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
_WHOLE = "**first call, from call to answer**"
_REST = "image looked up; the function itself"
_LISTENS = "from call to when the wrapper server serves, by its own log"
_SEEN = "from call to when a watch sees the container running"
_BEHIND = "from when a watch sees the container running to the answer"
_KUBECTL = "**the same pod, created and Ready by kubectl**"
_FURTHER = "a further call"
_ROWS = (
    _WHOLE,
    _REST,
    *(f"{name}: {text}" for name, text in _PHASES.items()),
    _LISTENS,
    _SEEN,
    _BEHIND,
    _KUBECTL,
    _FURTHER,
)
_SPARES = "--spare-pods=1"
_SIDES = ("new pod", "spare pod")
COLUMNS = (Column("", "", left=True), *(Column(f"{side}, ms", name) for side in _SIDES for name in ("median", "range")))


def main() -> None:
    """Measure and print."""
    arguments = parse_arguments()
    cluster = FullCluster(layout.full())
    if not cluster.enclosure.is_home:
        raise BenchmarkError("not in the network of the cluster: `make bench-pods`")
    starts = 3 if arguments.quick else STARTS
    # Spares are there all the time: in a place of their own, so that the others' is empty when they start.
    with installation(cluster) as (site, push), installation(cluster) as (site_with_spares, _):
        function = function_images.catalog("set-namespace", "distroless")
        images = [push("set-namespace", function, tag=f"v{start}") for start in range(starts + 1)]
        sides = [
            Starts(site, "runner", (), has_peer=True),
            Starts(site_with_spares, "runner", (_SPARES,), has_peer=False),
        ]
        asyncio.run(measure(sides, images))
    rows = [[name, *(cell for side in sides for cell in cells(side.rows.get(name, [])))] for name in _ROWS]
    about = (
        f"{report.machine()}, Kubernetes {layout.KUBERNETES_VERSION}; "
        f"{starts} first calls of set-namespace (Go), each for a function without a pod, its image on the node; and "
        f"{WARM_CALLS} further calls. An init container delivers the wrapper. Of a first call, pair by pair "
        f"(median): {saved(sides)}."
    )
    report.publish(arguments, "pods", about, COLUMNS, rows)


def saved(sides: Sequence[Starts]) -> str:
    """What the others gain over the first one, in words."""
    first, *others = (side.rows[_WHOLE] for side in sides)
    gains = (statistics.median(slow - fast for slow, fast in zip(first, other, strict=True)) for other in others)
    return ", ".join(f"{name} saves {number(gain)} ms" for name, gain in zip(_SIDES[1:], gains, strict=True))


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


class RunningSince:
    """When a watch beside the runners saw a pod's container run, by the clock of `time.perf_counter`."""

    def __init__(self, site: Site) -> None:
        self._seen: dict[tuple[str, int], float] = {}
        pods = site.functions.kube.watch(site.functions.path("pods"))
        threading.Thread(target=self._follow, args=(pods,), daemon=True).start()

    def of(self, pod: Json) -> float:
        """Waits for it. The first container of a pod that was a spare is not the function's."""
        which = (pod["metadata"]["uid"], 1 if pod["metadata"]["annotations"].get(COMMAND) else 0)
        wait_until(lambda: which in self._seen, what="the container runs")
        return self._seen[which]

    def _follow(self, pods: Watch) -> None:
        for _, pod in pods:
            for status in pod["status"].get("containerStatuses", ()):
                if "running" in status["state"]:
                    which = (pod["metadata"]["uid"], status["restartCount"])
                    self._seen.setdefault(which, time.perf_counter())


class Starts:
    """First calls by one runner, in milliseconds: in all, by phase, and what is measured beside."""

    def __init__(self, site: Site, account: str, flags: Sequence[str], *, has_peer: bool) -> None:
        self.rows: dict[str, list[float]] = {}
        self._site = site
        self._watch = RunningSince(site)
        self._has_peer = has_peer
        self._has_spares = _SPARES in flags
        place = site.account(account)
        self._runner = site.start(place, "--pod-ttl=10m", "--log-level=2", *flags)
        self.address = self._runner.address

    async def one(self, client: Client, image: str) -> None:
        """A first call for this image, then the same pod by kubectl under another name; then both go."""
        began = time.time()
        whole = await call(client, image)
        answered = time.perf_counter()
        pod = next(pod for pod in self._site.living() if pod["metadata"]["annotations"].get(ASKED_FOR) == image)
        phases = phases_of(self._runner, image)
        self.note(_WHOLE, whole)
        self.note(_REST, whole - phases.pop("total") * 1e3)
        for name, seconds in phases.items():
            self.note(f"{name}: {_PHASES[name]}", seconds * 1e3)
        behind = (answered - await asyncio.to_thread(self._watch.of, pod)) * 1e3
        self.note(_SEEN, whole - behind)
        self.note(_BEHIND, behind)
        self.note(_LISTENS, (await asyncio.to_thread(listening_since, self._site, pod) - began) * 1e3)
        if self._has_peer:
            peer = f"peer-{pod['metadata']['uid']}"
            self.note(_KUBECTL, await asyncio.to_thread(by_kubectl, self._site, pod, peer) * 1e3)
            self._site.delete_pod(peer)
        await asyncio.to_thread(self.clear)

    def clear(self) -> None:
        """No function has a pod any more; then a moment, of another length each time: the kubelet looks at its
        containers once a second."""

        def functions() -> list[str]:
            return [
                pod["metadata"]["name"]
                for pod in self._site.pods()
                if pod["metadata"].get("annotations", {}).get(ASKED_FOR) != SPARE
            ]

        for name in functions():
            self._site.delete_pod(name)
        wait_until(lambda: not functions(), what="all pods are gone")
        if self._has_spares:
            wait_until(self._knows_a_spare, what="a spare is there")
        time.sleep(random.uniform(0.5, 1.5))

    def _knows_a_spare(self) -> bool:
        names = [pod["metadata"]["name"] for pod in self._site.living()]
        known = "\n".join(line for line in self._runner.lines if 'event="pod ready"' in line)
        return bool(names) and all(f" pod={name} image={SPARE} " in known for name in names)

    def note(self, name: str, milliseconds: float) -> None:
        """One figure of a row."""
        self.rows.setdefault(name, []).append(milliseconds)


async def measure(sides: Sequence[Starts], images: Sequence[str]) -> None:
    """First calls by all in turns, and further calls by the first."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(side.address)) for side in sides]
        progress("the image is pulled")
        for client in clients:
            await call(client, images[0])
        for _ in range(WARM_CALLS):
            sides[0].note(_FURTHER, await call(clients[0], images[0]))
        for side in sides:
            await asyncio.to_thread(side.clear)
        for count, image in enumerate(images[1:], start=1):
            progress(f"start {count} of {len(images) - 1}")
            for side, client in zip(sides, clients, strict=True):
                await side.one(client, image)


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


def cells(found: Sequence[float]) -> tuple[str, str]:
    """Median and range; a phase that one side does not see has no figures there."""
    if not found:
        return "", ""
    return number(statistics.median(found)), f"{number(min(found))} to {number(max(found))}"


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = report.parser("pod_runtime", __doc__, quick="three starts")
    return parser.parse_args()


if __name__ == "__main__":
    report.run(main)
