"""What the end-to-end tests need of the machine; what is missing fails in CI and is skipped elsewhere."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from cluster.api_only import ApiServer
from cluster.layout import Layout
from integration.conftest import Installation
from support.machine import ROOT, missing

TOOLS = ROOT / ".cache" / "tools"
GRPCURL = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3"


@pytest.fixture
def installation(tmp_path: Path) -> Iterator[Installation]:
    with ExitStack() as stack:
        yield Installation(tmp_path, stack)


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layout]:
    """A real API server of the tests' own, without nodes."""
    server = ApiServer(tmp_path_factory.mktemp("api") / "server")
    if not server.layout.kube.exists():
        missing("Kubernetes is not built: `make cluster-up` does it, once")
    with server:
        yield server.layout


@pytest.fixture(scope="session")
def grpcurl() -> Path:
    """A stock client in Go, built from its module once."""
    if shutil.which("go") is None:
        missing("no Go toolchain: cannot build grpcurl")
    binary = TOOLS / "grpcurl"
    if not binary.exists():
        subprocess.run(["go", "install", GRPCURL], check=True, timeout=900, env=os.environ | {"GOBIN": str(TOOLS)})
    return binary
