"""A real wrapper server in a process of its own."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable, Mapping
from pathlib import Path

from support.machine import PROGRAMS, missing
from support.processes import eventually
from support.server import ServerProcess, free_port

WRAPPER = PROGRAMS / "wrapper-server"


def built_wrapper() -> Path:
    """The program, as `make test` builds it where there is a cargo."""
    if not WRAPPER.exists():
        missing("the wrapper server is not built (make programs; it needs cargo)")
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


class MeteredWrapper(WrapperProcess):
    """One that serves its metrics as well."""

    def __init__(self, *arguments: str, program: str, cwd: Path | None = None) -> None:
        self._metrics_port = free_port()
        environment = {
            "OTEL_METRICS_EXPORTER": "prometheus",
            "OTEL_EXPORTER_PROMETHEUS_PORT": str(self._metrics_port),
        }
        super().__init__(*arguments, program=program, cwd=cwd, environment=environment)
        # Written when both ports are open.
        self.wait_for_line("event=serving")

    def metric(self, series: str) -> float | None:
        """The value of a series such as `standby_processes`; none if there is no such series."""
        with urllib.request.urlopen(f"http://localhost:{self._metrics_port}/metrics", timeout=10) as response:
            lines = bytes(response.read()).decode().splitlines()
        values = [line.rpartition(" ")[2] for line in lines if line.startswith(f"krm_wrapper_{series} ")]
        return float(values[0]) if values else None

    def executions(self, process: str) -> int:
        """How many executions there were by such a process: `standby` or `on-demand`."""
        return int(self.metric(f'executions_total{{process="{process}"}}') or 0)

    def in_standby(self) -> int:
        """How many processes wait for their call."""
        return int(self.metric("standby_processes") or 0)

    def is_marked(self) -> bool:
        """Whether it has said that its function is not kept in standby."""
        return any('event="the function is not kept in standby"' in line for line in self.lines)

    async def has_settled(self) -> None:
        """Waits until a process is in standby, or it is known that none will be."""
        never = 'event="no process in standby for now"'
        await eventually(
            lambda: self.in_standby() > 0 or self.is_marked() or any(never in line for line in self.lines),
            what="a process in standby",
        )
