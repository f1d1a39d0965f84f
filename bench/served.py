"""A function behind a server, either way: the exec runtime of a runner, or the wrapper server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bench import programs
from bench.programs import Function
from bench.server import Server, runner

StartServer = Callable[..., Server]
"""Takes the function, a directory of the server's own, and further flags."""


def exec_runtime(function: Function, directory: Path, *flags: str) -> Server:
    """`krm-runner serve` with this function."""
    return runner(directory, [function.executable], flags)


def wrapper(function: Function, directory: Path, *flags: str) -> Server:
    """The wrapper server of this function."""
    return Server(directory, (str(programs.wrapper_server()), "--port=0", *flags, "--", str(function.executable)))


SERVERS: dict[str, StartServer] = {"exec": exec_runtime, "wrapper": wrapper}
