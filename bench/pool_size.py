"""What a runner that knows 200 pods of a function costs against one that knows a single pod: time per call, and memory.

A real API server without nodes holds the pods, and their statuses are played: each has an address of its own on the
loopback interface, where one wrapper server answers for all of them. Two runners, one with each number of pods, take
turns in one run. See docs/performance.md.
"""

from __future__ import annotations

import argparse
import copy
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import yaml

from bench import inputs, programs, report
from bench.measure import Laps, number, progress, ratios, through
from bench.server import Server
from bench.table import Column
from cluster.api_only import ApiServer
from support.kube import Json, Kube, wait_until

SIZES = (1, 200)
CALLERS = (1, 8)
IMAGE = "bench.invalid/copy:v1"
DIGEST = "sha256:" + "5e" * 32
PORT = 9446
_LABEL = "fn.kpt.dev/image"
COLUMNS = (
    Column("", "callers"),
    *(Column("calls/s", f"{size} pods") for size in SIZES),
    *(Column("p50 ms", f"{size} pods") for size in SIZES),
    Column("p50", "ratio"),
    Column("p50", "rounds"),
    *(Column("runner's CPU ms/call", f"{size} pods") for size in SIZES),
    *(Column("resident MB", f"{size} pods") for size in SIZES),
)


@dataclass(frozen=True)
class Place:
    """A runner, and how many pods it knows."""

    server: Server
    pods: int


def main() -> None:
    """Measure and print."""
    arguments = parse_arguments()
    wrapper, load = programs.wrapper_server(), programs.load_generator()
    function = programs.functions()[0].executable
    rows: list[list[str]] = []
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="krm-runner-bench-")))
        data = directory / "input.yaml"
        data.write_bytes(inputs.generated(2_000, inputs.SET_NAMESPACE_CONFIG))
        stack.enter_context(wrapper_server(wrapper, function, directory))
        progress("an API server starts")
        api = stack.enter_context(ApiServer(directory / "api"))
        kube = stack.enter_context(Kube(api.layout.kubeconfig()))
        places = [stack.enter_context(place(kube, directory, api.layout.kubeconfig(), size)) for size in SIZES]
        for callers in CALLERS:
            progress(f"callers: {callers} ...")
            laps = [Laps() for _ in places]
            for _ in range(2 if arguments.quick else 5):
                for side, of in zip(laps, places, strict=True):
                    seconds = 1.0 if arguments.quick else 3.0
                    sample = through(of.server, load, callers=callers, seconds=seconds, image=IMAGE, data=data)
                    side.samples.append(sample)
            rows.append(row(callers, laps, places))
    about = f"{report.machine()}; a trivial static function, 2 KB; load generator: {load.name}."
    report.publish(arguments, "pool", about, COLUMNS, rows)


def row(callers: int, laps: list[Laps], places: list[Place]) -> list[str]:
    """One line of the table."""
    one, many = laps
    p50 = [[sample.p50_ms for sample in side.samples] for side in laps]
    return [
        str(callers),
        *(number(side.rate) for side in laps),
        *(number(side.median(lambda sample: sample.p50_ms)) for side in laps),
        f"{many.median(lambda sample: sample.p50_ms) / one.median(lambda sample: sample.p50_ms):.2f}",
        ratios(p50[1], p50[0]),
        *(f"{side.ms_per_call(lambda sample: sample.own_cpu):.2f}" for side in laps),
        *(f"{place.server.memory() / 1e6:.0f}" for place in places),
    ]


@contextmanager
def wrapper_server(wrapper: Path, function: Path, directory: Path) -> Generator[None]:
    """One for all pods; it listens where a pod's wrapper listens."""
    command = [str(wrapper), f"--port={PORT}", "--verbosity=0", "--", str(function)]
    with (directory / "wrapper.log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            yield
        finally:
            process.terminate()


def loopback_address(number_of_pod: int) -> str:
    """One for each, all of them where a single wrapper server listens."""
    return f"127.0.{number_of_pod // 250}.{number_of_pod % 250 + 2}"


@contextmanager
def place(
    kube: Kube,
    directory: Path,
    kubeconfig: Path,
    size: int,
    *,
    namespace: str = "",
    address: Callable[[int], str] = loopback_address,
) -> Generator[Place]:
    """A runner that knows so many ready pods; the address is that of the pod with a number."""
    namespace, own = namespace or f"pods-{size}", directory / f"runner-{size}"
    own.mkdir()
    kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    account: Json = {"name": "default", "namespace": namespace}
    kube.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    image_map = own / "images.yaml"
    image_map.write_text(yaml.safe_dump({"images": [{"image": IMAGE, "digest": DIGEST, "entrypoint": ["/function"]}]}))
    warm = own / "pods.yaml"
    warm.write_text(yaml.safe_dump([{"name": IMAGE}]))
    environment = {"KUBECONFIG": str(kubeconfig), "WRAPPER_SERVER_IMAGE": "bench.invalid/wrapper:v1"}
    command = (
        *(sys.executable, "-m", "krm_runner", "serve", "--disable-runtimes=exec", "--port=0", "--shutdown-delay=0s"),
        *(f"--pod-namespace={namespace}", "--pod-address=pod-ip", f"--image-map={image_map}"),
        *(f"--pod-cache-config={warm}", "--pod-start-timeout=10m"),
    )
    with mock.patch.dict(os.environ, environment), Server(own, command) as server:
        path = f"/api/v1/namespaces/{namespace}/pods"
        wait_until(lambda: bool(kube.items(path, labelSelector=_LABEL)), what="the first pod is created")
        (first,) = kube.items(path, labelSelector=_LABEL)
        progress(f"{size} pods are played")
        for number_of_pod in range(1, size + 1):
            play(kube, path, another(kube, first, number_of_pod), address(number_of_pod))
        log = own / "log"
        wait_until(lambda: ready(log) == size, what=f"{size} pods are ready", seconds=120)
        time.sleep(1.0)
        yield Place(server, size)


def another(kube: Kube, first: Json, number_of_pod: int) -> Json:
    """A pod like the first, as another runner would have made it."""
    if number_of_pod == 1:
        return first
    name = first["metadata"]["name"].replace("-1-", f"-{number_of_pod}-")
    metadata = first["metadata"]
    spec = copy.deepcopy(first["spec"])
    labels = {**metadata["labels"], _LABEL: name}
    wanted = {"name": name, "namespace": metadata["namespace"], "labels": labels}
    ports = [{"port": PORT, "targetPort": PORT}]
    kube.create(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": wanted,
            "spec": {"selector": {_LABEL: name}, "ports": ports},
        }
    )
    return kube.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**wanted, "annotations": metadata["annotations"]},
            "spec": spec,
        }
    )


def play(kube: Kube, path: str, pod: Json, address: str) -> None:
    """What a kubelet would say of a pod that serves."""
    kube.patch(
        f"{path}/{pod['metadata']['name']}/status",
        {
            "status": {
                "phase": "Running",
                "podIP": address,
                "podIPs": [{"ip": address}],
                "conditions": [{"type": "Ready", "status": "True"}],
            }
        },
    )


def ready(log: Path) -> int:
    """How many pods a runner has."""
    text = log.read_text()
    return text.count('event="pod ready"') + text.count('event="pod adopted"')


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = report.parser("pool_size", __doc__, quick="two short rounds")
    return parser.parse_args()


if __name__ == "__main__":
    report.run(main)
