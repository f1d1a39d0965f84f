"""Files as the kubelet mounts a Secret: links into a directory that is exchanged at once."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path


class SecretVolume:
    """In a directory; `put` replaces all of it."""

    def __init__(self, directory: Path, **files: bytes | Path) -> None:
        self.directory = directory
        self._versions = count(1)
        directory.mkdir(parents=True)
        self.put(**files)

    def put(self, **files: bytes | Path) -> None:
        """Names have _ for a dot."""
        version = self.directory / f"..{next(self._versions)}"
        version.mkdir()
        for name, content in files.items():
            written = content.read_bytes() if isinstance(content, Path) else content
            (version / name.replace("_", ".")).write_bytes(written)
            link = self.directory / name.replace("_", ".")
            if not link.is_symlink():
                link.symlink_to(f"..data/{link.name}")
        temporary = self.directory / "..data_tmp"
        temporary.symlink_to(version.name)
        os.replace(temporary, self.directory / "..data")

    def __getitem__(self, name: str) -> Path:
        return self.directory / name
