"""How much the front has under way, for metrics and for the log: what it said last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from krm_runner.rpc._generated.front_pb2 import Load
from krm_runner.telemetry.metrics import EvaluationMetrics


@dataclass(frozen=True, slots=True)
class _Load:
    running: int = 0
    waiting: int = 0
    memory: int = 0
    standby: Mapping[str, int] = field(default_factory=dict[str, int])
    standby_memory: Mapping[str, int] = field(default_factory=dict[str, int])
    calls: int = 0
    unseen: int = 0


class FrontLoad:
    """The latest of them; metrics are read by another thread, and see one or the next as a whole."""

    def __init__(self, metrics: EvaluationMetrics) -> None:
        self._metrics = metrics
        self._latest = _Load()

    @property
    def calls(self) -> int:
        """How many calls there were since the start, whoever executed them."""
        return self._latest.calls

    @property
    def unseen(self) -> int:
        """How many calls are under way that the front did not ask about."""
        return self._latest.unseen

    def take(self, message: Load) -> None:
        """The front says how much it is now."""
        self._latest = _Load(
            running=message.running,
            waiting=message.waiting,
            memory=message.memory,
            standby={each.function: each.processes for each in message.standby},
            standby_memory={each.function: each.memory for each in message.standby},
            calls=message.calls,
            unseen=message.under_way,
        )
        self._metrics.under_way_unseen(message.under_way)

    def observe_functions(self) -> None:
        """From now on metrics show the local functions."""
        self._metrics.observe_executions(
            running=lambda: self._latest.running,
            waiting=lambda: self._latest.waiting,
            memory=lambda: self._latest.memory,
        )
        self._metrics.observe_standby(waiting=lambda: self._latest.standby, memory=lambda: self._latest.standby_memory)
