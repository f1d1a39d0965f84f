"""Bugs that a test puts into a runner: they are what supervision is for, and there is no other way to have one."""

from __future__ import annotations

import os
from pathlib import Path


def with_defect(directory: Path, patch: str) -> dict[str, str]:
    """The environment of a runner whose code is changed before it starts."""
    (directory / "sitecustomize.py").write_text(patch)
    return {"PYTHONPATH": os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")])}
