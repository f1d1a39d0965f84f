"""`krm-runner doctor` on a real API server with RBAC: the base manifests as they are, and with one thing wrong."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from cluster.layout import KUBERNETES_VERSION, Layout
from integration.conftest import Installation
from krm_runner.app.doctor import examine
from krm_runner.cli.doctor import runner_arguments
from krm_runner.core.errors import KubernetesForbiddenError
from krm_runner.core.finding import Finding, State
from krm_runner.core.rights import FUNCTION_CONFIGS, RIGHTS, Need, Place, Right
from krm_runner.kube.client import KubeClient, find_cluster
from krm_runner.settings.doctor import parse_doctor_settings
from support.function_configs import KIND
from support.installation import BaseInstallation
from support.machine import ROOT
from support.server import free_port

TEMPLATE = "kpt-function-eval-pod-template"
ACCOUNT = "porch-fn-runner"
COPY = "#!/bin/sh\ncat\n"
BASE_NEEDS = (Need.ALWAYS, Need.TEMPLATE)
WRAPPER = "example.com/wrapper:v1"


class Doctor:
    """Looks at an installation of the base manifests."""

    def __init__(self, base: BaseInstallation, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base = base
        self._monkeypatch = monkeypatch

    def become(self, account: str) -> None:
        """From now on; the administrator without a name."""
        self._monkeypatch.setenv("KUBECONFIG", str(self.base.kubeconfig(account)))
        self._monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    def flags(self, *more: str) -> list[str]:
        spaces = (f"--pod-namespace={self.base.functions}", f"--runner-namespace={self.base.system}")
        return [*spaces, f"--function-pod-template={TEMPLATE}", *more]

    async def look(self, *more: str, account: str = ACCOUNT, wrapper: str = "") -> list[Finding]:
        self.become(account)
        environment = {"WRAPPER_SERVER_IMAGE": wrapper} if wrapper else {}
        return [finding async for finding in examine(parse_doctor_settings(self.flags(*more), environment))]


@pytest.fixture
def doctor(api_server: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Doctor:
    return Doctor(BaseInstallation(api_server, tmp_path), monkeypatch)


def of(findings: list[Finding], state: State) -> list[str]:
    return [finding.what for finding in findings if finding.state is state]


async def test_the_base_manifests_are_in_order(doctor: Doctor) -> None:
    findings = await doctor.look()
    assert (of(findings, State.FAIL), of(findings, State.WARN)) == ([], [])
    fine = of(findings, State.OK)
    for right in RIGHTS:
        if right.need in BASE_NEEDS:
            assert any(f" {right.resource} in " in line and right.verb in line for line in fine), right
    assert any("keeps the contract" in line for line in fine)
    assert f"a function pod is admitted in {doctor.base.functions} (dry run)" in fine
    assert "may read no Secrets but its own" in fine


@pytest.mark.parametrize(
    "right",
    [right for right in RIGHTS if right.need in BASE_NEEDS],
    ids=lambda right: f"{right.verb}-{right.resource.replace('/', '-')}",
)
async def test_every_verb_that_is_missing_is_found(doctor: Doctor, right: Right) -> None:
    namespace = doctor.base.system if right.place is Place.OWN else doctor.base.functions
    doctor.base.without(namespace, right.resource, right.verb)
    findings = await doctor.look()
    line = f"may not {right.verb} {right.resource} in {namespace}: {right.without}"
    assert line in of(findings, State.FAIL if right.is_required else State.WARN)
    if not right.is_required:
        assert of(findings, State.FAIL) == []


async def test_rights_that_nobody_should_have_are_found(doctor: Doctor) -> None:
    role = doctor.base.role(doctor.base.functions)
    role["rules"].append({"apiGroups": [""], "resources": ["secrets"], "verbs": ["get"]})
    doctor.base.apply(role)
    (warning,) = of(await doctor.look(), State.WARN)
    assert warning.startswith(f"may read every Secret in {doctor.base.functions}")


async def test_private_registries_need_rights_of_their_own(
    api_server: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, doctor: Doctor
) -> None:
    refused = of(await doctor.look("--enable-private-registries"), State.FAIL)
    assert [line.split(":")[0] for line in refused] == [
        f"may not {verb} secrets in {doctor.base.functions}" for verb in ("create", "get", "update")
    ]
    private = Doctor(BaseInstallation(api_server, tmp_path, "overlays/private-registries"), monkeypatch)
    findings = await private.look("--enable-private-registries")
    assert (of(findings, State.FAIL), of(findings, State.WARN)) == ([], [])


async def test_a_volume_that_the_cluster_does_not_know_is_found(doctor: Doctor) -> None:
    flags = ("--function-pod-template=", "--wrapper-delivery=image-volume")
    findings = of(await doctor.look(*flags, wrapper=WRAPPER), State.FAIL)
    lost = "a function pod would lose its volume wrapper-server-tools: this Kubernetes does not know its kind"
    assert findings == ([lost] if KUBERNETES_VERSION < "v1.35" else [])


async def test_a_template_with_another_wrapper_server_has_no_spares(doctor: Doctor) -> None:
    (warning,) = of(await doctor.look("--spare-pods=1", wrapper=WRAPPER), State.WARN)[:1]
    assert warning.startswith("no spare pods are kept, though --spare-pods=1: the pod template does not deliver")
    fine = of(await doctor.look("--spare-pods=1", wrapper="krm-runner/wrapper-server:0.1.0"), State.OK)
    assert "spare pods are made of this template (--spare-pods=1)" in fine
    assert any(
        "WRAPPER_SERVER_IMAGE is not set here" in line for line in of(await doctor.look("--spare-pods=1"), State.SKIP)
    )


async def test_an_administrator_asks_for_the_account(doctor: Doctor) -> None:
    account = f"--account={doctor.base.system}/{ACCOUNT}"
    findings = await doctor.look(account, account="")
    assert (of(findings, State.FAIL), of(findings, State.WARN)) == ([], [])
    assert any("enforces no level of Pod Security, so other" in line for line in of(findings, State.OK))
    nobody = await doctor.look(f"--account={doctor.base.system}/default", account="")
    required = [right for right in RIGHTS if right.is_required and right.need in BASE_NEEDS]
    assert len(of(nobody, State.FAIL)) == len(required)


async def test_the_default_account_overlay_binds_the_default_account(
    api_server: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    doctor = Doctor(BaseInstallation(api_server, tmp_path, "overlays/default-service-account"), monkeypatch)
    findings = await doctor.look(f"--account={doctor.base.system}/default", account="")
    assert of(findings, State.FAIL) == []


async def test_a_namespace_that_is_missing_or_enforced(doctor: Doctor) -> None:
    missing = await doctor.look("--pod-namespace=not-there", account="")
    assert "namespace not-there does not exist" in of(missing, State.FAIL)
    _enforce(doctor)
    enforced = f'namespace {doctor.base.functions} enforces Pod Security "restricted"'
    assert enforced in of(await doctor.look(account=""), State.OK)


def _enforce(doctor: Doctor) -> None:
    label = "pod-security.kubernetes.io/enforce=restricted"
    doctor.base.kubectl("label", "namespace", doctor.base.functions, label)


async def test_a_template_that_breaks_the_contract_is_missing_or_would_be_refused(doctor: Doctor) -> None:
    base = doctor.base
    (found,) = (each for each in base.manifests if each["kind"] == "ConfigMap" and each["metadata"]["name"] == TEMPLATE)
    privileged = copy.deepcopy(found)
    pod = yaml.safe_load(privileged["data"]["template"])
    pod["spec"]["hostNetwork"] = True
    _enforce(doctor)
    privileged["data"]["template"] = yaml.safe_dump(pod)
    base.apply(privileged)
    (line,) = of(await doctor.look(), State.FAIL)
    assert line.startswith("a function pod would be refused")
    assert "violates PodSecurity" in line
    pod["spec"]["containers"][0]["name"] = "main"
    base.apply({**privileged, "data": {"template": yaml.safe_dump(pod)}})
    (line,) = of(await doctor.look(), State.FAIL)
    assert 'must have one container named "function"' in line
    base.kubectl("delete", "configmap", TEMPLATE, f"--namespace={base.system}")
    (line,) = of(await doctor.look(), State.FAIL)
    assert line.endswith("does not exist")


async def test_a_registry_that_does_not_answer(doctor: Doctor) -> None:
    findings = await doctor.look("--image=127.0.0.1:1/fn:v1", "--registry-timeout=1s", wrapper="127.0.0.1:1/wrapper:v1")
    assert [line.split(" cannot")[0] for line in of(findings, State.FAIL)] == ['image "127.0.0.1:1/fn:v1"']
    assert any(line.startswith('wrapper server: image "127.0.0.1:1/wrapper:v1"') for line in of(findings, State.WARN))


async def test_a_runner_evaluates_a_function_or_does_not(doctor: Doctor, installation: Installation) -> None:
    image = installation.add("copy", COPY)
    runner = installation.start("--disable-runtimes=pod")
    findings = await doctor.look(f"--address={runner.address}", f"--image={image}", "--registry-timeout=1s")
    assert any(line.startswith(f"{image} was evaluated by {runner.address}") for line in of(findings, State.OK))
    refused = await doctor.look(f"--address={runner.address}", "--image=127.0.0.1:1/fn:v1", "--registry-timeout=1s")
    assert any("NOT_FOUND" in line for line in of(refused, State.FAIL))
    # Nobody has asked for the function that is evaluated by default.
    unknown = await doctor.look(f"--address={runner.address}")
    assert any("NOT_FOUND" in line for line in of(unknown, State.WARN))
    nobody = await doctor.look(f"--address=127.0.0.1:{free_port()}")
    assert any("cannot reach a runner" in line for line in of(nobody, State.FAIL))


async def test_without_the_pod_runtime_nothing_of_a_cluster_is_looked_at(
    doctor: Doctor, installation: Installation
) -> None:
    image = installation.add("copy", COPY)
    runner = installation.start("--disable-runtimes=pod")
    flags = ("--disable-runtimes=pod", f"--address={runner.address}", f"--image={image}")
    findings = await doctor.look(*flags)
    assert [finding.state for finding in findings] == [State.SKIP, State.OK]


async def test_objects_of_newer_porch_are_looked_at_where_there_are_any(doctor: Doctor) -> None:
    assert not any(FUNCTION_CONFIGS in line for line in of(await doctor.look(), State.OK))
    doctor.base.apply(KIND)
    doctor.base.kubectl("wait", "--for=condition=Established", f"customresourcedefinition/{FUNCTION_CONFIGS}")
    fine = f"may list, patch, watch {FUNCTION_CONFIGS} in {doctor.base.functions}"
    try:
        assert fine in of(await doctor.look(), State.OK)
        doctor.base.without(doctor.base.functions, "functionconfigs", "patch")
        (warning,) = of(await doctor.look(), State.WARN)
    finally:
        doctor.base.kubectl("delete", "customresourcedefinition", FUNCTION_CONFIGS)
    assert warning.startswith(f"may not patch {FUNCTION_CONFIGS} in {doctor.base.functions}: FunctionConfig objects")


async def test_the_role_lets_the_runner_watch_its_own_template_and_nothing_else(doctor: Doctor) -> None:
    doctor.become(ACCOUNT)
    path = f"/api/v1/namespaces/{doctor.base.system}/configmaps"
    only = {"fieldSelector": f"metadata.name={TEMPLATE}"}
    async with KubeClient(await find_cluster()) as client:
        listed = await client.get(path, only)
        assert isinstance(listed["items"], list)
        async with client.stream(path, {**only, "watch": "true", "timeoutSeconds": "1"}, seconds=10) as lines:
            assert [line async for line in lines]
        for refused in (path, f"{path}/pod-cache-config", f"/api/v1/namespaces/{doctor.base.functions}/secrets"):
            with pytest.raises(KubernetesForbiddenError):
                await client.get(refused)


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "krm_runner", "doctor", *arguments]
    variables = {name: value for name, value in os.environ.items() if name != "KUBERNETES_SERVICE_HOST"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=variables | environment, cwd=ROOT
    )


async def test_its_output_in_a_pipe_and_its_exit_codes(doctor: Doctor) -> None:
    kubeconfig = str(doctor.base.kubeconfig(ACCOUNT))
    done = run(*doctor.flags(), KUBECONFIG=kubeconfig)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].startswith("[ OK ]  the API server answers: Kubernetes v1.")
    assert lines[-1].startswith("0 broken, 0 to look at, ")
    broken = run(*doctor.flags("--pod-namespace=not-there"), KUBECONFIG=kubeconfig)
    assert broken.returncode == 1
    assert "        fix: " in broken.stdout
    assert run("--help").stdout.startswith("krm-runner doctor looks at")
    wrong = run("--account=nonsense")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)


def test_without_a_cluster_it_says_so(tmp_path: Path) -> None:
    done = run(KUBECONFIG=str(tmp_path / "none"))
    assert done.returncode == 1
    assert "[FAIL]  no Kubernetes cluster is known" in done.stdout


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (["/usr/bin/python3.11", "-P", "/usr/bin/function-runner", "--port=1", "--pod-ttl", "2m"], 3),
        (["/server", "--port=1"], 1),
        (["python", "/usr/bin/krm-runner", "serve", "--port=1"], 1),
        (["krm-runner", "eval", "x"], 0),
        (["/sbin/init"], 0),
    ],
)
def test_the_flags_of_the_runner_beside_it(tmp_path: Path, words: list[str], flags: int) -> None:
    file = tmp_path / "cmdline"
    file.write_bytes(b"\0".join(word.encode() for word in words) + b"\0")
    assert len(runner_arguments(file)) == flags
    assert runner_arguments(tmp_path / "none") == []
