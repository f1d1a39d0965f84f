"""Metrics of the pod runtime: what is counted under which labels, and that labels stay few."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader, Metric, NumberDataPoint

from krm_runner.telemetry.pod_metrics import PHASES, PodMetrics, PoolSize, api_request_of

DOCUMENTATION = Path(__file__).parent.parent.parent / "docs" / "configuration.md"

Series = dict[tuple[str, ...], float]


class Meters:
    """Metrics, and what a reader sees of them."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self._provider = MeterProvider([self._reader], shutdown_on_exit=False)
        self.pods = PodMetrics(self._provider.get_meter("test"))

    def close(self) -> None:
        self._provider.shutdown()

    def read(self) -> dict[str, Metric]:
        data = self._reader.get_metrics_data()
        if data is None:
            return {}
        return {
            metric.name: metric
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def series(self, name: str) -> Series:
        """Values by labels; of a histogram its sum."""
        found: Series = {}
        for point in self.read()[name].data.data_points:
            labels = tuple(str(value) for value in (point.attributes or {}).values())
            if isinstance(point, NumberDataPoint):
                found[labels] = point.value
            elif isinstance(point, HistogramDataPoint):
                found[labels] = point.sum
        return found


@pytest.fixture
def meters() -> Iterator[Meters]:
    found = Meters()
    yield found
    found.close()


def test_counters(meters: Meters) -> None:
    pods = meters.pods
    for _ in range(3):
        pods.leased(promised=False)
    pods.retried("POD_LOST")
    pods.lost("Evicted")
    pods.lost("Evicted")
    pods.start_failed("ErrImagePull")
    pods.deleted("expired")
    pods.ttl_written(True)
    pods.ttl_written(False)
    assert meters.series("krm_runner.pod.leases") == {("no",): 3}
    assert meters.series("krm_runner.pod.retries") == {("POD_LOST",): 1}
    assert meters.series("krm_runner.pod.losses") == {("Evicted",): 2}
    assert meters.series("krm_runner.pod.start.failures") == {("ErrImagePull",): 1}
    assert meters.series("krm_runner.pod.deletions") == {("expired",): 1}
    assert meters.series("krm_runner.pod.ttl.writes") == {("ok",): 1, ("failed",): 1}


def test_cold_starts_by_phase(meters: Meters) -> None:
    meters.pods.pod_ready(
        {"create": 0.1, "schedule": -0.5, "init": 0.5, "run": 1.0, "healthy": 0.25, "total": 1.35, "lunch": 60.0}
    )
    meters.pods.pod_ready({"total": 2.0})
    assert meters.series("krm_runner.pod.start.duration") == {
        ("create",): 0.1, ("schedule",): 0.0, ("init",): 0.5, ("run",): 1.0, ("healthy",): 0.25, ("total",): 3.35,
    }  # fmt: skip
    assert set(PHASES) == {labels[0] for labels in meters.series("krm_runner.pod.start.duration")}


@pytest.mark.parametrize(
    ("reason", "label"),
    [
        ("CrashLoopBackOff", "CrashLoopBackOff"),
        ("it cannot start", "it_cannot_start"),
        ("", "unknown"),
        ("!?", "unknown"),
        ("a\nb\x00c é", "a_b_c"),
        ("x" * 1000, "x" * 40),
        ("y" * 39 + " z", "y" * 39),
    ],
)
def test_reasons_are_words(meters: Meters, reason: str, label: str) -> None:
    meters.pods.start_failed(reason)
    assert meters.series("krm_runner.pod.start.failures") == {(label,): 1}


def test_too_many_reasons_are_one(meters: Meters) -> None:
    for number in range(1000):
        meters.pods.lost(f"reason {number}")
    meters.pods.lost("reason 0")
    found = meters.series("krm_runner.pod.losses")
    assert len(found) == 51
    assert (found[("other",)], found[("reason_0",)], sum(found.values())) == (950, 2, 1001)


def test_the_pool_is_read_when_metrics_are(meters: Meters) -> None:
    size = PoolSize()
    meters.pods.observe_pool(lambda: size)
    assert "krm_runner.pods" not in meters.read()
    assert meters.series("krm_runner.pod.calls.waiting") == {("",): 0}
    size = PoolSize({"a": {"ready": 2, "starting": 1}, "b": {"leaving": 1}}, {"a": 5, "stranger": 7, "another": 1})
    assert meters.series("krm_runner.pods") == {("a", "ready"): 2, ("a", "starting"): 1, ("b", "leaving"): 1}
    assert meters.series("krm_runner.pod.calls.waiting") == {("a",): 5, ("",): 8}


def test_requests_to_the_api_server(meters: Meters) -> None:
    meters.pods.api_request("patch", "pods", 200)
    meters.pods.answered("GET", "/api/v1/namespaces/fns/pods?watch=true", 410)
    meters.pods.answered("list", "/api/v1/namespaces/fns/services", 0)
    meters.pods.answered("BREW", "/coffee/pot", 418)
    assert meters.series("krm_runner.kubernetes.requests") == {
        ("patch", "pods", "2xx"): 1,
        ("watch", "pods", "4xx"): 1,
        ("list", "services", "none"): 1,
        ("other", "other", "4xx"): 1,
    }


@pytest.mark.parametrize(
    ("method", "path", "expected"),
    [
        ("GET", "/api/v1/namespaces/fns/pods?watch=true", ("watch", "pods")),
        ("GET", "/api/v1/namespaces/fns/pods?labelSelector=a&watch=1", ("watch", "pods")),
        ("GET", "/api/v1/namespaces/fns/pods?watch=false", ("list", "pods")),
        ("GET", "/api/v1/namespaces/fns/pods?fieldSelector=rewatch=true", ("list", "pods")),
        ("GET", "/api/v1/namespaces/fns/pods", ("list", "pods")),
        ("GET", "/api/v1/pods", ("list", "pods")),
        ("GET", "/api/v1/namespaces/fns/pods/a", ("get", "pods")),
        ("GET", "/api/v1/namespaces/fns/pods/pods", ("get", "pods")),
        ("GET", "/api/v1/namespaces/fns/pods/a/log?tailLines=5", ("get", "log")),
        ("GET", "/api/v1/namespaces/fns/events?fieldSelector=x", ("list", "events")),
        ("GET", "/apis/events.k8s.io/v1/namespaces/fns/events", ("list", "events")),
        ("POST", "/api/v1/namespaces/fns/services", ("create", "services")),
        ("PUT", "/api/v1/namespaces/fns/secrets/auth", ("update", "secrets")),
        ("PATCH", "/api/v1/namespaces/fns/pods/a", ("patch", "pods")),
        ("DELETE", "/api/v1/namespaces/fns/pods/a", ("delete", "pods")),
        ("DELETE", "/api/v1/namespaces/fns/pods", ("deletecollection", "pods")),
        ("GET", "/api/v1/namespaces/porch-system/configmaps/template", ("get", "configmaps")),
        ("GET", "/api/v1/nodes", ("list", "nodes")),
        ("GET", "/api/v1/nodes/one", ("get", "nodes")),
        ("GET", "/api/v1/namespaces/pods", ("get", "other")),
        ("GET", "/api/v1/namespaces", ("list", "other")),
        ("GET", "/api/v1/namespaces/fns/pods/a/binding", ("get", "other")),
        ("GET", "/version", ("get", "other")),
        ("GET", "", ("get", "other")),
        ("HEAD", "/api/v1/nodes", ("other", "nodes")),
        ("watch", "/api/v1/namespaces/fns/pods", ("watch", "pods")),
    ],
)
def test_verbs_and_resources(method: str, path: str, expected: tuple[str, str]) -> None:
    assert api_request_of(method, path) == expected


def test_the_documentation_has_every_metric(meters: Meters) -> None:
    pods = meters.pods
    pods.observe_pool(lambda: PoolSize({"a": {"ready": 1}}))
    pods.leased(promised=False)
    pods.pod_ready({"total": 1.0})
    pods.ttl_written(True)
    pods.api_request("get", "pods", 200)
    for count in (pods.retried, pods.lost, pods.start_failed, pods.deleted):
        count("x")
    documentation = DOCUMENTATION.read_text()
    found = meters.read()
    assert len(found) == 10
    for name, metric in found.items():
        plain = name.endswith((".pods", ".waiting"))
        ending = "_seconds" if metric.unit == "s" else "" if plain else "_total"
        assert f"`{name.replace('.', '_')}{ending}`" in documentation
