"""Writes the images as OCI archives: build/images/NAME.tar. Tools such as skopeo, crane, ctr and podman read them."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from images.oci import Image, Link, SameAs, single_layer

ROOT = Path(__file__).parent.parent
OUTPUT = ROOT / "build" / "images"
WRAPPER = ROOT / "wrapper" / "target" / "release" / "wrapper-server"
NONROOT = "65532"

_ELF_MACHINE = slice(18, 20)
_ARCHITECTURES = {b"\x3e\x00": "amd64", b"\xb7\x00": "arm64"}


def version() -> str:
    """The wrapper server's own."""
    package = tomllib.loads((ROOT / "wrapper" / "Cargo.toml").read_text())["package"]
    return str(package["version"])


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


def main() -> None:
    """Write them all."""
    if not WRAPPER.exists():
        sys.exit("images: the wrapper server is not built: make wrapper")
    image = wrapper_server_image()
    archive = OUTPUT / "wrapper-server.tar"
    image.write_archive(archive, f"krm-runner/wrapper-server:{version()}")
    print(f"{archive.relative_to(ROOT)}  {image.architecture}  {image.digest}  {archive.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
