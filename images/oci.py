"""Container images from a few files: OCI, reproducible to the byte, without any tool."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import platform
import tarfile
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
_INDEX = "application/vnd.oci.image.index.v1+json"
_EXECUTABLE_STARTS = (b"#!", b"\x7fELF")


def own_architecture() -> str:
    """This machine's, as images call it."""
    return ARCHITECTURES[platform.machine()]


@dataclass(frozen=True)
class Link:
    """A symbolic link."""

    target: str


@dataclass(frozen=True)
class SameAs:
    """A hard link: the file at that path of the image, which comes before it in the alphabet, under another name."""

    path: str


Content = Path | bytes | str | Link | SameAs


@dataclass(frozen=True)
class Layer:
    """A layer as it is stored, and the digest of what is in it."""

    content: bytes = field(repr=False)
    diff_id: str

    @classmethod
    def read(cls, path: Path) -> Layer:
        """A layer that `write` kept."""
        content = path.read_bytes()
        return cls(content, _digest(gzip.decompress(content)))

    def write(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
            file.write(self.content)
        Path(file.name).rename(path)


def single_layer(files: Mapping[str, Content], *, has_tmp: bool = True, compresslevel: int = 1) -> Layer:
    """Path in the image → content: of a file on this machine, or given; scripts and programs can be executed."""
    packed = io.BytesIO()
    made: set[PurePosixPath] = set()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        if has_tmp:
            _add_directories(archive, PurePosixPath("tmp"), made)
        for name, content in sorted(files.items()):
            path = PurePosixPath(name.lstrip("/"))
            _add_directories(archive, path.parent, made)
            _add_file(archive, path, content)
    plain = packed.getvalue()
    return Layer(gzip.compress(plain, compresslevel=compresslevel, mtime=0), _digest(plain))


@dataclass(frozen=True)
class Image:
    """What an image says of itself; None leaves a field out, as images without that setting do."""

    layers: tuple[Layer, ...]
    entrypoint: tuple[str, ...] | None = None
    command: tuple[str, ...] | None = None
    user: str | None = None
    environment: tuple[str, ...] = ("PATH=/usr/local/bin:/usr/bin:/bin",)
    labels: tuple[tuple[str, str], ...] = ()
    architecture: str = field(default_factory=own_architecture)

    @property
    def config(self) -> bytes:
        settings: dict[str, object] = {"Env": list(self.environment), "WorkingDir": "/"}
        settings |= {
            name: value if isinstance(value, str) else list(value)
            for name, value in (("Entrypoint", self.entrypoint), ("Cmd", self.command), ("User", self.user))
            if value is not None
        }
        if self.labels:
            settings["Labels"] = dict(self.labels)
        return _json(
            {
                "created": "1970-01-01T00:00:00Z",
                "architecture": self.architecture,
                "os": "linux",
                "config": settings,
                "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in self.layers]},
            }
        )

    @property
    def manifest(self) -> bytes:
        return _json(
            {
                "schemaVersion": 2,
                "mediaType": MANIFEST,
                "config": _descriptor(_CONFIG, self.config),
                "layers": [_descriptor(_LAYER, layer.content) for layer in self.layers],
                **({"annotations": dict(self.labels)} if self.labels else {}),
            }
        )

    @property
    def digest(self) -> str:
        return _digest(self.manifest)

    def write_layout(self, directory: Path, name: str) -> None:
        """As an OCI image layout."""
        blobs = directory / "blobs" / "sha256"
        blobs.mkdir(parents=True)
        for content in (self.manifest, self.config, *(layer.content for layer in self.layers)):
            (blobs / _digest(content).removeprefix("sha256:")).write_bytes(content)
        names = {"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name}
        entry = _descriptor(MANIFEST, self.manifest) | {"annotations": names}
        (directory / "oci-layout").write_bytes(_json({"imageLayoutVersion": "1.0.0"}))
        (directory / "index.json").write_bytes(_json({"schemaVersion": 2, "mediaType": _INDEX, "manifests": [entry]}))

    def write_archive(self, path: Path, name: str) -> None:
        """The layout as one file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as directory, tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
            self.write_layout(Path(directory), name)
            for file in sorted(Path(directory).rglob("*")):
                if file.is_file():
                    entry = tarfile.TarInfo(str(file.relative_to(directory)))
                    entry.size, entry.mode = file.stat().st_size, 0o644
                    with file.open("rb") as content:
                        archive.addfile(entry, content)


def _add_directories(archive: tarfile.TarFile, path: PurePosixPath, made: set[PurePosixPath]) -> None:
    for directory in (*reversed(path.parents), path):
        if directory not in made and directory != PurePosixPath("."):
            made.add(directory)
            entry = tarfile.TarInfo(str(directory))
            entry.type = tarfile.DIRTYPE
            entry.mode = 0o1777 if directory == PurePosixPath("tmp") else 0o755
            archive.addfile(entry)


def _add_file(archive: tarfile.TarFile, path: PurePosixPath, content: Content) -> None:
    entry = tarfile.TarInfo(str(path))
    if isinstance(content, Link):
        entry.type, entry.linkname, entry.mode = tarfile.SYMTYPE, content.target, 0o777
        archive.addfile(entry)
        return
    if isinstance(content, SameAs):
        entry.type, entry.linkname, entry.mode = tarfile.LNKTYPE, content.path.lstrip("/"), 0o755
        archive.addfile(entry)
        return
    data = (
        content.read_bytes() if isinstance(content, Path) else content.encode() if isinstance(content, str) else content
    )
    entry.size = len(data)
    entry.mode = 0o755 if data.startswith(_EXECUTABLE_STARTS) else 0o644
    archive.addfile(entry, io.BytesIO(data))


def _descriptor(media_type: str, content: bytes) -> dict[str, object]:
    return {"mediaType": media_type, "digest": _digest(content), "size": len(content)}


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _json(document: object) -> bytes:
    return json.dumps(document, sort_keys=True).encode()
