"""Processes of a cluster: started so that they outlive the starter, known by pid and start time, ended by those alone.

A pid without its start time says nothing: by the time one looks, it may be somebody else's. A zombie counts as gone:
whoever must reap it may take a while.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

# The shell writes its own pid, as its own namespace counts, and becomes the program.
_BECOME = 'echo $$ >"$1.new" && mv "$1.new" "$1" && exec >>"$2" 2>&1 && shift 2 && exec "$@"'


class ClusterError(Exception):
    """The cluster cannot be started, found or stopped; the message says why and what to do."""


@dataclass(frozen=True)
class Identity:
    """A process that cannot be mistaken for another one."""

    pid: int
    start_time: str

    @classmethod
    def of(cls, pid: int) -> Identity | None:
        """None when there is no such process, or only its zombie."""
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else cls(pid, fields[19])

    @property
    def is_alive(self) -> bool:
        return Identity.of(self.pid) == self

    def end(self, number: int = signal.SIGKILL, seconds: float = 10) -> None:
        """Send a signal and wait; what does not end is killed."""
        for attempt in (number, signal.SIGKILL):
            if self.is_alive:
                # It may end by itself just now.
                with suppress(ProcessLookupError):
                    os.kill(self.pid, attempt)
            limit = time.monotonic() + seconds
            while time.monotonic() < limit:
                if not self.is_alive:
                    return
                time.sleep(0.02)
        raise ClusterError(f"process {self.pid} does not end, not even when killed: look at /proc/{self.pid}/stack")


class Record:
    """An identity kept in a file, for a later command to find."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, identity: Identity) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".new")
        temporary.write_text(f"{identity.pid} {identity.start_time}\n")
        temporary.rename(self._path)

    @property
    def exists(self) -> bool:
        """Whether anything is recorded, alive or not."""
        return self._path.exists()

    def read(self) -> Identity | None:
        """The recorded process if it is alive."""
        try:
            pid, start_time = self._path.read_text().split()
        except (OSError, ValueError):
            return None
        identity = Identity(int(pid), start_time)
        return identity if identity.is_alive else None

    def remove(self) -> None:
        self._path.unlink(missing_ok=True)


class Components:
    """The named processes of one cluster; `within` is the command that enters its namespaces, if it has any."""

    def __init__(self, run: Path, within: Sequence[str] = (), namespace_of: int | None = None) -> None:
        self._run = run
        self._within = list(within)
        self._namespace_of = namespace_of

    def record(self, name: str) -> Record:
        return Record(self._run / "pid" / name)

    def log(self, name: str) -> Path:
        return self._run / "log" / f"{name}.log"

    def start(self, name: str, command: Sequence[str | Path]) -> None:
        """Does nothing when it runs already."""
        if self.record(name).read():
            return
        pid_file = self._run / "pid" / f"{name}.inner"
        for path in (pid_file, self.log(name), self._command(name)):
            path.parent.mkdir(parents=True, exist_ok=True)
        pid_file.unlink(missing_ok=True)
        words = [str(word) for word in command]
        self._command(name).write_text(json.dumps(words))
        become = ["sh", "-c", _BECOME, "sh", str(pid_file), str(self.log(name)), *words]
        subprocess.run(
            [*self._within, "setsid", "--fork", *become], check=True, stdin=subprocess.DEVNULL, timeout=30, cwd="/"
        )
        self.record(name).write(self._find(name, pid_file))

    def stop(self, name: str, number: int = signal.SIGKILL) -> None:
        if identity := self.record(name).read():
            identity.end(number)
        self.record(name).remove()

    def resume(self, name: str) -> None:
        """Start what was stopped, by the command line that it had."""
        self.start(name, json.loads(self._command(name).read_text()))

    @property
    def names(self) -> list[str]:
        """Everything that was ever started."""
        return sorted(path.stem for path in (self._run / "command").glob("*.json"))

    def require(self, name: str) -> Identity:
        """The living process, or the end of its log."""
        if identity := self.record(name).read():
            return identity
        raise ClusterError(f"{name} is not running; the end of its log:\n{self.last_lines(name)}")

    def last_lines(self, name: str, count: int = 15) -> str:
        try:
            return "\n".join(self.log(name).read_text(errors="replace").splitlines()[-count:])
        except OSError:
            return "(no log)"

    def _command(self, name: str) -> Path:
        return self._run / "command" / f"{name}.json"

    def _find(self, name: str, pid_file: Path) -> Identity:
        limit = time.monotonic() + 20
        while time.monotonic() < limit:
            if pid_file.exists():
                inner = int(pid_file.read_text())
                pid = inner if self._namespace_of is None else _outer_pid(inner, self._namespace_of)
                if pid and (identity := Identity.of(pid)):
                    return identity
                raise ClusterError(f"{name} ended at once; the end of its log:\n{self.last_lines(name)}")
            time.sleep(0.01)
        raise ClusterError(f"{name} did not start; the end of its log:\n{self.last_lines(name)}")


def _outer_pid(inner: int, namespace_of: int) -> int | None:
    """The pid, as we count, of a process that its own pid namespace knows by another number."""
    namespace = os.readlink(f"/proc/{namespace_of}/ns/pid")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if os.readlink(entry / "ns" / "pid") != namespace:
                continue
            status = (entry / "status").read_text()
        except OSError:
            continue
        numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
        if int(numbers[-1]) == inner:
            return int(entry.name)
    return None
