"""The project's own cluster leaves nothing behind: not when it is taken down, not when its start or end is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster import layout, materials
from cluster.components import Identity
from cluster.full import FullCluster
from cluster.materials import MissingError
from cluster.progress import Progress
from cluster.traces import traces
from support.machine import ROOT, missing

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT / "tests")}
pytestmark = pytest.mark.alone


Start = Callable[..., subprocess.Popen[str]]


def begin(*words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "cluster", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=ENVIRONMENT,
    )


def cluster(*words: str) -> str:
    """A command of the cluster, run to its end."""
    with begin(*words) as process:
        said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return said


def kill_when(process: subprocess.Popen[str], words: str) -> None:
    """As soon as it says these words."""
    assert process.stdout is not None
    for line in process.stdout:
        if words in line:
            break
    else:
        pytest.fail(f"it never said {words!r}")
    process.kill()
    process.wait(30)


@pytest.fixture
def before() -> Iterator[set[str]]:
    """The machine's state; afterwards there is no cluster either way."""
    try:
        materials.prepare(layout.full(), Progress())
    except MissingError as error:
        missing(str(error))
    if FullCluster(layout.full()).is_up:
        missing("a cluster is up that somebody may be using: make cluster-down")
    cluster("down")
    yield traces()
    cluster("down")


@pytest.fixture
def start(before: set[str]) -> Iterator[Start]:
    """Begins commands of the cluster, which do not outlive the test."""
    with ExitStack() as stack:

        def enter(*words: str) -> subprocess.Popen[str]:
            process = begin(*words)
            stack.callback(end, process)
            return process

        yield enter


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(30)
    assert process.stdout is not None
    process.stdout.close()


def difference(before: set[str]) -> set[str]:
    """What is there now and was not, or the other way round; processes of others may end whenever they like."""
    now = traces()
    return (now - before) | {trace for trace in before - now if not trace.startswith("process ")}


def test_up_and_down(before: set[str]) -> None:
    cluster("up")
    during = traces() - before
    assert any(trace.endswith(" kube") for trace in during)
    assert {"cgroup"} <= {trace.split()[0] for trace in during}
    assert not {trace for trace in during if trace.startswith(("interface", "route", "rule", "mount", "forwarding"))}
    cluster("up")
    assert "kubelet                  runs" in cluster("status")
    cluster("down")
    assert difference(before) == set()
    cluster("down")


@pytest.mark.parametrize("moment", ["containerd is up", "the API server is ready", "the node is ready"])
def test_killed_on_the_way_up(before: set[str], start: Start, moment: str) -> None:
    kill_when(start("up"), moment)
    assert difference(before) != set()
    cluster("down")
    assert difference(before) == set()


def test_killed_on_the_way_up_and_started_again(before: set[str], start: Start) -> None:
    kill_when(start("up"), "the API server is ready")
    cluster("up")
    assert "node" in cluster("run", "--", "kubectl", "get", "nodes", "-o=name")
    cluster("down")
    assert difference(before) == set()


def test_killed_on_the_way_down(before: set[str], start: Start) -> None:
    cluster("up")
    enclosure = FullCluster(layout.full()).enclosure
    process = start("down")
    while enclosure.init is not None:
        assert process.poll() is None
        time.sleep(0.001)
    process.kill()
    process.communicate(timeout=30)
    cluster("down")
    assert difference(before) == set()


def test_a_cluster_whose_command_was_killed_is_not_used_again(before: set[str], start: Start, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    run = start("run", "--", "sh", "-c", f"echo $$ >{mark}; exec sleep 600")
    limit = time.monotonic() + 120
    while not mark.exists() or not mark.read_text():
        assert time.monotonic() < limit
        time.sleep(0.05)
    sleeper = Identity.of(int(mark.read_text()))
    assert sleeper is not None
    run.kill()
    run.wait(30)
    assert FullCluster(layout.full()).is_up
    assert "node" in cluster("run", "--", "kubectl", "get", "nodes", "-o=name")
    assert not sleeper.is_alive, "what it had started in the network went with it"
    assert difference(before) == set(), "and the second run had a cluster of its own"


def test_run_takes_its_cluster_down_again(before: set[str], start: Start) -> None:
    process = start("run", "--", "sh", "-c", "echo inside; exec sleep 600")
    assert process.stdout is not None
    assert "inside\n" in process.stdout
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM
    assert difference(before) == set()


def test_it_does_not_start_beside_another_kubelet(before: set[str], start: Start) -> None:
    with subprocess.Popen(["kubelet", "600"], executable="/bin/sleep") as other:
        try:
            process = start("up")
            said, _ = process.communicate(timeout=120)
        finally:
            other.kill()
    assert process.returncode == 1
    assert f"another kubelet runs on this machine (process {other.pid})" in said
    assert difference(before) == set()


def test_nobody_takes_it_down_while_its_owner_uses_it(before: set[str], start: Start) -> None:
    owner = start("run", "--", "sh", "-c", "echo inside; exec sleep 600")
    assert owner.stdout is not None
    assert "inside\n" in owner.stdout
    refused = start("down")
    said, _ = refused.communicate(timeout=60)
    owner.send_signal(signal.SIGTERM)
    owner.communicate(timeout=60)
    assert refused.returncode == 1
    assert "is still using it" in said
    assert difference(before) == set()
