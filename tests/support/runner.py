"""A real `krm-runner serve` in a process of its own, and what it is given."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

import yaml

from support.processes import children, command_of, name_of, pipes
from support.server import ServerProcess, free_port


def write_function(directory: Path, name: str, content: str | bytes, mode: int = 0o755) -> Path:
    """An executable in the functions directory; one that is there is replaced, since it may be about to be executed."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    new = directory / f".{name}.new"
    new.write_bytes(content.encode() if isinstance(content, str) else content)
    new.chmod(mode)
    return new.rename(path)


def write_config(path: Path, functions: Mapping[str, Iterable[str]]) -> Path:
    """A configuration file: executable → images."""
    entries = [{"function": name, "images": list(images)} for name, images in functions.items()]
    path.write_text(yaml.safe_dump({"functions": entries}))
    return path


class RunnerProcess(ServerProcess):
    """On a free port; with the exec runtime alone, unless `without` names other runtimes to leave out.

    Python has the port, unless a flag names a front.
    """

    def __init__(
        self,
        *flags: str,
        without: str = "pod",
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        prefix: Iterable[str] = (),
        pass_fds: Iterable[int] = (),
    ) -> None:
        port = free_port()
        program = [
            sys.executable,
            "-m",
            "krm_runner",
            "serve",
            f"--disable-runtimes={without}",
            f"--port={port}",
            "--front=off",
            *flags,
        ]
        super().__init__([*prefix, *program], port=port, environment=environment, cwd=cwd, pass_fds=pass_fds)

    @property
    def parts(self) -> list[int]:
        """Its processes: one, or two with its front."""
        return [self.pid, *(child for child in children(self.pid) if name_of(child) == "krm-front")]

    @property
    def functions(self) -> list[int]:
        """The processes of functions, zombies included; not what is still a copy of its parent."""
        parts = self.parts
        started = [child for part in parts for child in children(part) if command_of(child) != command_of(part)]
        return [child for child in started if child not in self.parts]

    @property
    def pipes(self) -> int:
        """How many pipes and pidfds it has open."""
        return sum(pipes(part) for part in self.parts)
