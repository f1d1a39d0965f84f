"""Wrapper servers with an address each, as in pods: a network namespace for every one, and a wire to it.

All wrapper servers listen on the same port, so that several on one machine need several networks. The namespace ends
with its server and the wire with the namespace: nothing is left behind, however the benchmark ends. The addresses
are of a range for documentation, which nobody routes. Needs root.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench.programs import MissingToolError
from bench.server import Server

_HERE = "198.51.100.1"


def address(number: int) -> str:
    """Of the pod with this number, from 1 on."""
    return f"198.51.100.{number + 1}"


@contextmanager
def in_a_pod(directory: Path, command: Sequence[str], number: int) -> Generator[Server]:
    """A server that listens on its pod's address."""
    if os.geteuid() or not all(map(shutil.which, ("ip", "nsenter", "unshare"))):
        raise MissingToolError("several pods need a network each: root, and ip, nsenter and unshare")
    with Server(directory, ("unshare", "--net", *command), host=address(number)) as server, _wire(server.pid, number):
        yield server


@contextmanager
def _wire(pid: int, number: int) -> Generator[None]:
    ours, inside = f"bench{number}", ("nsenter", f"--target={pid}", "--net")
    _run("ip", "link", "add", ours, "type", "veth", "peer", "name", "eth0", "netns", str(pid))
    try:
        _run("ip", "address", "add", _HERE, "peer", address(number), "dev", ours)
        _run("ip", "link", "set", ours, "up")
        _run(*inside, "ip", "address", "add", address(number), "peer", _HERE, "dev", "eth0")
        _run(*inside, "ip", "link", "set", "eth0", "up")
        yield
    finally:
        # It would go by itself, but some moments later: too late for the next one of this name.
        _run("ip", "link", "delete", ours)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise MissingToolError(f"no network for a pod: {' '.join(command)}: {done.stderr.strip()}")
