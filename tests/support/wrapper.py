"""A real wrapper server in a process of its own."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from support.machine import ROOT, missing
from support.server import ServerProcess, free_port

WRAPPER = ROOT / "wrapper" / "target" / "release" / "wrapper-server"


def built_wrapper() -> Path:
    """The program, built by `make wrapper`, which `make test` calls where there is a cargo."""
    if not WRAPPER.exists():
        missing("the wrapper server is not built (make wrapper; it needs cargo)")
    return WRAPPER


class WrapperProcess(ServerProcess):
    """Serves one function, on a free port unless one is given."""

    def __init__(
        self,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        prefix: Iterable[str] = (),
        pass_fds: Iterable[int] = (),
        program: str = str(WRAPPER),
        port: int = 0,
    ) -> None:
        port = port or free_port()
        command = [*prefix, program, f"--port={port}", *arguments]
        super().__init__(command, port=port, environment=environment, cwd=cwd, pass_fds=pass_fds)
