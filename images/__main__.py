"""Writes the images as OCI archives with what they are made of: build/images/NAME.tar and NAME.cdx.json.

Tools such as skopeo, crane, ctr and podman read them. `--root DIRECTORY` writes the files of the runner's image into a
directory instead: that is how its Dockerfile builds it.
"""

from __future__ import annotations

import os
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

from cyclonedx.model.component import Component

from images import function_runner, sbom
from images.debian import PackageError
from images.oci import Image, Link, SameAs, single_layer

ROOT = Path(__file__).parent.parent
OUTPUT = ROOT / "build" / "images"
PROGRAMS = ROOT / "build" / "programs" / "release"
WRAPPER, FRONT = PROGRAMS / "wrapper-server", PROGRAMS / "krm-front"
NONROOT = "65532"

_ELF_MACHINE = slice(18, 20)
_ARCHITECTURES = {b"\x3e\x00": "amd64", b"\xb7\x00": "arm64"}


def cache_directory() -> Path:
    """What was fetched is kept here."""
    return Path(os.environ.get("KRM_IMAGE_CACHE") or Path.home() / ".cache" / "krm-runner" / "images")


def version() -> str:
    """Of the programs in Rust."""
    workspace = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]
    return str(workspace["package"]["version"])


def wrapper_server_image(program: Path = WRAPPER) -> Image:
    """One static program under all the names that pod templates know; see wrapper-server/Dockerfile."""
    content = program.read_bytes()
    here, newer = "/wrapper-server", "/home/nonroot/wrapper-server"
    layer = single_layer(
        {
            # Of the same file the first one in the alphabet holds the content.
            "/bin/cp": content,
            f"{newer}/wrapper-server": SameAs("/bin/cp"),
            f"{newer}/grpc-health-probe": Link("wrapper-server"),
            f"{here}/wrapper-server": SameAs("/bin/cp"),
            f"{here}/grpc-health-probe": Link("wrapper-server"),
        },
        has_tmp=False,
    )
    return Image(
        (layer,),
        entrypoint=(f"{here}/wrapper-server",),
        user=f"{NONROOT}:{NONROOT}",
        environment=("PATH=/bin:/wrapper-server",),
        labels=(
            ("org.opencontainers.image.title", "wrapper-server"),
            ("org.opencontainers.image.description", "Serves one KRM function over gRPC inside its own image"),
            ("org.opencontainers.image.licenses", "Apache-2.0"),
            ("org.opencontainers.image.version", version()),
        ),
        architecture=_ARCHITECTURES[content[_ELF_MACHINE]],
    )


def main(argv: Sequence[str]) -> None:
    """Write them all."""
    programs = function_runner.Programs(wrapper=WRAPPER, front=FRONT)
    if programs.missing:
        names = ", ".join(path.name for path in programs.missing)
        sys.exit(f"images: {names} not built: make programs")
    try:
        if argv[:1] == ["--root"] and len(argv) == 2:
            function_runner.stage(function_runner.files(programs, cache_directory()), Path(argv[1]))
            return
        if argv:
            sys.exit("images: the only argument is --root DIRECTORY")
        parts = function_runner.build(programs, cache_directory())
    except PackageError as error:
        sys.exit(f"images: {error}")
    _write("wrapper-server", wrapper_server_image(), version(), sbom.wrapper_crates())
    _write("function-runner", parts.image, function_runner.version(), function_runner_components(parts))


def function_runner_components(parts: function_runner.Parts) -> list[Component]:
    """Everything that the runner's image holds."""
    return [
        sbom.service(function_runner.version()),
        *sbom.debian_components(parts.packages),
        *sbom.python_components(parts.wheels),
        *sbom.runner_crates(),
    ]


def _write(name: str, image: Image, stamp: str, components: list[Component]) -> None:
    archive = OUTPUT / f"{name}.tar"
    image.write_archive(archive, f"krm-runner/{name}:{stamp}")
    sbom.write(OUTPUT / f"{name}.cdx.json", image, name=name, version=stamp, components=components)
    print(f"{archive.relative_to(ROOT)}  {image.architecture}  {image.digest}  {archive.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main(sys.argv[1:])
