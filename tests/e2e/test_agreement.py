"""The embedded set-namespace and the catalog's own, on the same packages: see agreement/README.md."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.machine import ROOT, missing

PACKAGES = sorted((Path(__file__).parent / "agreement").glob("*.yaml"))


@pytest.fixture(scope="session")
def catalog_set_namespace() -> Path:
    if shutil.which("go") is None:
        missing("no Go toolchain: cannot build the catalog's set-namespace")
    directory = ROOT / ".cache" / "catalog"
    subprocess.run(["sh", ROOT / "bench" / "catalog.sh", directory, "set-namespace"], check=True, timeout=900)
    return directory / "set-namespace-v0.4.5"


def run(function: Path, package: Path) -> tuple[int, dict[str, Any], str]:
    done = subprocess.run(
        [function],
        input=package.read_bytes(),
        capture_output=True,
        timeout=60,
        check=False,
        env=os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    return done.returncode, yaml.safe_load(done.stdout), done.stdout.decode()


def resources(document: dict[str, Any]) -> list[str]:
    """Without an order: the catalog sorts them."""
    items: list[Any] = document.get("items") or []
    return sorted(yaml.safe_dump(item) for item in items)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda path: path.stem)
def test_the_same_package_gives_the_same_result(catalog_set_namespace: Path, package: Path) -> None:
    ours_code, ours, ours_text = run(ROOT / "functions" / "set-namespace", package)
    theirs_code, theirs, theirs_text = run(catalog_set_namespace, package)
    assert resources(ours) == resources(theirs)
    assert sorted(re.findall(r"#.*", ours_text)) == sorted(re.findall(r"#.*", theirs_text))
    told = [(result["message"], result["severity"]) for result in ours["results"]]
    expected = [(result["message"], result["severity"]) for result in theirs["results"]]
    assert told[: len(expected)] == expected
    # The one difference: a config that makes no sense makes ours fail, where the catalog's reports it and passes.
    failed = any(severity == "error" for _, severity in expected)
    assert (ours_code, theirs_code) == (int(failed), 0)
