"""What the benchmarks measure does what it is measured for."""

from __future__ import annotations

import subprocess

import yaml

from bench import inputs
from support.machine import ROOT
from support.tools import need


def test_the_function_in_javascript_sets_namespaces_and_nothing_else() -> None:
    need("node")
    given = inputs.generated(2_000, inputs.SET_NAMESPACE_CONFIG)
    script = ROOT / "bench" / "set-namespace.js"
    answer = subprocess.run([script], input=given, capture_output=True, timeout=60, check=True).stdout
    wanted = yaml.safe_load(given)
    assert wanted["items"]
    for item in wanted["items"]:
        item["metadata"]["namespace"] = "staging"
    assert yaml.safe_load(answer) == wanted


def test_without_a_config_it_fails() -> None:
    need("node")
    script = ROOT / "bench" / "set-namespace.js"
    done = subprocess.run([script], input=inputs.generated(2_000), capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"no namespace" in done.stderr
