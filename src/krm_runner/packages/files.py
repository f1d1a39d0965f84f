"""The files of a package, as texts cut into YAML documents. Nothing here changes a file.

A package's resources are the documents of its `*.yaml` and `*.yml` files that have an apiVersion and a kind, in all
folders but hidden ones. A Kptfile describes the package itself and is left out unless it is asked for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from krm_function.document import Document
from krm_runner.core.errors import ConfigurationError

META_FILES = frozenset({"Kptfile"})
_SUFFIXES = (".yaml", ".yml")
_DIRECTIVE = r"%[^\n]*\n(?:[ \t]*(?:#[^\n]*|\r)?\n)*"
_SEPARATOR = re.compile(rf"^(?:{_DIRECTIVE})*---(?:[ \t]+(?=[^\s#])|[ \t]*(?:#[^\n]*)?(?:\r?\n|\Z))", re.MULTILINE)
"""With the directives before it; a document may begin on its line."""
_TAG_DIRECTIVE = re.compile(r"^%TAG\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class PackageDocument:
    """One document: its text, and the separator before it (empty for the first one, most of the time)."""

    separator: str
    text: str
    is_resource: bool


@dataclass(frozen=True, slots=True)
class PackageFile:
    """One file, by its path in the package."""

    path: str
    text: str
    documents: tuple[PackageDocument, ...]


def read_package(folder: Path, *, include_meta: bool, progress: Callable[[int, int], None]) -> list[PackageFile]:
    """All files of the package; ConfigurationError names the file that cannot be read."""
    if not folder.is_dir():
        raise ConfigurationError(f"{folder} is not a folder; name a package folder, or - for a ResourceList on stdin")
    paths = sorted(_resource_files(folder, include_meta=include_meta))
    files: list[PackageFile] = []
    for number, path in enumerate(paths, 1):
        files.append(_read_file(folder, path))
        progress(number, len(paths))
    return files


def _resource_files(folder: Path, *, include_meta: bool) -> Iterator[str]:
    for directory, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in names:
            if name.endswith(_SUFFIXES) or (include_meta and name in META_FILES):
                yield (Path(directory) / name).relative_to(folder).as_posix()


def _read_file(folder: Path, path: str) -> PackageFile:
    try:
        with (folder / path).open(encoding="utf-8", newline="") as file:
            text = file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"cannot read {folder / path}: {error}") from error
    return PackageFile(path, text, tuple(_split(text, f"{folder / path}")))


def _split(text: str, source: str) -> Iterator[PackageDocument]:
    mark = "\ufeff" if text.startswith("\ufeff") else ""
    text = text.removeprefix(mark)
    separator, start = "", 0
    for found in [*_SEPARATOR.finditer(text), None]:
        end = len(text) if found is None else found.start()
        document = text[start:end]
        if document or separator:
            yield PackageDocument(mark + separator, document, _is_resource(document, source))
            mark = ""
        if found is None:
            return
        separator, start = found.group(), found.end()
        if _TAG_DIRECTIVE.search(separator):
            raise ConfigurationError(f"{source}: a %TAG directive; no KRM function could be told what it means")


def _is_resource(text: str, source: str) -> bool:
    if not text.strip():
        return False
    try:
        root = Document(text).root
    except ValueError:
        return False
    except yaml.YAMLError as error:
        raise ConfigurationError(f"{source}: not valid YAML: {' '.join(str(error).split())}") from error
    return isinstance(root.get("apiVersion"), str) and isinstance(root.get("kind"), str)
