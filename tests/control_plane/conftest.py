"""Fixtures of the control-plane suite: a real API server, real runners, real wrapper servers, a played kubelet.

The fixtures have the names of those on the cluster, so that a case reads the same in both places. Every test has
namespaces, accounts and a kubelet of its own; all tests of a session share the API server and the registries.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import pytest

from cluster.api_only import ApiServer
from control_plane.kubelet import Kubelet
from control_plane.site import PlayedSite
from support.audit import AuditLog
from support.in_cluster import InCluster
from support.kube import Kube
from support.machine import missing
from support.namespace import Namespace
from support.push import ForeignPush, Push
from support.registry import Registry
from support.relay import Relay
from support.site import RESTRICTED
from support.wrapper import built_wrapper

WRAPPER_IMAGE = "example.com/wrapper-server:v1"
"""The played kubelet pulls nothing: the wrapper server is the one that was built."""
_FAILED = pytest.StashKey[bool]()


@pytest.fixture(scope="session")
def api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    server = ApiServer(tmp_path_factory.mktemp("api") / "server")
    if not server.layout.kube.exists():
        missing("Kubernetes is not built: `make control-plane` does it, once")
    if os.geteuid() != 0:
        missing("not root: a runner cannot be given the files of a pod")
    with server:
        yield server


@pytest.fixture(scope="session")
def kube(api_server: ApiServer) -> Iterator[Kube]:
    layout = api_server.layout
    with Kube(layout.kubeconfig(), layout.binaries / "kubectl") as kube:
        yield kube


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """One that anybody may read and write."""
    for program in ("docker-registry", "skopeo"):
        if shutil.which(program) is None:
            missing(f"no {program} (on Debian: apt-get install {program})")
    with Registry(tmp_path_factory.mktemp("registry")) as registry:
        yield registry


@pytest.fixture
def push(registry: Registry) -> Push:
    """Pushes images under names of the test's own."""
    return ForeignPush(f"test-{uuid.uuid4().hex[:10]}", registry.address)


@pytest.fixture
def audit_log(api_server: ApiServer) -> AuditLog:
    """From the beginning of the test on."""
    return AuditLog(api_server.layout.audit_log)


@pytest.fixture
def api_relay(api_server: ApiServer) -> Iterator[Relay]:
    """To the API server, for one test to cut and close."""
    with Relay((api_server.endpoints.api_address, api_server.endpoints.api_port)) as relay:
        yield relay


@pytest.fixture
def new_site(
    api_server: ApiServer, kube: Kube, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., PlayedSite]]:
    """Makes installations of the pod runtime, whose pods live in a namespace with these labels."""
    made: list[PlayedSite] = []
    endpoints, wrapper = api_server.endpoints, built_wrapper()

    def place(namespace: Namespace, account: str) -> InCluster:
        directory = tmp_path / f"in-cluster-{uuid.uuid4().hex[:6]}"
        api = (endpoints.api_address, endpoints.api_port)
        return InCluster(api_server.layout, namespace, account, directory, api=api, name_server="127.0.0.1")

    def namespace(labels: dict[str, str] | None = None) -> Namespace:
        created = Namespace(kube, f"test-{uuid.uuid4().hex[:10]}", labels)
        # There is no controller that would do it.
        created.create({"apiVersion": "v1", "kind": "ServiceAccount"}, "default")
        return created

    def make(labels: dict[str, str] | None = None) -> PlayedSite:
        site = PlayedSite(
            namespace(), namespace(labels), WRAPPER_IMAGE, place, tmp_path, flags=("--pod-address=pod-ip",)
        )
        site.kubelet = Kubelet(site.functions, tmp_path / f"pods-{len(made)}", wrapper)
        site.kubelet.__enter__()
        made.append(site)
        return site

    yield make
    for site in made:
        failed = request.node.stash.get(_FAILED, False)
        if failed:
            print(site.functions.describe())
        site.close(failed=failed)
        site.kubelet.__exit__(None, None, None)
        site.functions.delete()
        site.system.delete()
        assert site.kubelet.errors == [], "the played kubelet went wrong"


@pytest.fixture
def site(new_site: Callable[..., PlayedSite]) -> PlayedSite:
    """One whose pods are held to what is called "restricted"."""
    return new_site(RESTRICTED)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report
