"""A stock Go client with nothing but reflection: no proto file, no code of ours."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.machine import ROOT
from support.runner import RunnerProcess


@pytest.fixture(scope="module")
def runner() -> Iterator[RunnerProcess]:
    with RunnerProcess(
        f"--functions={ROOT / 'functions'}",
        f"--config={ROOT / 'config.yaml'}",
        environment={"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    ) as started:
        yield started


def call(grpcurl: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [grpcurl, "-plaintext", *arguments], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


def test_services_are_listed_and_described(grpcurl: Path, runner: RunnerProcess) -> None:
    assert call(grpcurl, runner.address, "list").stdout.split() == [
        "evaluator.FunctionEvaluator",
        "grpc.health.v1.Health",
        "grpc.reflection.v1.ServerReflection",
        "grpc.reflection.v1alpha.ServerReflection",
    ]
    described = call(grpcurl, runner.address, "describe", "evaluator.EvaluateFunctionRequest").stdout
    assert "bytes resource_list = 1;" in described
    assert "string image = 2;" in described


def test_health(grpcurl: Path, runner: RunnerProcess) -> None:
    answer = call(grpcurl, runner.address, "grpc.health.v1.Health/Check")
    assert json.loads(answer.stdout) == {"status": "SERVING"}
    unknown = call(grpcurl, "-d", '{"service": "x"}', runner.address, "grpc.health.v1.Health/Check")
    assert "Code: NotFound" in unknown.stderr


def test_a_function_is_evaluated(grpcurl: Path, runner: RunnerProcess) -> None:
    example = (ROOT / "examples" / "resource-list.yaml").read_bytes()
    request = {"image": "set-namespace:v0.4.1", "resource_list": base64.b64encode(example).decode()}
    answer = call(
        grpcurl, "-d", "@", runner.address, "evaluator.FunctionEvaluator/EvaluateFunction", stdin=json.dumps(request)
    )
    assert answer.returncode == 0, answer.stderr
    (encoded,) = (value for key, value in json.loads(answer.stdout).items() if key.lower().startswith("resource"))
    items, results = base64.b64decode(encoded).decode().split("results:\n")
    assert items.count("namespace: staging") == 3
    assert 'namespace [default] updated to "staging", 2 value(s) changed' in results


def test_an_error_has_its_code_message_and_details(grpcurl: Path, runner: RunnerProcess) -> None:
    answer = call(
        grpcurl, "-d", '{"image": "no-such-function"}', runner.address, "evaluator.FunctionEvaluator/EvaluateFunction"
    )
    assert "Code: NotFound" in answer.stderr
    assert 'Message: function "no-such-function" not found' in answer.stderr
    assert '"reason": "FUNCTION_NOT_FOUND"' in answer.stderr
