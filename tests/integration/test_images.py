"""The images as they are written: what is in them, and that two builds are the same."""

from __future__ import annotations

import gzip
import hashlib
import json
import subprocess
import tarfile
from pathlib import Path
from typing import Any, cast

from images.__main__ import wrapper_server_image

Json = dict[str, Any]


def blob(archive: tarfile.TarFile, digest: str) -> bytes:
    """Its content, which must have that digest."""
    file = archive.extractfile(f"blobs/{digest.replace(':', '/')}")
    assert file is not None
    content = file.read()
    assert f"sha256:{hashlib.sha256(content).hexdigest()}" == digest
    return content


def test_the_wrapper_image_holds_the_program_under_all_its_names(tmp_path: Path, wrapper_server: Path) -> None:
    path = tmp_path / "image.tar"
    wrapper_server_image(wrapper_server).write_archive(path, "wrapper-server:test")
    with tarfile.open(path) as archive:
        index_file = archive.extractfile("index.json")
        assert index_file is not None
        index = cast(Json, json.load(index_file))
        manifest = cast(Json, json.loads(blob(archive, index["manifests"][0]["digest"])))
        config = cast(Json, json.loads(blob(archive, manifest["config"]["digest"])))
        layer = gzip.decompress(blob(archive, manifest["layers"][0]["digest"]))
    assert config["config"]["User"] == "65532:65532"
    assert config["config"]["Entrypoint"] == ["/wrapper-server/wrapper-server"]
    assert config["architecture"] == "amd64"
    assert config["rootfs"]["diff_ids"] == [f"sha256:{hashlib.sha256(layer).hexdigest()}"]
    root = tmp_path / "root"
    root.mkdir()
    subprocess.run(["tar", "--extract", f"--directory={root}"], input=layer, check=True, timeout=30)
    files = sorted(str(file.relative_to(root)) for file in root.rglob("*") if not file.is_dir())
    assert files == [
        "bin/cp",
        "home/nonroot/wrapper-server/grpc-health-probe",
        "home/nonroot/wrapper-server/wrapper-server",
        "wrapper-server/grpc-health-probe",
        "wrapper-server/wrapper-server",
    ]
    for name in files:
        assert (root / name).read_bytes() == wrapper_server.read_bytes()
        assert (root / name).stat().st_mode & 0o777 == 0o755
    assert (root / "bin/cp").stat().st_ino == (root / "wrapper-server/wrapper-server").stat().st_ino


def test_two_builds_are_the_same_to_the_byte(tmp_path: Path, wrapper_server: Path) -> None:
    for name in ("one", "two"):
        wrapper_server_image(wrapper_server).write_archive(tmp_path / name, "wrapper-server:test")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
