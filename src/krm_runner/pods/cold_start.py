"""A pod on its way up: how far it is, what it waits for, and how long each phase took."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import dataclass, field

from krm_runner.core.pod_status import PodStatus, Starting

WANTED, CREATED, SCHEDULED, INITIALIZED, RUNNING = "wanted", "create", "schedule", "init", "run"
HEALTHY = "healthy"
_ORDER = (WANTED, CREATED, SCHEDULED, INITIALIZED, RUNNING, HEALTHY)


@dataclass(slots=True)
class Milestones:
    """When a pod got how far, on the event loop's clock."""

    reached: dict[str, float] = field(default_factory=dict[str, float])

    def note(self, name: str) -> None:
        """The first time counts."""
        self.reached.setdefault(name, asyncio.get_running_loop().time())

    def phases(self) -> dict[str, float]:
        """Seconds up to each milestone from the one before, as far as they were seen, and in total."""
        times = [(name, self.reached[name]) for name in _ORDER if name in self.reached]
        phases = {name: max(0.0, after - before) for (_, before), (name, after) in itertools.pairwise(times)}
        if len(times) > 1:
            phases["total"] = times[-1][1] - times[0][1]
        return phases


class ColdStart:
    """A pod that is being started by this runner."""

    def __init__(self, function: str) -> None:
        self.function = function
        """What it is started for."""
        self.milestones = Milestones()
        self.milestones.note(WANTED)
        self.trouble = ""
        """What the API server says while it does not take the pod."""
        self.is_launched = False
        """Whether its launch came to its end."""
        self.gone: set[str] = set()
        """The uids of pods of this name that went before the launch had ended: its own, or a predecessor."""

    @property
    def progress(self) -> str:
        """How far it is before the watch shows it, in a line."""
        return self.trouble or ("it is created" if CREATED in self.milestones.reached else "it is being created")

    def note_trouble(self, text: str) -> None:
        """The API server was asked, and is to be asked again."""
        self.trouble = text

    def note_created(self) -> None:
        """The API server has it."""
        self.milestones.note(CREATED)
        self.is_launched = True
        self.trouble = ""


def waits_for(status: PodStatus, *, is_running: bool, trouble: str) -> tuple[str, str]:
    """Reason and message of a pod that does not serve yet; `trouble` is why its wrapper does not answer."""
    if is_running:
        return "Unreachable", f"the pod runs, and its wrapper does not answer this runner: {trouble or 'no word'}"
    if isinstance(status, Starting):
        return status.reason, status.message
    return "Pending", ""
