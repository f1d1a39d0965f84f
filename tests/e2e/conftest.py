"""What the end-to-end tests need of the machine; what is missing fails in CI and is skipped elsewhere."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cluster.api_only import ApiServer
from cluster.layout import Layout
from integration.conftest import Installation, front_of
from krm_runner.kube.client import KubeClient, find_cluster
from support.go_tools import GRPCURL, go_tool
from support.machine import missing
from support.relay import Relay


@pytest.fixture(params=["python", "front"])
def installation(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Installation]:
    with ExitStack() as stack:
        yield Installation(tmp_path, stack, front=front_of(request.param))


@pytest.fixture
def fronted(tmp_path: Path) -> Iterator[Installation]:
    with ExitStack() as stack:
        yield Installation(tmp_path, stack, front=front_of("front"))


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Layout]:
    """A real API server of the tests' own, without nodes."""
    server = ApiServer(tmp_path_factory.mktemp("api") / "server")
    if not server.layout.kube.exists():
        missing("Kubernetes is not built: `make cluster-up` does it, once")
    with server:
        yield server.layout


@pytest.fixture
def relay(api_server: Layout, monkeypatch: pytest.MonkeyPatch) -> Iterator[Relay]:
    """The way to the API server, which the test may close."""
    kubeconfig = api_server.kubeconfig()
    text = kubeconfig.read_text()
    address = next(word.strip('",{}') for word in text.split() if "https://" in word)
    target = urlsplit(address)
    assert target.hostname is not None
    assert target.port is not None
    with Relay((target.hostname, target.port)) as relay:
        through = kubeconfig.with_name(f"relayed-{uuid.uuid4().hex}.kubeconfig")
        through.write_text(text.replace(f"{target.hostname}:{target.port}", f"127.0.0.1:{relay.port}"))
        monkeypatch.setenv("KUBECONFIG", str(through))
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        yield relay
        through.unlink()


@pytest.fixture
async def client(relay: Relay) -> AsyncIterator[KubeClient]:
    async with KubeClient(await find_cluster()) as client:
        yield client


@pytest.fixture(scope="session")
def grpcurl() -> Path:
    """A stock client in Go."""
    return go_tool(GRPCURL)
