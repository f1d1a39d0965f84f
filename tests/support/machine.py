"""What tests need of the machine they run on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = ROOT / "build" / "programs" / "ci"
"""The programs in Rust that are tested."""


def missing(what: str) -> NoReturn:
    """Outside CI the test is skipped with this line; in CI nothing is skipped."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}: must not be missing in CI")
    pytest.skip(what)
