"""A server under measurement: a process of its own, and what the kernel counts for it."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

import yaml

_START_SECONDS = 30
_STOP_SECONDS = 30
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_FRONT = "krm-front"
"""The runner's other process, if it has one: what it takes is the runner's."""


@dataclass(frozen=True, slots=True)
class CpuSeconds:
    """CPU time so far: of the server itself, and of the functions that it has reaped."""

    server: float
    functions: float

    def since(self, earlier: CpuSeconds) -> CpuSeconds:
        """What came on top."""
        return CpuSeconds(self.server - earlier.server, self.functions - earlier.functions)


class Server:
    """Started on a free port, which its log names. The log goes to a file: reading it costs nothing meanwhile."""

    def __init__(
        self,
        directory: Path,
        command: Sequence[str],
        *,
        host: str = "localhost",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._host = host
        self._log = directory / "log"
        variables = os.environ | dict(environment or {})
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log, env=variables
            )
        self.port = self._wait_for_port()
        self._processes = [self.pid, *front_of(self.pid)]

    @property
    def addresses(self) -> tuple[str, ...]:
        """The one where it listens."""
        return (f"{self._host}:{self.port}",)

    @property
    def pid(self) -> int:
        """Of the process."""
        return self._process.pid

    def cpu(self) -> CpuSeconds:
        """See CpuSeconds."""
        return cpu_of(self.pid)

    def forget_peak_memory(self) -> None:
        """Begin anew with what is in use now; where the kernel refuses, the peak stays that of the whole process."""
        for pid in self._processes:
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def peak_memory(self) -> int:
        """Bytes."""
        return self._memory("VmHWM")

    def memory(self) -> int:
        """Bytes, now."""
        return self._memory("VmRSS")

    def memory_of_functions(self) -> int:
        """Bytes that the processes of its functions hold now and share with nobody."""
        functions = [child for pid in self._processes for child in _children(pid) if child not in self._processes]
        return sum(_private_memory(Path(f"/proc/{child}")) for child in functions)

    def _memory(self, which: str) -> int:
        texts = [Path(f"/proc/{pid}/status").read_text() for pid in self._processes]
        found = [re.search(rf"^{which}:\s*(\d+) kB$", text, re.MULTILINE) for text in texts]
        return sum(int(match[1]) * 1024 for match in found if match)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _wait_for_port(self) -> int:
        end = time.monotonic() + _START_SECONDS
        while time.monotonic() < end and self._process.poll() is None:
            if match := re.search(r"event=serving .*?(?:\bport=|\baddress=\S*:)(\d+)", self._log.read_text()):
                return int(match[1])
            time.sleep(0.02)
        self._process.kill()
        self._process.wait()
        raise RuntimeError(f"the server does not start:\n{self._log.read_text()}")


def cpu_of(pid: int) -> CpuSeconds:
    """Of a server, its front included, and of their children that they have waited for."""
    server = functions = 0.0
    for process in (pid, *front_of(pid)):
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        user, system, functions_user, functions_system = (int(ticks) / _TICKS_PER_SECOND for ticks in fields[11:15])
        server += user + system
        functions += functions_user + functions_system
    return CpuSeconds(server, functions)


def front_of(pid: int) -> list[int]:
    """The front of a runner, if it has one."""
    return [child for child in _children(pid) if _name(child) == _FRONT]


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        # A function that has ended.
        return ""


def _children(pid: int) -> list[int]:
    """Each of its threads has those that it started."""
    files = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for file in files for child in file.read_text().split()]


class Group:
    """Servers that share the load."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._servers = servers

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of all of them."""
        return tuple(address for server in self._servers for address in server.addresses)

    def cpu(self) -> CpuSeconds:
        """Of all of them together."""
        each = [server.cpu() for server in self._servers]
        return CpuSeconds(sum(cpu.server for cpu in each), sum(cpu.functions for cpu in each))


def _private_memory(process: Path) -> int:
    try:
        _size, resident, shared, *_ = map(int, (process / "statm").read_text().split())
    except (OSError, ValueError):
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def runner(
    directory: Path,
    executables: Iterable[Path],
    flags: Iterable[str],
    *,
    environment: Mapping[str, str] | None = None,
) -> Server:
    """`krm-runner serve` with these functions."""
    functions, config = directory / "functions", directory / "config.yaml"
    functions.mkdir()
    entries: list[dict[str, object]] = []
    for executable in executables:
        (functions / executable.name).symlink_to(executable)
        entries.append({"function": executable.name, "images": [image_of(executable)]})
    config.write_text(yaml.safe_dump({"functions": entries}))
    command = (
        *(sys.executable, "-m", "krm_runner", "serve", "--disable-runtimes=pod", "--port=0"),
        *(f"--functions={functions}", f"--config={config}", "--shutdown-delay=0s", *flags),
    )
    return Server(directory, command, environment=environment)


def image_of(executable: Path) -> str:
    """The image under which the runner serves an executable."""
    return f"bench.invalid/{executable.name}:latest"
