"""DIRECTORY: packs the wrapper server there for --wrapper-delivery=config-map, as wrapper-server-packed beside it.

The loader, padded; the sizes of the server and of what it is packed to; the server, compressed (deflate). The runner
splits that over ConfigMaps; in one piece it is a program, too. The same server and loader give the same file.
"""

from __future__ import annotations

import os
import struct
import sys
import zlib
from pathlib import Path

LOADER_SIZE = 64 * 1024
"""The same number is in loader/src/main.rs."""


def pack(loader: bytes, server: bytes) -> bytes:
    """The packed server."""
    if len(loader) > LOADER_SIZE:
        sys.exit(f"pack: the loader has {len(loader)} bytes, more than the {LOADER_SIZE} that there is room for")
    compressor = zlib.compressobj(level=9, wbits=-15, memLevel=9)
    packed = compressor.compress(server) + compressor.flush()
    return loader.ljust(LOADER_SIZE, b"\0") + struct.pack("<II", len(server), len(packed)) + packed


def main(directory: Path) -> None:
    """Write it beside the server."""
    content = pack((directory / "wrapper-server-loader").read_bytes(), (directory / "wrapper-server").read_bytes())
    # Not written onto itself: the program may be running.
    new = directory / "wrapper-server-packed.new"
    new.write_bytes(content)
    new.chmod(0o755)
    os.replace(new, directory / "wrapper-server-packed")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
