"""The Python packages that the service needs at run time, as files for an image.

Wheels come by requirements/run.txt and its hashes; of those, the ones that pyproject.toml's dependencies lead to are
unpacked. Nothing is installed: a wheel is a zip file of what is to be there.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from images.oci import Content

ROOT = Path(__file__).parent.parent
REQUIREMENTS = ROOT / "requirements" / "run.txt"
PYTHON = "3.11"
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_GLIBC_OF_DEBIAN_12 = 36
_NOT_NEEDED = ("/tests/", "/test/", "/docs/", "/.hash/")
_NOT_NEEDED_ENDINGS = (".pyi", ".pyx", ".pxd", ".pxi", ".c", ".h", ".proto")


@dataclass(frozen=True)
class Wheel:
    """One package."""

    name: str
    version: str
    path: Path
    requirements: tuple[Requirement, ...]


def runtime_wheels(architecture: str, cache: Path) -> list[Wheel]:
    """What the service itself needs, by name."""
    wheels = {wheel.name: wheel for wheel in map(_read, _downloaded(architecture, cache).glob("*.whl"))}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed: set[str] = set()
    _follow([Requirement(text) for text in project["dependencies"]], wheels, needed, _environment(architecture))
    return [wheels[name] for name in sorted(needed)]


def unpack(wheel: Wheel, target: str) -> dict[str, Content]:
    """Its files below a directory of the image, without what only builds and tests use."""
    files: dict[str, Content] = {}
    with zipfile.ZipFile(wheel.path) as archive:
        for name in archive.namelist():
            place = _place(name)
            if place and not any(part in f"/{place}" for part in _NOT_NEEDED):
                files[f"{target}/{place}"] = archive.read(name)
    return files


def _place(name: str) -> str:
    """Where a member of a wheel goes; empty for what is not needed."""
    if name.endswith(("/", *_NOT_NEEDED_ENDINGS)):
        return ""
    top, _, rest = name.partition("/")
    if not top.endswith(".data"):
        return name
    kind, _, place = rest.partition("/")
    return place if kind in ("purelib", "platlib") else ""


def _downloaded(architecture: str, cache: Path) -> Path:
    machine = _MACHINES[architecture]
    key = hashlib.sha256(REQUIREMENTS.read_bytes() + machine.encode()).hexdigest()[:12]
    directory = cache / f"wheels-{key}"
    if directory.exists():
        return directory
    platforms = ["manylinux2014", *(f"manylinux_2_{minor}" for minor in range(17, _GLIBC_OF_DEBIAN_12 + 1))]
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache) as staged:
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps",
            "--require-hashes", "--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}",
            *(f"--platform={platform}_{machine}" for platform in platforms),
            "--requirement", str(REQUIREMENTS), "--dest", f"{staged}/wheels",
        ]  # fmt: skip
        subprocess.run(command, check=True, timeout=900)
        if not directory.exists():
            shutil.move(f"{staged}/wheels", directory)
    return directory


def _read(path: Path) -> Wheel:
    name, version, _, _ = parse_wheel_filename(path.name)
    with zipfile.ZipFile(path) as archive:
        metadata = next(entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA"))
        headers = HeaderParser().parsestr(archive.read(metadata).decode())
    requirements = tuple(Requirement(text) for text in headers.get_all("Requires-Dist") or ())
    return Wheel(name, str(version), path, requirements)


def _follow(
    requirements: Iterable[Requirement], wheels: dict[str, Wheel], needed: set[str], environment: dict[str, str]
) -> None:
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        if name in needed or (requirement.marker and not requirement.marker.evaluate({**environment, "extra": ""})):
            continue
        if name not in wheels:
            sys.exit(f"images: {name} is needed and not in {REQUIREMENTS.name}: make lock")
        needed.add(name)
        _follow(wheels[name].requirements, wheels, needed, environment)


def _environment(architecture: str) -> dict[str, str]:
    return {
        "python_version": PYTHON,
        "python_full_version": f"{PYTHON}.2",
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "sys_platform": "linux",
        "platform_system": "Linux",
        "platform_machine": _MACHINES[architecture],
    }
