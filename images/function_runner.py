"""The runner's image: Debian's Python, the packages of requirements/run.txt, the service, and the functions with it.

It is put together from files, so that it is the same to the byte wherever it is built: nothing is installed, no script
of a package runs. Python files are compiled by the Python that is in the image, since its root is read-only later. What
it leaves out: a shell, a package manager, and what Python needs for screens, tests and builds.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from images import debian, wheels
from images.debian import Package
from images.oci import Content, Image, Link, SameAs, own_architecture, single_layer
from images.wheels import Wheel

ROOT = Path(__file__).parent.parent
NONROOT = 65532
SITE = "/usr/lib/python3/dist-packages"
PYTHON = "/usr/bin/python3.11"
ENVIRONMENT = ("PATH=/usr/local/bin:/usr/bin:/bin", "LANG=C.UTF-8", "HOME=/tmp", "PYTHONDONTWRITEBYTECODE=1")
ENTRYPOINT = ("function-runner",)
LABELS = (
    ("org.opencontainers.image.title", "function-runner"),
    ("org.opencontainers.image.description", "Executes KRM functions for Porch over gRPC"),
    ("org.opencontainers.image.licenses", "Apache-2.0"),
    ("org.opencontainers.image.base.name", "scratch"),
)
_CERTIFICATES = "/usr/share/ca-certificates/mozilla/"
_LOADERS = {"amd64": "lib64/ld-linux-x86-64.so.2", "arm64": "lib/ld-linux-aarch64.so.1"}
_LIBRARY_FOLDERS = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
_LEFT_OUT = re.compile(
    r"/usr/share/(?!ca-certificates/|doc/[^/]+/copyright$)"
    r"|/gconv/|/usr/sbin/|/etc/|/lib/udev/|/usr/lib/locale/|/sbin/"
    r"|/usr/lib/python3\.11/(?:(?:test|idlelib|lib2to3|ensurepip|distutils|tkinter|curses|turtledemo|venv|pydoc_data"
    r"|sqlite3|dbm|__phello__)/|sitecustomize\.py$)"
    r"|/lib-dynload/(?:_test|_xx|xx|_curses|_dbm|_sqlite3|_ctypes_test|nis|ossaudiodev|readline|audioop)"
)
# Of the tools that come with Debian, functions need the one that finds their interpreter.
_TOOLS = "/usr/bin/env"
_PEOPLE = {
    "/etc/passwd": f"root:x:0:0::/:/sbin/nologin\nnonroot:x:{NONROOT}:{NONROOT}::/tmp:/sbin/nologin\n",
    "/etc/group": f"root:x:0:\nnonroot:x:{NONROOT}:\n",
    "/etc/nsswitch.conf": "hosts: files dns\n",
    # Kubernetes and docker mount their own over it; not every runtime does.
    "/etc/hosts": "127.0.0.1 localhost\n::1 localhost\n",
}
_COMPILE = """
import compileall, py_compile, sys
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
root = sys.argv[1]
done = compileall.compile_dir(root, quiet=1, force=True, stripdir=root, prependdir="/", invalidation_mode=mode)
sys.exit(not done)
"""
_PROGRAM = """#!{python} -P
import sys
from krm_runner.cli import {function}
sys.exit({function}())
"""


@dataclass(frozen=True)
class Programs:
    """What was built in Rust for it."""

    wrapper: Path
    front: Path

    @property
    def missing(self) -> list[Path]:
        """Those that are not built."""
        return [path for path in (self.wrapper, self.front) if not path.exists()]


@dataclass(frozen=True)
class Parts:
    """What the image is made of, for those who ask."""

    packages: list[Package]
    wheels: list[Wheel]
    image: Image


def version() -> str:
    """The service's."""
    return str(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"])


def build(programs: Programs, cache: Path) -> Parts:
    """The image for the architecture of this machine, whose Python compiles it."""
    parts = _parts(programs, cache)
    layers = (
        single_layer(parts.ground, compresslevel=6),
        single_layer(parts.libraries, has_tmp=False, compresslevel=6),
        single_layer(parts.own, has_tmp=False, compresslevel=6),
    )
    image = Image(
        layers,
        entrypoint=ENTRYPOINT,
        user=f"{NONROOT}:{NONROOT}",
        environment=ENVIRONMENT,
        labels=(*LABELS, ("org.opencontainers.image.version", version())),
    )
    return Parts(parts.packages, parts.wheels, image)


def files(programs: Programs, cache: Path) -> dict[str, Content]:
    """Everything that is in the image, by path."""
    parts = _parts(programs, cache)
    return {**parts.ground, **parts.libraries, **parts.own}


@dataclass(frozen=True)
class _Files:
    """The three layers, compiled: what changes seldom, what changes with the lock, what changes with us."""

    packages: list[Package]
    wheels: list[Wheel]
    ground: dict[str, Content]
    libraries: dict[str, Content]
    own: dict[str, Content]


def _parts(programs: Programs, cache: Path) -> _Files:
    architecture = own_architecture()
    packages = debian.read_lock(architecture)
    chosen = wheels.runtime_wheels(architecture, cache)
    ground = _ground(packages, lambda package: debian.fetch(package, cache / "debian"))
    libraries = {path: content for wheel in chosen for path, content in wheels.unpack(wheel, SITE).items()}
    own = _own(programs)
    compiled = _compiled(ground | libraries | own, architecture)
    return _Files(
        packages,
        chosen,
        ground | _of(compiled, ground),
        libraries | _of(compiled, libraries),
        own | _of(compiled, own),
    )


def _ground(packages: Iterable[Package], fetch: Callable[[Package], bytes]) -> dict[str, Content]:
    files: dict[str, Content] = dict(_PEOPLE)
    certificates: dict[str, bytes] = {}
    for package in packages:
        unpacked = debian.unpack(fetch(package))
        # Where scanners look for what is installed in an image without a package manager.
        files[f"/var/lib/dpkg/status.d/{package.name}"] = unpacked.control
        for path, content in unpacked.files.items():
            if path.startswith(_CERTIFICATES) and isinstance(content, bytes):
                certificates[path] = content
            elif _is_wanted(package.name, path):
                files[path] = content
    files |= {
        "/etc/ssl/certs/ca-certificates.crt": b"".join(content for _, content in sorted(certificates.items())),
        "/usr/lib/ssl/cert.pem": Link("/etc/ssl/certs/ca-certificates.crt"),
        "/usr/lib/ssl/certs": Link("/etc/ssl/certs"),
        "/usr/bin/python3": Link("python3.11"),
    }
    return files


def _is_wanted(package: str, path: str) -> bool:
    if package == "coreutils":
        return path == _TOOLS or path.endswith("/copyright")
    return not _LEFT_OUT.search(path)


def _own(programs: Programs) -> dict[str, Content]:
    """The service, its functions, and the names under which manifests know it."""
    files: dict[str, Content] = {}
    for package in ("krm_runner", "krm_function"):
        for path in sorted((ROOT / "src" / package).rglob("*")):
            if path.is_file() and path.suffix in (".py", ".typed"):
                files[f"{SITE}/{package}/{path.relative_to(ROOT / 'src' / package)}"] = path.read_bytes()
    for path in sorted((ROOT / "functions").iterdir()):
        files[f"/functions/{path.name}"] = path.read_bytes()
    files |= {
        "/config.yaml": (ROOT / "config.yaml").read_bytes(),
        "/usr/bin/function-runner": _PROGRAM.format(python=PYTHON, function="serve_main"),
        "/usr/bin/krm-runner": _PROGRAM.format(python=PYTHON, function="main"),
        "/server": Link("/usr/bin/function-runner"),
        "/usr/bin/krm-front": programs.front.read_bytes(),
        "/grpc-health-probe": programs.wrapper.read_bytes(),
        # Porch's manifests have it all there from 1.5.7 on.
        **{f"/home/nonroot/{name}": Link(f"/{name}") for name in ("server", "functions", "config.yaml")},
        "/home/nonroot/grpc-health-probe": Link("/grpc-health-probe"),
        "/usr/share/doc/krm-runner/LICENSE": (ROOT / "LICENSE").read_bytes(),
    }
    return files


def _compiled(files: Mapping[str, Content], architecture: str) -> dict[str, Content]:
    """The byte code of all Python files, by the image's own Python."""
    with tempfile.TemporaryDirectory() as directory:
        stage(files, Path(directory))
        folders = _LIBRARY_FOLDERS[architecture]
        library_path = ":".join(f"{directory}/{folder}/{folders}" for folder in ("lib", "usr/lib"))
        loader = [f"{directory}/{_LOADERS[architecture]}", "--library-path", library_path]
        environment = {"PYTHONHOME": f"{directory}/usr", "PYTHONHASHSEED": "0", "PYTHONDONTWRITEBYTECODE": "1"}
        command = [*loader, f"{directory}{PYTHON}", "-B", "-c", _COMPILE, directory]
        subprocess.run(command, check=True, timeout=600, env=environment)
        found = Path(directory).rglob("*.pyc")
        return {f"/{path.relative_to(directory)}": path.read_bytes() for path in sorted(found)}


def _of(compiled: Mapping[str, Content], sources: Mapping[str, Content]) -> dict[str, Content]:
    """The byte code of these sources."""

    def source(path: str) -> str:
        folder, _, name = path.rpartition("/__pycache__/")
        return f"{folder}/{name.split('.')[0]}.py"

    return {path: content for path, content in compiled.items() if source(path) in sources}


def stage(files: Mapping[str, Content], directory: Path) -> None:
    """Write the files below a directory, as a container would see them."""
    for name, content in sorted(files.items()):
        path = directory / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, Link):
            path.symlink_to(content.target)
        elif isinstance(content, SameAs):
            os.link(directory / content.path.lstrip("/"), path)
        elif isinstance(content, Path):
            shutil.copyfile(content, path)
        else:
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        if not path.is_symlink():
            path.chmod(0o755 if path.read_bytes()[:4] == b"\x7fELF" or path.read_bytes()[:2] == b"#!" else 0o644)
