"""Programs in Go that the tests use, each built once from its module, statically: helm, and a stock gRPC client.

`python -m support.go_tools` builds them all, while package registries are in reach.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from support.machine import missing

HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
GRPCURL = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3"


def go_tool(module: str) -> Path:
    """The program of a module."""
    path, _, version = module.rpartition("@")
    name = path.rpartition("/")[2]
    directory = Path.home() / ".cache" / "krm-runner" / "tools" / f"{name}-{version}"
    if not (directory / name).exists():
        if shutil.which("go") is None:
            missing(f"no Go toolchain: cannot build {name}")
        staged = directory.with_suffix(f".{os.getpid()}")
        variables = os.environ | {"GOBIN": str(staged), "CGO_ENABLED": "0"}
        command = ["nice", "go", "install", "-trimpath", "-ldflags=-s -w", module]
        subprocess.run(command, check=True, timeout=1800, env=variables)
        directory.mkdir(parents=True, exist_ok=True)
        (staged / name).rename(directory / name)
        staged.rmdir()
    return directory / name


if __name__ == "__main__":
    for each in (HELM, GRPCURL):
        go_tool(each)
