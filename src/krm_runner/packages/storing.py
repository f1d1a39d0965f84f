"""Writing changes to disk: all of them or none.

New texts are written beside their files first; only when all of them are there do they take their places, one rename
each. Whatever fails before that leaves the package as it was.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

from krm_runner.core.errors import ConfigurationError
from krm_runner.packages.files import PackageFile
from krm_runner.packages.unwrapping import Changes


def store(folder: Path, changes: Changes, *, progress: Callable[[int, int], None]) -> None:
    """Write the changes into the package; ConfigurationError when that is not possible, with nothing changed."""
    staged: list[tuple[str, Path]] = []
    total = len(changes.written)
    try:
        for number, (path, text) in enumerate(changes.written.items(), 1):
            target = (folder / path).resolve()
            if not target.is_relative_to(folder.resolve()) and not (folder / path).is_symlink():
                raise ConfigurationError(f"{path} is outside of the package")
            if target.is_dir():
                raise ConfigurationError(f"{path} is a folder; nothing was changed")
            target.parent.mkdir(parents=True, exist_ok=True)
            staged.append((_stage(target, text), target))
            progress(number, total)
    except BaseException as error:
        for temporary, _ in staged:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        if isinstance(error, OSError):
            raise ConfigurationError(f"cannot write to {folder}: {error}; nothing was changed") from error
        raise
    try:
        for temporary, target in staged:
            os.replace(temporary, target)
        for path in changes.deleted:
            (folder / path).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigurationError(f"{folder} was written only in part: {error}") from error


def check_is_new(folder: Path) -> None:
    """ConfigurationError when something is there already."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigurationError(f"{folder} is there already; --output takes a new folder")


def store_as_new(folder: Path, files: Iterable[PackageFile], changes: Changes) -> None:
    """Write the whole package, changes included, to a folder that is not there yet or is empty."""
    check_is_new(folder)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {file.path: file.text for file in files if file.path not in changes.deleted} | changes.written
    store(folder, Changes(texts), progress=lambda _done, _all: None)


def _stage(target: Path, text: str) -> str:
    """The text in a file beside its target, with the target's mode."""
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        mode = target.stat().st_mode & 0o7777 if target.exists() else 0o666 & ~_umask()
        os.fchmod(descriptor, mode)
        with os.fdopen(descriptor, "w", encoding="utf-8", newline="") as file:
            file.write(text)
    except BaseException:
        os.unlink(temporary)
        raise
    return temporary


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current
