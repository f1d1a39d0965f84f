"""Every pod of ours in the cluster, each with its attendant: the copy that the watch keeps.

Pods are known by name and uid: one that was replaced by another of the same name is gone. A spare that has become a
function's is attended anew. A pod without our label is
nobody's business, and not even looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from krm_runner.core.json_object import JsonObject, as_object, as_text
from krm_runner.core.pod_facts import PodFacts, facts_of
from krm_runner.core.pod_status import Terminating
from krm_runner.kube.reflector import ChangeKind
from krm_runner.pods.addresses import Addresses
from krm_runner.pods.attendant import Attendant
from krm_runner.pods.channels import Channels
from krm_runner.telemetry.internal_errors import contained


class Census:
    """Tells who is new, who is another than before, and who is gone."""

    def __init__(
        self,
        *,
        addresses: Addresses,
        channels: Channels,
        came: Callable[[Attendant], None],
        changed: Callable[[Attendant], None],
        converted: Callable[[Attendant], None],
        gone: Callable[[Attendant, str], None],
    ) -> None:
        self._addresses = addresses
        self._channels = channels
        self._on_come = came
        self._on_change = changed
        self._on_conversion = converted
        self._on_gone = gone
        self._attendants: dict[str, Attendant] = {}

    def __iter__(self) -> Iterator[Attendant]:
        return iter(list(self._attendants.values()))

    def find(self, name: str, uid: str = "") -> Attendant | None:
        """The pod of this name, if it is the one with this uid."""
        found = self._attendants.get(name)
        return found if found is not None and uid in ("", found.facts.uid) else None

    def has(self, attendant: Attendant) -> bool:
        """Whether the pod is still there."""
        return self._attendants.get(attendant.facts.name) is attendant

    def names(self) -> set[str]:
        """The names and pod ids of all pods. They differ where another function runner let the API server name one."""
        return {name for known in self._attendants.values() for name in (known.facts.name, known.facts.pod_id)}

    def is_shared(self, pod_id: str) -> bool:
        """Whether a pod of another name has this pod id, so that a Service of it would lead there too."""
        return any(pod_id == known.facts.pod_id != known.facts.name for known in self._attendants.values())

    def replaced(self, objects: list[JsonObject]) -> None:
        """See `kube.reflector.Copy`."""
        names: set[str] = set()
        for pod in objects:
            name = as_text(as_object(pod.get("metadata")).get("name"))
            names.add(name)
            with contained("watch event", path="pods", name=name):
                self.changed(ChangeKind.MODIFIED, pod)
        for attendant in self:
            if attendant.facts.name not in names:
                self._remove(attendant, "it was deleted")

    def changed(self, kind: ChangeKind, found: JsonObject) -> None:
        """See `kube.reflector.Copy`."""
        facts = facts_of(found)
        if facts is None:
            return
        if kind is not ChangeKind.DELETED:
            self._saw(facts, found)
        elif (known := self.find(facts.name, facts.uid)) is not None:
            self._remove(known, _why_deleted(known))

    def _saw(self, facts: PodFacts, pod: JsonObject) -> None:
        attendant = self._attendants.get(facts.name)
        if attendant is not None and attendant.facts.uid != facts.uid:
            self._remove(attendant, "it was replaced by another pod of the same name")
            attendant = None
        if attendant is not None and attendant.facts.asked_for != facts.asked_for:
            # What was known of it is of the container that it had before.
            del self._attendants[facts.name]
            self._on_conversion(attendant)
            attendant = None
        if attendant is None:
            attendant = self._attendants[facts.name] = Attendant(
                facts,
                pod,
                addresses=self._addresses,
                channels=self._channels,
                changed=self._changed_by_itself,
            )
            self._on_come(attendant)
        else:
            attendant.update(facts, pod)
        self._on_change(attendant)

    def _changed_by_itself(self, attendant: Attendant) -> None:
        if self.has(attendant):
            self._on_change(attendant)

    def _remove(self, attendant: Attendant, why: str) -> None:
        del self._attendants[attendant.facts.name]
        self._on_gone(attendant, why)


def _why_deleted(attendant: Attendant) -> str:
    status = attendant.status
    if isinstance(status, Terminating) and status.reason:
        return f"{status.reason}: {status.message}" if status.message else status.reason
    return "it was deleted"
