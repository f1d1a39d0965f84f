"""Debian packages as files for an image: taken by the lock file's hashes, unpacked, never installed.

The lock names every package with its version, place and hash, for each architecture. They come from the repositories
that apt uses on this machine, or from the one that DEBIAN_MIRROR names. A mirror drops a version when it has a newer
one: then `python -m images.debian` writes the lock anew.
"""

from __future__ import annotations

import functools
import hashlib
import io
import lzma
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from images.oci import Content, Link

LOCK = Path(__file__).parent / "function-runner" / "debian.lock"
SUITES = {"debian": "bookworm", "debian-security": "bookworm-security"}
PACKAGES = (
    "ca-certificates", "coreutils", "libbz2-1.0", "libc6", "libcrypt1", "libexpat1", "libffi8", "libgcc-s1", "liblzma5",
    "libpython3.11-minimal", "libpython3.11-stdlib", "libssl3", "libstdc++6", "libuuid1", "python3.11-minimal",
    "zlib1g",
)  # fmt: skip
_TIMEOUT = 60
_AR_MAGIC, _AR_HEADER = b"!<arch>\n", 60


class PackageError(Exception):
    """A package cannot be had; the message says what to do."""


@dataclass(frozen=True)
class Package:
    """One line of the lock."""

    architecture: str
    name: str
    version: str
    archive: str
    path: str
    sha256: str


@dataclass(frozen=True)
class Unpacked:
    """What is in a package."""

    control: bytes
    files: Mapping[str, Content]


def read_lock(architecture: str, lock: Path = LOCK) -> list[Package]:
    """The packages for an architecture."""
    lines = lock.read_text().splitlines()
    packages = [Package(*line.split()) for line in lines if line and not line.startswith("#")]
    chosen = [package for package in packages if package.architecture == architecture]
    if not chosen:
        raise PackageError(f"{lock.name} has no packages for {architecture}")
    return chosen


def fetch(package: Package, cache: Path) -> bytes:
    """The package's file, from the cache or the network, with the hash that the lock has."""
    kept = cache / package.sha256
    if kept.exists():
        return kept.read_bytes()
    tried: list[str] = []
    for base in _repositories(package.archive):
        try:
            content = _get(f"{base}/{package.path}")
        except (OSError, urllib.error.URLError) as error:
            tried.append(f"{base}: {error}")
            continue
        if hashlib.sha256(content).hexdigest() != package.sha256:
            tried.append(f"{base}: it has another hash than the lock")
            continue
        _keep(content, kept)
        return content
    raise PackageError(
        f"{package.name} {package.version} cannot be fetched ({'; '.join(tried)}); "
        "if Debian has a newer one, write the lock anew: python -m images.debian"
    )


@functools.cache
def _repositories(archive: str) -> list[str]:
    """Where an archive (`debian`, `debian-security`) is to be had."""
    if mirror := os.environ.get("DEBIAN_MIRROR"):
        return [f"{mirror.rstrip('/')}/{archive}"]
    found: set[str] = set()
    if shutil.which("apt-get"):
        command = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, check=False)
        found = {line.rstrip("/") for line in done.stdout.splitlines()}
    repositories = sorted(uri for uri in found if uri.rpartition("/")[2] == archive)
    if not repositories:
        raise PackageError(
            f"apt knows no repository of the archive {archive} here; set DEBIAN_MIRROR to a URL that has it below"
        )
    return repositories


def unpack(content: bytes) -> Unpacked:
    """A package's control file and its files, by absolute path."""
    members = dict(_members(content))
    control = b""
    with _tar(members, "control.tar") as archive:
        file = archive.extractfile("./control")
        control = file.read() if file is not None else b""
    files: dict[str, Content] = {}
    with _tar(members, "data.tar") as archive:
        for entry in archive:
            path = entry.name.removeprefix(".")
            if entry.issym():
                files[path] = Link(entry.linkname)
            elif entry.isfile() or entry.islnk():
                file = archive.extractfile(entry)
                files[path] = file.read() if file is not None else b""
    return Unpacked(control, files)


def _members(content: bytes) -> Iterator[tuple[str, bytes]]:
    """The files of an ar archive."""
    if not content.startswith(_AR_MAGIC):
        raise PackageError("this is no Debian package")
    position = len(_AR_MAGIC)
    while position + _AR_HEADER <= len(content):
        header = content[position : position + _AR_HEADER]
        position += _AR_HEADER
        size = int(header[48:58])
        yield header[:16].decode().strip().rstrip("/"), content[position : position + size]
        position += size + size % 2


def _tar(members: Mapping[str, bytes], name: str) -> tarfile.TarFile:
    found = next(member for member in members if member.startswith(name))
    return tarfile.open(fileobj=io.BytesIO(members[found]), mode="r:*")


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=_TIMEOUT) as answer:  # noqa: S310 - the two addresses above
        content: bytes = answer.read()
    return content


def _keep(content: bytes, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
    shutil.move(file.name, path)


def write_lock(architectures: Sequence[str] = ("amd64", "arm64"), lock: Path = LOCK) -> None:
    """The newest version of every package."""
    day = datetime.now(UTC).strftime("%Y%m%dT000000Z")
    lines = [f"# as of {day}", "# architecture name version archive path sha256; python -m images.debian writes it"]
    for architecture in architectures:
        newest: dict[str, Package] = {}
        for archive, suite in SUITES.items():
            base = _repositories(archive)[0]
            index = lzma.decompress(_get(f"{base}/dists/{suite}/main/binary-{architecture}/Packages.xz"))
            for package in _indexed(index.decode(), archive, architecture):
                known = newest.get(package.name)
                if known is None or sort_key(package.version) > sort_key(known.version):
                    newest[package.name] = package
        missing = set(PACKAGES) - set(newest)
        if missing:
            raise PackageError(f"Debian has no {', '.join(sorted(missing))} for {architecture}")
        lines += [
            f"{architecture} {name} {newest[name].version} {newest[name].archive} {newest[name].path} "
            f"{newest[name].sha256}"
            for name in PACKAGES
        ]
    lock.write_text("\n".join(lines) + "\n")


def sort_key(version: str) -> tuple[object, ...]:
    """Orders versions as Debian does: text before numbers in turn, `~` before the end, letters before the rest."""
    epoch, colon, rest = version.rpartition(":")
    upstream, _, revision = rest.partition("-") if rest.count("-") < 2 else rest.rpartition("-")
    return (int(epoch) if colon else 0, _parts(upstream), _parts(revision))


def _parts(text: str) -> tuple[tuple[tuple[int, ...], int], ...]:
    found = re.findall(r"([^0-9]*)([0-9]*)", text)
    # The end of a text sorts after `~` and before everything else.
    return tuple(((*map(_rank, letters), 0), int(number or 0)) for letters, number in found)


def _rank(letter: str) -> int:
    return -1 if letter == "~" else ord(letter) if letter.isalpha() else ord(letter) + 256


def _indexed(index: str, archive: str, architecture: str) -> Iterator[Package]:
    for paragraph in index.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in paragraph.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Package") in PACKAGES:
            yield Package(
                architecture, fields["Package"], fields["Version"], archive, fields["Filename"], fields["SHA256"]
            )


if __name__ == "__main__":
    write_lock()
    sys.stdout.write(LOCK.read_text())
