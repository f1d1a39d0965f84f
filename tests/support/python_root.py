"""A root file system with this machine's Python, PyYAML and what they are linked with, for functions in Python."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import yaml

from images.oci import Content, Layer, Link, single_layer

PACKAGES = "/packages"
INTERPRETER = "/usr/local/bin/python3"
_LEFT_OUT = {"__pycache__", "site-packages", "dist-packages", "test", "tests", "idlelib", "tkinter", "ensurepip"}


def python_root(cache: Path) -> Layer:
    """Made once for a version of Python and PyYAML."""
    key = hashlib.sha256(f"{sys.version} {sys.base_prefix} {yaml.__version__} 1".encode()).hexdigest()[:12]
    kept = cache / f"python-{key}.tar.gz"
    if not kept.exists():
        single_layer(_files()).write(kept)
    return Layer.read(kept)


def _files() -> dict[str, Content]:
    # Where it is here is where it must be there: it finds its library by its own path.
    program = Path(os.path.realpath(sys.executable))
    standard_library = Path(sysconfig.get_path("stdlib"))
    files: dict[str, Content] = {str(program): program, INTERPRETER: Link(str(program))}
    files |= _tree(standard_library, str(standard_library))
    files |= _tree(Path(yaml.__file__).parent, f"{PACKAGES}/yaml")
    linked = [path for path in files.values() if isinstance(path, Path) and (path == program or path.suffix == ".so")]
    files |= {str(path): path for path in shared_libraries(linked)}
    return files


def _tree(directory: Path, inside: str) -> dict[str, Content]:
    found: dict[str, Content] = {}
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        if not path.is_file() or _LEFT_OUT & set(relative.parts) or relative.parts[0].startswith("config-"):
            continue
        found[f"{inside}/{relative}"] = path
    return found


def shared_libraries(programs: list[Path]) -> list[Path]:
    """That programs are linked with, and the loader."""
    done = subprocess.run(["ldd", *programs], capture_output=True, text=True, timeout=120, check=False)
    return [Path(name) for name in sorted(set(re.findall(r"(?:=>)?\s(/\S+) \(0x", done.stdout)))]
