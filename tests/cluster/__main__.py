"""The command line of the cluster: `python -m cluster build | up | down | status | shell | run -- COMMAND`.

It decides who may use the one cluster of this machine: a cluster that `up` started is shared by everybody and stays;
one that `run` or `shell` had to start is theirs alone and goes with them, or is removed later if they were killed.
"""

from __future__ import annotations

import argparse
import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from types import FrameType

from cluster import layout, materials
from cluster.api_only import ApiServer
from cluster.components import ClusterError, Identity, Record
from cluster.full import FullCluster
from cluster.layout import cache_directory
from cluster.materials import MissingError
from cluster.progress import Progress

_API_ONLY = cache_directory() / "run-api-only"
_OWNER = Record(cache_directory() / "owner")


def main() -> int:
    arguments = _parse()
    try:
        return _COMMANDS[arguments.command](arguments)
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m cluster", description="A real Kubernetes for the tests.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="install and build what it needs, once")
    up = commands.add_parser("up", help="start it, or find it started")
    up.add_argument("--api-only", action="store_true", help="etcd and the API server alone, on this machine's loopback")
    commands.add_parser("down", help="stop it and remove every trace; binaries and registry content stay")
    commands.add_parser("status", help="say whether it is up, and what of it runs")
    commands.add_parser("shell", help="a shell in its network, with kubectl")
    run = commands.add_parser("run", help="run a command in its network, and start it for that if need be")
    run.add_argument("words", nargs="+", metavar="COMMAND", help="after `--`")
    return parser.parse_args()


def build(_: argparse.Namespace) -> int:
    try:
        _prepare()
    except MissingError as error:
        return _report_missing(error)
    return 0


def up(arguments: argparse.Namespace) -> int:
    if arguments.api_only:
        materials.build_binaries(layout.full(), Progress())
        server = ApiServer(_API_ONLY)
        server.stop()
        server.start()
        print(f"export KUBECONFIG={server.layout.kubeconfig()}")
        return 0
    _prepare()
    with _exclusively():
        cluster = _find_or_start()
        _OWNER.remove()
    print(f"up: {cluster.layout.run} (`make cluster-shell` has kubectl)")
    return 0


def down(_: argparse.Namespace) -> int:
    ApiServer(_API_ONLY).stop()
    with _exclusively(waits=False):
        FullCluster(layout.full()).down()
        _OWNER.remove()
    return 0


def status(_: argparse.Namespace) -> int:
    cluster = FullCluster(layout.full())
    if not cluster.is_up:
        print("down")
        return 3
    print(f"up: Kubernetes {layout.KUBERNETES_VERSION}, {cluster.layout.run}")
    for name, runs in cluster.running().items():
        print(f"  {name:24} {'runs' if runs else 'does not run'}")
    return 0


def shell(_: argparse.Namespace) -> int:
    _prepare()
    return _run_inside([os.environ.get("SHELL", "/bin/bash"), "-i"])


def run(arguments: argparse.Namespace) -> int:
    if FullCluster(layout.full()).enclosure.is_home:
        return _call(arguments.words, {})
    try:
        if foreign := os.environ.get("KRM_TEST_KUBECONFIG"):
            materials.prepare_images(Progress())
            return _call(arguments.words, {"KUBECONFIG": foreign})
        _prepare()
    except MissingError as error:
        if code := _report_missing(error):
            return code
        return _call(arguments.words, {"KRM_CLUSTER_MISSING": str(error)})
    return _run_inside(arguments.words)


_COMMANDS = {"build": build, "up": up, "down": down, "status": status, "shell": shell, "run": run}


def _prepare() -> None:
    materials.prepare(layout.full(), Progress())


def _report_missing(error: MissingError) -> int:
    """In CI nothing may be missing."""
    print(f"cluster: {error}; the tests on it are skipped", file=sys.stderr)
    return 1 if os.environ.get("CI") == "true" else 0


def _run_inside(words: list[str]) -> int:
    with _exclusively() as release:
        cluster = _find_or_start()
        environment = {
            "KUBECONFIG": str(cluster.layout.kubeconfig()),
            "PATH": f"{cluster.layout.binaries}:{os.environ['PATH']}",
        }
        if _OWNER.read() is None:
            release()
            return _call([*cluster.enclosure.join_network(), *words], environment)
        try:
            return _call([*cluster.enclosure.join_network(), *words], environment)
        finally:
            cluster.down()
            _OWNER.remove()


def _find_or_start() -> FullCluster:
    """Leaves this process as the owner of a cluster that was not there before."""
    cluster = FullCluster(layout.full())
    is_abandoned = _OWNER.exists and _OWNER.read() is None
    if cluster.is_up and not is_abandoned:
        return cluster
    if is_abandoned:
        cluster.down()
    me = Identity.of(os.getpid())
    assert me is not None
    _OWNER.write(me)
    try:
        cluster.up(Progress())
    except BaseException:
        cluster.down()
        _OWNER.remove()
        raise
    return cluster


@contextmanager
def _exclusively(waits: bool = True) -> Generator[Callable[[], None]]:
    """One command at a time starts, stops or owns the cluster; a killed one is out of the way at once."""
    cache_directory().mkdir(parents=True, exist_ok=True)
    with (cache_directory() / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not waits:
                raise ClusterError("a command that started the cluster is still using it: end that one") from None
            print("cluster: waiting for the command that uses it now", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield lambda: fcntl.flock(file, fcntl.LOCK_UN)


def _call(words: list[str], environment: Mapping[str, str]) -> int:
    """Run it to its end; what ends us ends it."""
    started: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        if not started:
            sys.exit(128 + number)
        started[0].send_signal(number)

    # Before the command is: it may be told to end as soon as it has begun.
    signal.signal(signal.SIGTERM, pass_on)
    process = subprocess.Popen(words, env=os.environ | dict(environment))
    started.append(process)
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            continue  # the terminal has told the command too
        return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main())
