"""What the benchmarks need besides the runner, built into .cache/ on first use.

Two C programs always. A load generator in Rust where there is cargo, else a slower one in Python takes over. Two
functions of the catalog where there is a Go toolchain, and one in JavaScript where there is Node.js, else they are left
out. What cargo builds is in target/ and build/programs/.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench import inputs
from images.__main__ import WRAPPER

_BENCH = Path(__file__).parent
_ROOT = _BENCH.parent
_BUILT = _ROOT / ".cache" / "bench"
_CATALOG = _ROOT / ".cache" / "catalog"
_BUILD_SECONDS = 900

_SMALL_FILES_ONLY = 4_000_000


@dataclass(frozen=True, slots=True)
class Function:
    """A function to measure."""

    name: str
    executable: Path
    config: bytes
    most_bytes: int
    """The most input under way (size times callers) with which it is measured unless asked for by name: with more a
    single call takes seconds, and all of them together the machine's memory."""


@dataclass(frozen=True, slots=True)
class LoadGenerator:
    """A program that calls the runner; all take the same arguments and print the same report."""

    name: str
    command: tuple[str, ...]


class MissingToolError(Exception):
    """Something must be installed first; the message says what."""


def bare_loop() -> Path:
    """The floor: starts functions without a runner."""
    return _compile("bare_loop", "-pthread")


def load_generator() -> LoadGenerator:
    """The cheapest one that can be built here."""
    if shutil.which("cargo") is None:
        return LoadGenerator(
            "Python, since there is no cargo: its own CPU time takes much from the runner",
            (sys.executable, "-m", "bench.python_load"),
        )
    _run(*("cargo", "build", "--quiet", "--release", "--locked", "--package", "load"), cwd=_ROOT)
    return LoadGenerator("Rust", (str(_ROOT / "target" / "release" / "load"),))


def go_wrapper() -> Path:
    """A minimal wrapper server in Go, for comparison."""
    if shutil.which("go") is None:
        raise MissingToolError("no Go toolchain: there is nothing to compare the wrapper server with")
    program = _BUILT / "go_wrapper"
    _run("go", "build", "-buildvcs=false", "-ldflags=-s -w", "-o", str(program), ".", cwd=_BENCH / "go_wrapper")
    return program


def wrapper_server() -> Path:
    """Ours."""
    if shutil.which("cargo") is None:
        raise MissingToolError("no cargo: the wrapper server cannot be built")
    _run("sh", str(_ROOT / "rust" / "wrapper" / "build.sh"))
    return WRAPPER


def functions() -> list[Function]:
    """All that can be measured here, the fastest first."""
    found = [Function("copy", _compile("copy", "-static"), inputs.SET_NAMESPACE_CONFIG, sys.maxsize)]
    if shutil.which("go") is not None:
        _run("sh", str(_BENCH / "catalog.sh"), str(_CATALOG), "set-namespace", "starlark")
        found += [
            Function("set-namespace-go", _CATALOG / "set-namespace-v0.4.5", inputs.SET_NAMESPACE_CONFIG, 5_000_000),
            Function("starlark-go", _CATALOG / "starlark-v0.5.5", inputs.STARLARK_CONFIG, _SMALL_FILES_ONLY),
        ]
    if shutil.which("node") is not None:
        script = _BENCH / "set-namespace.js"
        found.append(Function("set-namespace-js", script, inputs.SET_NAMESPACE_CONFIG, _SMALL_FILES_ONLY))
    else:
        print("no Node.js: the function in JavaScript is left out", file=sys.stderr, flush=True)
    embedded = _ROOT / "functions" / "set-namespace-v0.4.5"
    found.append(Function("set-namespace-py", embedded, inputs.SET_NAMESPACE_CONFIG, _SMALL_FILES_ONLY))
    return found


def _compile(name: str, *flags: str) -> Path:
    source, program = _BENCH / f"{name}.c", _BUILT / name
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        if shutil.which("cc") is None:
            raise MissingToolError("no C compiler: install one as cc (on Debian: apt install gcc libc6-dev)")
        _BUILT.mkdir(parents=True, exist_ok=True)
        _run("cc", "-O2", "-Wall", "-Wextra", *flags, "-o", str(program), str(source))
    return program


def _run(*command: str, cwd: Path | None = None) -> None:
    """Build output goes to stderr: stdout is for the table."""
    try:
        subprocess.run(command, cwd=cwd, check=True, timeout=_BUILD_SECONDS, stdout=sys.stderr)
    except subprocess.CalledProcessError as error:
        raise MissingToolError(f"cannot build what is needed, see above: {error}") from error
