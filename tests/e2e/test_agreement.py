"""The embedded functions and the catalog's own programs, on the same inputs: see agreement/README.md."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.agreement.cases import inputs
from support.machine import ROOT, missing

CLAIMED = {"set-namespace": ("v0.4.1", "v0.4.5")}
CATALOG = "ghcr.io/kptdev/krm-functions-catalog/"
FORMERLY = "gcr.io/kpt-fn/"
LAST_FORMER = "set-namespace:v0.4.1"
"""The catalog moved, with its tags; this version has a name of before."""
EXPLAINED = {
    "order": "the catalog's sorts the resources; ours leaves them where they are",
    "comments": "the catalog's loses comments of the list itself and, v0.4.1, of subjects; ours keeps all",
    "crash": "the catalog's crashes (exit code 2, no output); ours reports an error, or works",
}
CRASHED = 2
_OLD_NAMES = re.compile(r'(?<=^namespace )".*"(?= updated to )')


class _Loader(yaml.CSafeLoader):
    """Reads YAML as kpt does: yes, no, on and off are text."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":bool") or first in "tTfF"]
    for first, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


class Outcome:
    """How a function ended, and what it wrote."""

    def __init__(self, code: int, text: str) -> None:
        self.code = code
        self.text = text
        self.comments = Counter(re.findall(r"#.*", text))
        document: dict[str, Any] = yaml.load(text, Loader=_Loader) or {}
        self.config: dict[str, Any] = document.get("functionConfig") or {}
        self.items = [json.dumps(item, sort_keys=True) for item in document.get("items") or ()]
        self.results: list[dict[str, Any]] = document.get("results") or []
        for result in self.results:
            # v0.4.1 of the catalog's names the old namespaces in a random order.
            result["message"] = _OLD_NAMES.sub(lambda names: ",".join(sorted(names[0].split(","))), result["message"])


def run(function: Path, text: str) -> Outcome:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        [function], input=text.encode(), capture_output=True, timeout=60, check=False, env=os.environ | {"PATH": path}
    )
    return Outcome(done.returncode, done.stdout.decode())


def differences(ours: Outcome, theirs: Outcome) -> set[str]:
    """In what two outcomes differ; what they write to stderr, and how YAML is laid out, is not looked at."""
    if theirs.code == CRASHED and not theirs.text:
        return {"crash"} if ours.text else {"it writes nothing, either"}
    found: set[str] = set()
    if ours.code != theirs.code:
        found.add(f"exit code {ours.code} instead of {theirs.code}")
    if ours.results != theirs.results:
        found.add(f"results {ours.results} instead of {theirs.results}")
    if ours.config != theirs.config:
        found.add("another functionConfig")
    if sorted(ours.items) != sorted(theirs.items):
        found.add(f"resources {ours.items} instead of {theirs.items}")
    elif ours.items != theirs.items:
        found.add("order")
    if lost := theirs.comments - ours.comments:
        found.add(f"without the comments {list(lost)}")
    elif ours.comments != theirs.comments:
        found.add("comments")
    return found


def test_the_configuration_claims_what_is_compared_here() -> None:
    named = {f"{CATALOG}{function}:{version}" for function, versions in CLAIMED.items() for version in versions}
    named.add(FORMERLY + LAST_FORMER)
    entries = yaml.safe_load((ROOT / "config.yaml").read_text())["functions"]
    claimed = {image for entry in entries for image in entry["images"] if not image.startswith("krm-runner/")}
    assert claimed == named
    for entry in entries:
        tags = {image.rpartition(":")[2] for image in entry["images"]}
        assert len(tags) == 1, "an executable has the behavior of one version"
        assert entry["function"] == f"set-namespace-{tags.pop()}" or not claimed.intersection(entry["images"])


@pytest.mark.parametrize("version", CLAIMED["set-namespace"])
def test_the_same_input_gives_the_same_result(version: str) -> None:
    if shutil.which("go") is None:
        missing("no Go toolchain: cannot build the catalog's set-namespace")
    directory = ROOT / ".cache" / "catalog"
    subprocess.run(["sh", ROOT / "bench" / "catalog.sh", directory, "set-namespace"], check=True, timeout=900)
    name = f"set-namespace-{version}"

    def compare(case: tuple[str, str]) -> tuple[str, set[str]]:
        reason, text = case
        return reason, differences(run(ROOT / "functions" / name, text), run(directory / name, text))

    with ThreadPoolExecutor(os.cpu_count()) as executor:
        found = dict(executor.map(compare, inputs()))
    unexplained = {reason: odd for reason, kinds in found.items() if (odd := kinds - EXPLAINED.keys())}
    assert unexplained == {}
    counts = [sum(kind in kinds for kinds in found.values()) for kind in EXPLAINED]
    same = sum(not kinds for kinds in found.values())
    row = f"| set-namespace | {version} | {' | '.join(str(number) for number in (len(found), same, *counts))} | 0 |"
    assert row in (ROOT / "docs" / "functions.md").read_text(), f"docs/functions.md does not have the row {row}"
