"""What the end-to-end tests need of the machine; what is missing fails in CI and is skipped elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from integration.conftest import Installation
from support.machine import ROOT, missing

TOOLS = ROOT / ".cache" / "tools"
GRPCURL = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3"


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    with ExitStack() as stack:
        yield Installation(tmp_path, stack)


@pytest.fixture(scope="session")
def grpcurl() -> Path:
    """A stock client in Go, built from its module once."""
    if shutil.which("go") is None:
        missing("no Go toolchain: cannot build grpcurl")
    binary = TOOLS / "grpcurl"
    if not binary.exists():
        subprocess.run(["go", "install", GRPCURL], check=True, timeout=900, env=os.environ | {"GOBIN": str(TOOLS)})
    return binary
