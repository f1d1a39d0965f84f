"""What the benchmarks measure does what it is measured for."""

from __future__ import annotations

import shutil
import subprocess

import pytest
import yaml

from bench import inputs
from support.machine import ROOT


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js")
def test_the_function_in_javascript_sets_namespaces_and_nothing_else() -> None:
    given = inputs.generated(2_000, inputs.SET_NAMESPACE_CONFIG)
    script = ROOT / "bench" / "set-namespace.js"
    answer = subprocess.run([script], input=given, capture_output=True, timeout=60, check=True).stdout
    wanted = yaml.safe_load(given)
    assert wanted["items"]
    for item in wanted["items"]:
        item["metadata"]["namespace"] = "staging"
    assert yaml.safe_load(answer) == wanted


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js")
def test_without_a_config_it_fails() -> None:
    script = ROOT / "bench" / "set-namespace.js"
    done = subprocess.run([script], input=inputs.generated(2_000), capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"no namespace" in done.stderr
