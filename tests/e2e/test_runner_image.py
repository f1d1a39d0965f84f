"""The runner's image: what is in it, that it is reproducible, and that it serves from a read-only root as nobody."""

from __future__ import annotations

import json
import os
import re
import urllib.request
import warnings
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from images import function_runner, sbom
from images.__main__ import function_runner_components
from images.debian import PACKAGES, read_lock, sort_key
from images.function_runner import ENTRYPOINT, ENVIRONMENT, LABELS, NONROOT, Parts
from support.client import Client
from support.machine import ROOT
from support.processes import eventually
from support.runner_image import built_runner_image, entered, run, unpack
from support.server import ServerProcess, free_port

IMAGE = "ghcr.io/kptdev/krm-functions-catalog/set-namespace:v0.4.1"
LIST = (ROOT / "examples" / "resource-list.yaml").read_bytes()
# The Deployment of the specification, as it is written there.
SEED_ARGUMENTS = (
    "--log-level=2", "--pod-namespace=porch-fn-system", "--pod-ttl=30m", "--scan-interval=1m",
    "--warm-up-pod-cache=true", "--max-request-body-size=6291456",
)  # fmt: skip


@pytest.fixture(scope="module")
def parts() -> Parts:
    return built_runner_image()


@pytest.fixture(scope="module")
def root(parts: Parts, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(parts, tmp_path_factory.mktemp("image"))


def test_two_builds_have_the_same_digest(parts: Parts) -> None:
    assert built_runner_image().image.digest == parts.image.digest


def test_it_says_what_it_is(parts: Parts) -> None:
    config = json.loads(parts.image.config)
    assert config["config"]["User"] == f"{NONROOT}:{NONROOT}"
    assert config["config"]["WorkingDir"] == "/"
    assert config["config"]["Entrypoint"] == ["function-runner"]
    assert config["config"]["Labels"]["org.opencontainers.image.version"] == function_runner.version()


def test_it_holds_no_shell_nothing_with_special_rights_and_nothing_that_others_may_write(root: Path) -> None:
    assert not [name for name in ("bin/sh", "usr/bin/sh", "bin/bash", "usr/bin/apt") if (root / name).exists()]
    for path in root.rglob("*"):
        if path.is_symlink() or path.relative_to(root).parts[0] in ("dev", "proc"):
            continue
        mode, owner = path.stat().st_mode, path.stat().st_uid
        assert (owner, mode & 0o6000) == (0, 0), path
        assert path == root / "tmp" or not mode & 0o022, path


def test_every_link_leads_somewhere(root: Path) -> None:
    for path in root.rglob("*"):
        if path.is_symlink():
            target = os.readlink(path)
            where = root / target.lstrip("/") if target.startswith("/") else path.parent / target
            assert where.exists() or where.is_symlink(), f"{path} → {target}"


def test_everything_that_is_needed_can_be_imported_without_writing(root: Path) -> None:
    done = run(root, "/usr/bin/python3", "-c", _IMPORT_ALL)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100, "certificates"


_IMPORT_ALL = """
import importlib, pkgutil, ssl, krm_runner, krm_function
for package in (krm_runner, krm_function):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
import opentelemetry.exporter.otlp.proto.grpc.trace_exporter, opentelemetry.exporter.otlp.proto.http.trace_exporter
import opentelemetry.exporter.prometheus
print(ssl.create_default_context().cert_store_stats()["x509_ca"])
"""


@pytest.mark.parametrize("name", ["function-runner", "/server", "/home/nonroot/server"])
def test_its_programs_start(root: Path, name: str) -> None:
    done = run(root, name, "--help")
    assert (done.returncode, "--pod-namespace" in done.stdout) == (0, True), done.stderr
    assert run(root, "krm-runner", "doctor", "--help").returncode == 0
    assert run(root, "krm-runner", "version").stdout == f"krm-runner {function_runner.version()}\n"


def test_byte_code_is_used(root: Path) -> None:
    done = run(root, "/usr/bin/python3", "-v", "-c", "import krm_runner.cli.serve")
    assert (done.returncode, "__pycache__" in done.stderr) == (0, True)
    compiled = [line for line in done.stderr.splitlines() if re.match(r"# code object from '.*\.py'", line)]
    assert not compiled, compiled[:3]


@pytest.mark.parametrize("user", [65532, 10001, 1234567])
async def test_it_serves_as_any_user_from_where_newer_manifests_look(root: Path, user: int) -> None:
    port, home = free_port(), "/home/nonroot"
    program = [f"{home}/server", f"--config={home}/config.yaml", f"--functions={home}/functions"]
    command = [*entered(root, user=user), *program, f"--port={port}", "--disable-runtimes=pod"]
    with ServerProcess(command, port=port, environment=dict(os.environ)):
        probe = run(root, f"{home}/grpc-health-probe", "-addr", f"localhost:{port}")
        assert probe.returncode == 0, probe.stderr
        async with Client(f"127.0.0.1:{port}") as client:
            assert (await client.evaluate(IMAGE, LIST)).code == "OK"


async def test_it_serves_its_functions_with_the_arguments_of_the_specification(root: Path) -> None:
    port, metrics = free_port(), free_port()
    # As the manifests have them.
    variables = ["OTEL_METRICS_EXPORTER=prometheus", f"OTEL_EXPORTER_PROMETHEUS_PORT={metrics}"]
    program = ["/usr/bin/env", *variables, *ENTRYPOINT]
    command = [*entered(root), *program, f"--port={port}", *SEED_ARGUMENTS, "--disable-runtimes=pod"]
    with ServerProcess(command, port=port, environment=dict(os.environ)):
        for address in (f"localhost:{port}", f"127.0.0.1:{port}"):
            probe = run(root, "/grpc-health-probe", "-addr", address)
            assert probe.returncode == 0, probe.stderr
        async with Client(f"127.0.0.1:{port}") as client:
            answer = await client.evaluate(IMAGE, LIST)

        def counted() -> bool:
            with urllib.request.urlopen(f"http://localhost:{metrics}/metrics", timeout=10) as page:
                return b"krm_runner_evaluations_total" in page.read()

        await eventually(counted, what="the call is counted")
    assert answer.code == "OK", answer.message
    assert b"kind: ResourceList" in answer.resource_list


def test_its_parts_list_is_valid_complete_and_reproducible(parts: Parts, tmp_path: Path) -> None:
    for name in ("one", "two"):
        sbom.write(
            tmp_path / name, parts.image, name="runner", version="1", components=function_runner_components(parts)
        )
    text = (tmp_path / "one").read_text()
    assert text == (tmp_path / "two").read_text()
    with warnings.catch_warnings():
        # jsonschema's own, about a format that it will drop.
        warnings.simplefilter("ignore", DeprecationWarning)
        assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    listed = {component["name"] for component in json.loads(text)["components"]}
    assert {*PACKAGES, "grpcio", "pyyaml", "tonic", "krm-runner"} <= listed
    assert "hatchling" not in listed


def test_scanners_find_the_packages(root: Path) -> None:
    assert {path.name for path in (root / "var/lib/dpkg/status.d").iterdir()} == set(PACKAGES)
    assert "Version: " in (root / "var/lib/dpkg/status.d/libssl3").read_text()


def test_the_lock_has_both_architectures() -> None:
    for architecture in ("amd64", "arm64"):
        packages = read_lock(architecture)
        assert [package.name for package in packages] == list(PACKAGES)


def test_versions_sort_as_debians() -> None:
    in_order = ["1.0~rc1-1", "1.0-1", "1.0-1+deb12u1", "1.0-1+deb12u7", "1.0-1+deb12u14", "1.0a-1", "1.10-1", "1:0.1-1"]
    shuffled = in_order[::-1]
    assert sorted(shuffled, key=sort_key) == in_order


def test_the_dockerfile_makes_the_same_image() -> None:
    """It runs the same program on the same files; what an image says of itself is compared."""
    text = (ROOT / "images" / "function-runner" / "Dockerfile").read_text()
    final = text.rpartition("FROM scratch")[2]
    assert re.findall(r"^COPY (.*)$", final, re.MULTILINE) == ["--from=build /image/ /"]
    assert re.findall(r"^ENV (.*)$", final, re.MULTILINE) == [" ".join(ENVIRONMENT)]
    assert f"USER {NONROOT}:{NONROOT}" in final
    assert f"ENTRYPOINT {json.dumps(list(ENTRYPOINT))}" in final
    assert f"ARG VERSION={function_runner.version()}\n" in final
    labels = dict(re.findall(r'(org\.opencontainers\.[a-z.]+)="([^"]*)"', final))
    assert labels == {**dict(LABELS), "org.opencontainers.image.version": "${VERSION}"}
    build = text.partition(" AS build")[2]
    copied = {word for line in re.findall(r"^COPY (?!--)(.*)$", build, re.MULTILINE) for word in line.split()[:-1]}
    assert copied == {
        "requirements",
        "pyproject.toml",
        "LICENSE",
        "config.yaml",
        "src",
        "functions",
        "images",
    }
    assert "RUN python -m images --root /image" in build
