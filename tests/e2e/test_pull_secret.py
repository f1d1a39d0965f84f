"""The pull secret on a real API server: made, rotated by several runners at once, left alone when equal."""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, cast

import pytest

from cluster.layout import Layout
from krm_runner.core.errors import (
    ConfigurationError,
    KubernetesForbiddenError,
    KubernetesNotFoundError,
    KubernetesUnavailableError,
)
from krm_runner.core.pull_secret import Create, LeaveAlone, Update
from krm_runner.kube.client import KubeClient, find_cluster
from krm_runner.pods.node_platform import node_platform
from krm_runner.pods.pull_secret import PullSecret
from support.resolving import write_auths
from support.server import free_port
from support.service_account import account

NAME, NAMESPACE = "auth-secret", "functions"
RUNNERS = 5


class Kubectl:
    """Another client than ours looks at what ours did."""

    def __init__(self, layout: Layout) -> None:
        self._command = (str(layout.kube), "kubectl", f"--kubeconfig={layout.kubeconfig()}")

    def run(self, *arguments: str, stdin: object = None) -> str:
        done = subprocess.run(
            [*self._command, f"--namespace={NAMESPACE}", *arguments],
            input=json.dumps(stdin), check=False, capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    def secret(self) -> dict[str, Any]:
        return cast("dict[str, Any]", json.loads(self.run("get", "secret", NAME, "-o", "json")))

    def content(self) -> bytes:
        return base64.b64decode(self.secret()["data"][".dockerconfigjson"])


@pytest.fixture
def kubectl(api_server: Layout, monkeypatch: pytest.MonkeyPatch) -> Kubectl:
    """A namespace without the Secret, and the environment that leads the runner's own client there."""
    monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig()))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    client = Kubectl(api_server)
    client.run("apply", "-f", "-", stdin={"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    client.run("delete", "secret", NAME, "--ignore-not-found")
    return client


@pytest.fixture
async def clients(kubectl: Kubectl) -> AsyncIterator[list[KubeClient]]:
    """The API clients of several runners."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(KubeClient(await find_cluster())) for _ in range(RUNNERS)]


def credentials(path: Path, password: str) -> Path:
    """The mounted file, swapped at once."""
    written = write_auths(path.with_suffix(".new"), {"registry.example.com": {"username": "u", "password": password}})
    os.replace(written, path)
    return path


def secrets(clients: list[KubeClient], directory: Path, password: str) -> list[PullSecret]:
    """The same secret in the eyes of several runners, each with a mount of its own."""
    return [
        PullSecret(
            client,
            path=credentials(directory / f"config-{number}", password),
            name=NAME,
            namespace=NAMESPACE,
            check_interval=0.2,
        )
        for number, client in enumerate(clients)
    ]


async def test_created_and_left_alone_when_equal(
    clients: list[KubeClient], kubectl: Kubectl, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    (secret, *_) = secrets(clients, tmp_path, "pa55word")
    assert isinstance(await secret.ensure(), Create)
    found = kubectl.secret()
    assert found["type"] == "kubernetes.io/dockerconfigjson"
    assert kubectl.content() == (tmp_path / "config-0").read_bytes()
    for _ in range(3):
        assert isinstance(await secret.ensure(), LeaveAlone)
    assert kubectl.secret()["metadata"]["resourceVersion"] == found["metadata"]["resourceVersion"]
    assert "pa55word" not in caplog.text
    assert found["data"][".dockerconfigjson"] not in caplog.text


async def test_several_runners_at_once(clients: list[KubeClient], kubectl: Kubectl, tmp_path: Path) -> None:
    runners = secrets(clients, tmp_path, "first")
    done = await asyncio.gather(*(runner.ensure() for runner in runners))
    assert sorted(type(decision).__name__ for decision in done) == ["Create", *["LeaveAlone"] * (RUNNERS - 1)]
    for password in ("second", "third"):
        for number in range(RUNNERS):
            credentials(tmp_path / f"config-{number}", password)
        done = await asyncio.gather(*(runner.ensure() for runner in runners))
        assert sorted(type(decision).__name__ for decision in done) == [*["LeaveAlone"] * (RUNNERS - 1), "Update"]
        assert kubectl.content() == (tmp_path / "config-0").read_bytes()


async def test_rotation_is_noticed_by_runners_that_keep_it(
    clients: list[KubeClient], kubectl: Kubectl, tmp_path: Path
) -> None:
    runners = secrets(clients[:2], tmp_path, "old")
    async with asyncio.TaskGroup() as group:
        keepers = [group.create_task(runner.keep()) for runner in runners]
        await eventually(kubectl, b'"old"')
        # One runner's mount is updated first. The other one, whose file is still the old, does not undo that.
        credentials(tmp_path / "config-0", "new")
        await eventually(kubectl, b'"new"')
        await asyncio.sleep(2.5)
        assert b'"new"' in await asyncio.to_thread(kubectl.content)
        credentials(tmp_path / "config-1", "new")
        # A broken file changes nothing.
        version = (await asyncio.to_thread(kubectl.secret))["metadata"]["resourceVersion"]
        (tmp_path / "config-0").write_text("{broken")
        await asyncio.sleep(2.5)
        assert (await asyncio.to_thread(kubectl.secret))["metadata"]["resourceVersion"] == version
        # One that somebody deleted comes back.
        credentials(tmp_path / "config-0", "new")
        await asyncio.to_thread(kubectl.run, "delete", "secret", NAME)
        await eventually(kubectl, b'"new"')
        for keeper in keepers:
            keeper.cancel()


async def eventually(kubectl: Kubectl, part: bytes) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                if part in await asyncio.to_thread(kubectl.content):
                    return
            except AssertionError:  # not there yet
                pass
            await asyncio.sleep(0.1)


async def test_what_others_added_stays(clients: list[KubeClient], kubectl: Kubectl, tmp_path: Path) -> None:
    (secret, *_) = secrets(clients, tmp_path, "first")
    await secret.ensure()
    kubectl.run("label", "secret", NAME, "team=payments")
    credentials(tmp_path / "config-0", "second")
    assert isinstance(await secret.ensure(), Update)
    assert kubectl.secret()["metadata"]["labels"] == {"app.kubernetes.io/managed-by": "krm-runner", "team": "payments"}


async def test_somebody_elses_secret_is_not_touched(
    clients: list[KubeClient], kubectl: Kubectl, tmp_path: Path
) -> None:
    kubectl.run("create", "secret", "generic", NAME, "--from-literal=key=theirs")
    before = kubectl.secret()
    (secret, *_) = secrets(clients, tmp_path, "ours")
    with pytest.raises(ConfigurationError, match=r"is of type Opaque.*--registry-auth-secret-name"):
        await secret.ensure()
    assert kubectl.secret() == before


async def test_refusals_have_the_servers_own_words(clients: list[KubeClient], kubectl: Kubectl, tmp_path: Path) -> None:
    path = credentials(tmp_path / "config", "x")
    nowhere = PullSecret(clients[0], path=path, name=NAME, namespace="nowhere")
    with pytest.raises(KubernetesNotFoundError, match='namespaces "nowhere" not found'):
        await nowhere.ensure()
    kubectl.run("create", "serviceaccount", "nobody")
    configuration = await find_cluster()
    configuration.api_key = {"BearerToken": f"Bearer {kubectl.run('create', 'token', 'nobody').strip()}"}
    configuration.cert_file = configuration.key_file = None
    async with KubeClient(configuration) as nobody:
        with pytest.raises(
            KubernetesForbiddenError, match=r'secrets "auth-secret" is forbidden: User ".*:nobody" cannot'
        ):
            await PullSecret(nobody, path=path, name=NAME, namespace=NAMESPACE).ensure()
        assert await node_platform(nobody) is None
    configuration.host = f"https://127.0.0.1:{free_port()}"
    async with KubeClient(configuration) as away:
        with pytest.raises(KubernetesUnavailableError, match="the API server cannot be reached"):
            await PullSecret(away, path=path, name=NAME, namespace=NAMESPACE).ensure()


@pytest.mark.parametrize("missing", ["get", "create", "update"])
async def test_every_verb_of_the_role_is_needed(
    clients: list[KubeClient], kubectl: Kubectl, tmp_path: Path, missing: str
) -> None:
    able = secrets(clients, tmp_path, "first")[0]
    if missing == "update":
        await able.ensure()
        credentials(tmp_path / "config-0", "second")
    granted = [verb for verb in ("get", "create", "update") if verb != missing]
    async with account(clients[0], NAMESPACE, verbs=granted, resources=["secrets"]) as client:
        unable = secrets([client], tmp_path, "second")[0]
        with pytest.raises(KubernetesForbiddenError, match=rf"cannot {missing} resource .secrets."):
            await unable.ensure()
    assert isinstance(await able.ensure(), Update if missing == "update" else Create)


async def test_the_nodes_decide_the_platform_when_they_agree(clients: list[KubeClient], kubectl: Kubectl) -> None:
    assert await node_platform(clients[0]) is None
    for name, architecture, expected in (
        ("a", "arm64", "linux/arm64"),
        ("b", "arm64", "linux/arm64"),
        ("c", "amd64", ""),
    ):
        kubectl.run("create", "-f", "-", stdin={"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}})
        status = {"status": {"nodeInfo": node_info(architecture)}}
        kubectl.run("patch", "node", name, "--subresource=status", "--type=merge", "-p", json.dumps(status))
        assert str(await node_platform(clients[0]) or "") == expected


def node_info(architecture: str) -> dict[str, str]:
    names = (
        "bootID", "containerRuntimeVersion", "kernelVersion", "kubeProxyVersion", "kubeletVersion", "machineID",
        "osImage", "systemUUID",
    )  # fmt: skip
    return {**dict.fromkeys(names, ""), "operatingSystem": "linux", "architecture": architecture}
