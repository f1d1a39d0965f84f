"""The suite itself: what it prints of a failed test, and what it does on somebody else's cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from cluster.full import FullCluster
from cluster.layout import OPEN
from support import function_images
from support.kube import wait_until
from support.machine import ROOT
from support.namespace import Namespace
from support.push import Push

FAILING = """
from support import function_images
from support.namespace import phase

def test_fails(namespace, push):
    namespace.run("speaks", push("speaks", function_images.shell("echo famous last words")))
    namespace.wait_for_pod("speaks", lambda pod: phase(pod) == "Succeeded", what="ends")
    assert False
"""


def run_tests(*arguments: str | Path, **environment: str) -> str:
    """Another pytest, in this network."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-ra", "-p", "no:cacheprovider", *arguments],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stdout + done.stderr


def test_a_failed_test_prints_events_statuses_and_logs(sealed: FullCluster, tmp_path: Path) -> None:
    (tmp_path / "test_failing.py").write_text(FAILING)
    printed = run_tests("-p", "e2e.cluster.conftest", "--rootdir", ROOT, "-c", ROOT / "pyproject.toml", tmp_path)
    assert "1 failed" in printed
    assert "Pod/speaks Started: Started container main" in printed
    assert "--- pod speaks: Succeeded" in printed
    assert "  | famous last words" in printed


def test_a_description_of_a_pod_without_a_log(namespace: Namespace, push: Push) -> None:
    namespace.run("waits", push("shell", function_images.shell("true")), pod={"nodeSelector": {"no": "such-node"}})
    namespace.wait_for_pod("waits", lambda pod: "Unschedulable" in str(pod["status"]), what="is unschedulable")
    wait_until(lambda: bool(namespace.events(reason="FailedScheduling")), what="the event is there")
    described = namespace.describe()
    assert "--- pod waits: Pending" in described
    assert "Pod/waits FailedScheduling: 0/1 nodes are available" in described


def test_another_cluster_is_used_and_what_it_cannot_do_is_said(sealed: FullCluster) -> None:
    """Ours, taken for another one."""
    printed = run_tests(
        "tests/e2e/cluster/test_pods.py::test_an_init_container_prepares_a_volume",
        "tests/e2e/cluster/test_registries.py::test_an_open_registry",
        "tests/e2e/cluster/test_access.py::test_what_is_not_granted_is_denied",
        KRM_TEST_KUBECONFIG=str(sealed.layout.kubeconfig()),
        KRM_TEST_REGISTRY=f"{OPEN.address}/test-of-another-cluster",
    )
    assert "1 passed, 3 skipped" in printed
    reasons = re.findall(
        r"SKIPPED \[1\] \S+ (\S+) cannot be tested on the cluster of KRM_TEST_KUBECONFIG: \w+", printed
    )
    assert sorted(reasons) == [
        "test_an_open_registry[registry-open-tls]",
        "test_an_open_registry[registry-open]",
        "test_what_is_not_granted_is_denied",
    ]


def test_another_cluster_without_a_registry(sealed: FullCluster) -> None:
    printed = run_tests(
        "tests/e2e/cluster/test_registries.py::test_a_tag_can_move",
        KRM_TEST_KUBECONFIG=str(sealed.layout.kubeconfig()),
        KRM_TEST_REGISTRY="",
    )
    assert "1 skipped" in printed
    assert "KRM_TEST_REGISTRY names no registry that it pulls from" in printed
