"""The metrics of the pod runtime, on OpenTelemetry's API.

The number of series is bounded, whatever a cluster and its users come up with: images are canonical ones that have
pods; phases, verbs and resources are from fixed sets; a reason is one of ours or Kubernetes' own word for it, cut, and
after so many different ones every new one is `other`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from opentelemetry.metrics import CallbackOptions, Meter, Observation

PHASES = ("create", "schedule", "init", "run", "healthy", "total")
"""Of a cold start: until the API server has the pod, until it has a node, until its init containers have ended, until
its container runs, until its wrapper server says that it serves; and all of them together."""

RESOURCES = frozenset({"pods", "services", "configmaps", "events", "secrets", "nodes", "log"})

_SECONDS = [0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0, 20.0, 30.0, 60.0, 120.0, 300.0]
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch"}
_VERBS_OF_KUBERNETES = frozenset(
    {"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}  # as in roles
)
_IS_WATCH = re.compile(r"(?:^|&)watch=(?:true|1)(?:&|$)")
_MAX_REASON = 40
_MAX_REASONS = 50
_UNFIT = re.compile(r"[^A-Za-z0-9]+")
_OTHER = "other"


@dataclass(frozen=True, slots=True)
class PoolSize:
    """How much there is at a moment, by canonical image."""

    pods: Mapping[str, Mapping[str, int]] = field(default_factory=dict[str, Mapping[str, int]])
    """Pods of an image by their state."""
    waiting: Mapping[str, int] = field(default_factory=dict[str, int])
    """Calls of an image that wait for a pod."""


class PodMetrics:
    """Counts and times what happens to pods, and to calls on their way to one."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._leases = meter.create_counter("krm_runner.pod.leases", description="Calls that were given a pod")
        self._retries = meter.create_counter(
            "krm_runner.pod.retries", description="Calls that were tried again on another pod"
        )
        self._lost = meter.create_counter("krm_runner.pod.losses", description="Pods that were lost while in service")
        self._start = meter.create_histogram(
            "krm_runner.pod.start.duration",
            unit="s",
            description="Cold starts by phase",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._start_failures = meter.create_counter(
            "krm_runner.pod.start.failures", description="Pods that could not be started"
        )
        self._spares = meter.create_counter(
            "krm_runner.pod.spares", description="Pods that were to be made of a spare, by what came of it"
        )
        self._deletions = meter.create_counter("krm_runner.pod.deletions", description="Pods that were deleted")
        self._ttl_writes = meter.create_counter(
            "krm_runner.pod.ttl.writes", description="Times that a pod's time to live was extended in the cluster"
        )
        self._requests = meter.create_counter(
            "krm_runner.kubernetes.requests", description="Requests to the API server"
        )
        self._reasons_retried, self._reasons_lost = _Reasons(), _Reasons()
        self._reasons_failed, self._reasons_deleted = _Reasons(), _Reasons()

    def leased(self, *, promised: bool) -> None:
        """A call got a pod; one that was promised to it before it came, or not."""
        self._leases.add(1, {"promised": "yes" if promised else "no"})

    def retried(self, reason: str) -> None:
        """A call goes to another pod, since the first one did not answer it."""
        self._retries.add(1, {"reason": self._reasons_retried.label(reason)})

    def lost(self, reason: str) -> None:
        """A pod that served is no more, or does not answer."""
        self._lost.add(1, {"reason": self._reasons_lost.label(reason)})

    def start_failed(self, reason: str) -> None:
        """A pod was not created, or did not start."""
        self._start_failures.add(1, {"reason": self._reasons_failed.label(reason)})

    def spare_wanted(self, outcome: str) -> None:
        """A pod was wanted where spares are kept: whether one was used, or why not."""
        self._spares.add(1, {"outcome": outcome})

    def pod_ready(self, phases: Mapping[str, float]) -> None:
        """A pod serves: seconds by phase, as far as they are known; see PHASES."""
        for phase in PHASES:
            if phase in phases:
                # The cluster's clock may be ahead of ours.
                self._start.record(max(phases[phase], 0.0), {"phase": phase})

    def deleted(self, why: str) -> None:
        """A pod was deleted by this runner."""
        self._deletions.add(1, {"reason": self._reasons_deleted.label(why)})

    def ttl_written(self, ok: bool) -> None:
        """The time to live of a pod in use was written, or could not be."""
        self._ttl_writes.add(1, {"outcome": "ok" if ok else "failed"})

    def api_request(self, verb: str, resource: str, status: int) -> None:
        """The API server answered; status 0 when it did not."""
        self._requests.add(
            1,
            {
                "verb": verb if verb in _VERBS_OF_KUBERNETES else _OTHER,
                "resource": resource if resource in RESOURCES else _OTHER,
                "status": f"{status // 100}xx" if 100 <= status < 600 else "none",
            },
        )

    def answered(self, method: str, path: str, status: int) -> None:
        """The same, of a request as it was sent."""
        verb, resource = api_request_of(method, path)
        self.api_request(verb, resource, status)

    def observe_pool(self, read: Callable[[], PoolSize]) -> None:
        """Report how many pods there are, and how many calls wait for one, whenever metrics are read.

        `read` is called in the thread that reads metrics.
        """

        def pods(_options: CallbackOptions) -> Iterable[Observation]:
            return [
                Observation(count, {"image": image, "state": state})
                for image, states in read().pods.items()
                for state, count in states.items()
            ]

        def waiting(_options: CallbackOptions) -> Iterable[Observation]:
            size = read()
            known = {image: count for image, count in size.waiting.items() if image in size.pods}
            # Also when nobody waits: a line that is not there cannot be told from one that is not read.
            known[""] = sum(size.waiting.values()) - sum(known.values())
            return [Observation(count, {"image": image}) for image, count in known.items()]

        self._meter.create_observable_gauge("krm_runner.pods", [pods], description="Pods by image and state")
        self._meter.create_observable_gauge(
            "krm_runner.pod.calls.waiting", [waiting], description="Calls that wait for a pod, by image"
        )


def api_request_of(method: str, path: str) -> tuple[str, str]:
    """Verb and resource, in the words of a role, of a request: by its HTTP method or its verb, and its path."""
    path, _, query = path.partition("?")
    parts = path.strip("/").split("/")
    # api/v1/…, or apis/<group>/<version>/…
    parts = parts[3:] if parts[0] == "apis" else parts[2:]
    if len(parts) > 2 and parts[0] == "namespaces":
        parts = parts[2:]
    resource = parts[2] if len(parts) > 2 else parts[0] if parts else ""
    return _verb(method, is_watch=_IS_WATCH.search(query) is not None, is_collection=len(parts) == 1), (
        resource if resource in RESOURCES else _OTHER
    )


def _verb(method: str, *, is_watch: bool, is_collection: bool) -> str:
    if method in _VERBS_OF_KUBERNETES:
        return method
    if method == "GET":
        return "watch" if is_watch else "list" if is_collection else "get"
    if method == "DELETE":
        return "deletecollection" if is_collection else "delete"
    return _VERBS.get(method, _OTHER)


class _Reasons:
    """Turns reasons into labels, and knows when there are too many."""

    def __init__(self) -> None:
        self._labels: dict[str, str] = {}

    def label(self, reason: str) -> str:
        known = self._labels.get(reason)
        if known is not None:
            return known
        if len(self._labels) >= _MAX_REASONS:
            return _OTHER
        label = _UNFIT.sub("_", reason[: 2 * _MAX_REASON]).strip("_")[:_MAX_REASON].rstrip("_") or "unknown"
        self._labels[reason] = label
        return label
