"""The metrics of the runner, on OpenTelemetry's API.

Without an exporter the API's own no-op instruments stand behind the same names. The label `image` is only ever an
image that some runtime knows, and the label `function` an executable of the configuration file: strangers' names must
not grow the series without bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from opentelemetry.metrics import CallbackOptions, Meter, Observation

_SECONDS = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0]


class EvaluationMetrics:
    """Counts and times evaluations."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._unseen = 0
        self._evaluations = meter.create_counter(
            "krm_runner.evaluations", description="Evaluations, by image, runtime and gRPC code"
        )
        self._duration = meter.create_histogram(
            "krm_runner.evaluation.duration",
            unit="s",
            description="From the request's arrival to its answer",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._queue_wait = meter.create_histogram(
            "krm_runner.queue.wait",
            unit="s",
            description="How long calls waited for their turn",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )
        self._in_flight = meter.create_up_down_counter(
            "krm_runner.evaluations.in_flight",
            description="Evaluations that have arrived and are not answered yet",
        )
        self._request_bytes = meter.create_counter(
            "krm_runner.request.size", unit="By", description="Resource lists received"
        )
        self._response_bytes = meter.create_counter(
            "krm_runner.response.size", unit="By", description="Resource lists sent back"
        )

        self._executions = meter.create_counter(
            "krm_runner.executions",
            description="Calls of local functions whose process ended by itself: on-demand, or from standby",
        )
        self._execution_duration = meter.create_histogram(
            "krm_runner.execution.duration",
            unit="s",
            description="From a call's turn to the end of its local process",
            explicit_bucket_boundaries_advisory=_SECONDS,
        )

    def arrived(self) -> None:
        """A call came in."""
        self._in_flight.add(1)

    def under_way_unseen(self, count: int) -> None:
        """So many calls are under way now that were not told by `arrived`."""
        self._in_flight.add(count - self._unseen)
        self._unseen = count

    def evaluated(
        self,
        *,
        image: str,
        runtime: str,
        code: str,
        seconds: float,
        request_bytes: int,
        response_bytes: int,
        unseen: bool = False,
    ) -> None:
        """A call was answered, `unseen` if it was not told by `arrived`.

        The image is a canonical one: spellings of it are without number.
        """
        labels = {"image": image if runtime else "", "runtime": runtime, "code": code}
        if not unseen:
            self._in_flight.add(-1)
        self._evaluations.add(1, labels)
        self._duration.record(seconds, labels)
        self._request_bytes.add(request_bytes, {"runtime": runtime})
        self._response_bytes.add(response_bytes, {"runtime": runtime})

    def waited(self, seconds: float, *, runtime: str) -> None:
        """A call got its turn."""
        self._queue_wait.record(seconds, {"runtime": runtime})

    def executed(self, *, function: str, process: str, seconds: float) -> None:
        """A local process ended by itself; it was started for its call (`on-demand`) or waited for one (`standby`)."""
        labels = {"function": function, "process": process}
        self._executions.add(1, labels)
        self._execution_duration.record(seconds, labels)

    def observe_standby(
        self, *, waiting: Callable[[], Mapping[str, int]], memory: Callable[[], Mapping[str, int]]
    ) -> None:
        """Report how many local processes wait for their input, and their bytes, whenever metrics are read.

        Both are by function, and are called in the thread that reads metrics.
        """

        def observe(read: Callable[[], Mapping[str, int]]) -> Callable[[CallbackOptions], Iterable[Observation]]:
            return lambda _options: [Observation(value, {"function": name}) for name, value in read().items()]

        self._meter.create_observable_gauge(
            "krm_runner.standby.processes", [observe(waiting)], description="Local processes that wait for their input"
        )
        self._meter.create_observable_gauge(
            "krm_runner.standby.memory",
            [observe(memory)],
            unit="By",
            description="What processes in standby hold and share with no other",
        )

    def observe_executions(
        self, *, running: Callable[[], int], waiting: Callable[[], int], memory: Callable[[], int]
    ) -> None:
        """Report what local processes run, what they may take, and how many calls wait, whenever metrics are read."""

        def observe(read: Callable[[], int]) -> Callable[[CallbackOptions], Iterable[Observation]]:
            return lambda _options: [Observation(read())]

        self._meter.create_observable_gauge(
            "krm_runner.executions.running", [observe(running)], description="Local processes under way"
        )
        self._meter.create_observable_gauge(
            "krm_runner.executions.waiting",
            [observe(waiting)],
            description="Calls that wait for a local process",
        )
        self._meter.create_observable_gauge(
            "krm_runner.executions.memory",
            [observe(memory)],
            unit="By",
            description="What local processes under way are expected to take",
        )
