"""Fixtures of the tests on a cluster: the cluster itself, a namespace for each test, images, processes inside.

The cluster is the sealed one of tests/cluster, in whose network these tests then run, or any other that
KRM_TEST_KUBECONFIG names. What only the sealed one has, a test asks for with `sealed`, and is skipped elsewhere.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

from cluster import layout
from cluster.full import ENDPOINTS, FullCluster
from images.__main__ import wrapper_server_image
from support.audit import AuditLog
from support.in_cluster import InCluster
from support.kube import Kube
from support.machine import missing
from support.namespace import Namespace
from support.push import ForeignPush, Push
from support.relay import Relay
from support.runner import RunnerProcess
from support.site import RESTRICTED, Site
from support.wrapper import built_wrapper

_FAILED = pytest.StashKey[bool]()


@dataclass(frozen=True)
class Bed:
    """What the tests run on; `own` is None when it is somebody else's cluster."""

    kube: Kube
    own: FullCluster | None


@pytest.fixture(scope="session")
def bed() -> Iterator[Bed]:
    if foreign := os.environ.get("KRM_TEST_KUBECONFIG"):
        if shutil.which("kubectl") is None:
            missing("no kubectl for the cluster of KRM_TEST_KUBECONFIG")
        with Kube(Path(foreign)) as kube:
            yield Bed(kube, None)
        return
    if reason := os.environ.get("KRM_CLUSTER_MISSING"):
        missing(reason)
    cluster = FullCluster(layout.full())
    if not cluster.enclosure.is_home:
        missing("not in the network of the cluster: `make e2e`, or pytest in `make cluster-shell`")
    with Kube(cluster.layout.kubeconfig()) as kube:
        yield Bed(kube, cluster)


@pytest.fixture
def kube(bed: Bed) -> Kube:
    return bed.kube


@pytest.fixture
def sealed(bed: Bed, request: pytest.FixtureRequest) -> FullCluster:
    """For what can be tested on our own cluster alone."""
    if bed.own is None:
        _cannot_be_tested(request, "it needs the registries, logs and network of the project's own cluster")
    return bed.own


@pytest.fixture
def breakable(sealed: FullCluster) -> Iterator[FullCluster]:
    """For a test that stops parts of the cluster, marked `alone`: the next one finds it whole."""
    yield sealed
    sealed.mend()


@pytest.fixture
def new_namespace(kube: Kube, request: pytest.FixtureRequest) -> Iterator[Callable[..., Namespace]]:
    """Makes fresh namespaces, ready for pods; of a failed test it prints what happened in them."""
    made: list[Namespace] = []

    def make(labels: dict[str, str] | None = None) -> Namespace:
        created = Namespace(kube, f"test-{uuid.uuid4().hex[:10]}", labels)
        made.append(created)
        created.wait_for_service_account()
        return created

    yield make
    for namespace in made:
        if request.node.stash.get(_FAILED, False):
            print(namespace.describe())
        namespace.delete()


@pytest.fixture
def namespace(new_namespace: Callable[..., Namespace]) -> Namespace:
    return new_namespace()


@pytest.fixture
def push(bed: Bed, request: pytest.FixtureRequest) -> Push:
    """Pushes images under names of the test's own."""
    prefix = f"test-{uuid.uuid4().hex[:10]}"
    if bed.own is not None:
        return Push(prefix, bed.own.layout)
    address = os.environ.get("KRM_TEST_REGISTRY")
    if not address:
        _cannot_be_tested(request, "KRM_TEST_REGISTRY names no registry that it pulls from")
    return ForeignPush(prefix, address)


@pytest.fixture
def in_cluster(sealed: FullCluster, tmp_path: Path) -> Callable[..., InCluster]:
    """Makes places for processes that see the cluster as a container of a pod does."""

    def make(namespace: Namespace, service_account: str = "default") -> InCluster:
        directory = tmp_path / f"in-cluster-{uuid.uuid4().hex[:6]}"
        return InCluster(sealed.layout, namespace, service_account, directory)

    return make


@pytest.fixture
def runner() -> Iterator[Callable[..., RunnerProcess]]:
    """Starts runners in such a place, with the flags given; they end with the test."""
    with ExitStack() as stack:

        def start(place: InCluster, *flags: str) -> RunnerProcess:
            return stack.enter_context(
                RunnerProcess("--front=auto", *flags, prefix=place.prefix, environment=place.environment)
            )

        yield start


@pytest.fixture
def new_site(
    new_namespace: Callable[..., Namespace],
    push: Push,
    in_cluster: Callable[..., InCluster],
    tmp_path: Path,
    request: pytest.FixtureRequest,
) -> Iterator[Callable[..., Site]]:
    """Makes installations of the pod runtime, whose pods live in a namespace with these labels."""
    made: list[Site] = []

    def make(labels: dict[str, str] | None = None) -> Site:
        wrapper = push("wrapper-server", wrapper_server_image(built_wrapper()))
        made.append(Site(new_namespace(), new_namespace(labels), wrapper, in_cluster, tmp_path))
        return made[-1]

    yield make
    for site in made:
        site.close(failed=request.node.stash.get(_FAILED, False))


@pytest.fixture
def site(new_site: Callable[..., Site]) -> Site:
    """One whose pods are held to what is called "restricted"."""
    return new_site(RESTRICTED)


@pytest.fixture
def api_relay(sealed: FullCluster) -> Iterator[Relay]:
    """To the API server, for one test to cut and close."""
    with Relay((ENDPOINTS.api_address, ENDPOINTS.api_port)) as relay:
        yield relay


@pytest.fixture
def audit_log(sealed: FullCluster) -> AuditLog:
    """From the beginning of the test on."""
    return AuditLog(sealed.layout.audit_log)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        item.stash[_FAILED] = True
    return report


def _cannot_be_tested(request: pytest.FixtureRequest, reason: str) -> NoReturn:
    """One line for each test, since it has the test's name."""
    pytest.skip(f"{request.node.name} cannot be tested on the cluster of KRM_TEST_KUBECONFIG: {reason}")
