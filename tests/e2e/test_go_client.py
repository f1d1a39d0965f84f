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

from integration.conftest import Installation
from support.certificates import Authority
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
    assert 'namespace "","default" updated to "staging", 2 value(s) changed' in results


def test_an_error_has_its_code_message_and_details(grpcurl: Path, runner: RunnerProcess) -> None:
    answer = call(
        grpcurl, "-d", '{"image": "no-such-function"}', runner.address, "evaluator.FunctionEvaluator/EvaluateFunction"
    )
    assert "Code: NotFound" in answer.stderr
    assert 'Message: function "no-such-function" not found' in answer.stderr
    assert '"reason": "FUNCTION_NOT_FOUND"' in answer.stderr


def test_a_stock_client_with_a_certificate_and_a_token(grpcurl: Path, fronted: Installation, tmp_path: Path) -> None:
    image = fronted.add("copy", "#!/bin/sh\nexec cat\n")
    authority = Authority(tmp_path / "ca")
    (certificate, key), (own, own_key) = authority.sign("runner"), authority.sign("caller", usage="clientAuth")
    (tmp_path / "tokens").write_text("dGhlIHRva2VuIG9mIGEgdGVzdA==\n")
    runner = fronted.start(
        f"--tls-cert-file={certificate}", f"--tls-key-file={key}", f"--tls-client-ca-file={authority.certificate}",
        f"--auth-token-file={tmp_path / 'tokens'}",
    )  # fmt: skip
    trust, identity = ["-cacert", str(authority.certificate)], ["-cert", str(own), "-key", str(own_key)]
    token = ["-H", "authorization: Bearer dGhlIHRva2VuIG9mIGEgdGVzdA=="]
    request = json.dumps({"image": image, "resource_list": base64.b64encode(b"x" * 2_000_000).decode()})

    def secured(*arguments: str) -> subprocess.CompletedProcess[str]:
        method = "evaluator.FunctionEvaluator/EvaluateFunction"
        return subprocess.run(
            [grpcurl, *arguments, "-d", "@", runner.address, method],
            input=request, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    # The function answers what is no ResourceList: that it was called at all is the point here.
    assert "its output is not a ResourceList" in secured(*trust, *identity, *token).stderr
    without = secured(*trust, *identity)
    assert "Code: Unauthenticated" in without.stderr
    assert "the call has no token" in without.stderr
    assert "Failed to dial target host" in secured(*trust, *token).stderr
