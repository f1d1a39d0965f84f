"""The Services of function pods, as the cluster has them, and which of them have lost their pod.

A copy for the reflector of Services. A Service is made in the same moment as its pod, and the two are
heard of in any order: one without a pod is an orphan only after it was seen alone for a while, by our own clock.
"""

from __future__ import annotations

from collections.abc import Collection

from krm_runner.core.json_object import JsonObject, as_object, as_text
from krm_runner.core.pod_manifest import POD_ID_LABEL
from krm_runner.core.service_facts import ServiceFacts, service_facts_of
from krm_runner.kube.reflector import ChangeKind
from krm_runner.telemetry.internal_errors import contained

_OLDER_THAN = 60.0


class Services:
    """By name."""

    def __init__(self, *, older_than: float = _OLDER_THAN) -> None:
        self._older_than = older_than
        self._known: dict[str, ServiceFacts] = {}
        self._alone_since: dict[str, float] = {}
        """By uid: a new Service of the same name has a time of its own."""

    def replaced(self, objects: list[JsonObject]) -> None:
        """These are all there are now."""
        self._known.clear()
        for found in objects:
            with contained("watch event", path="services", name=as_text(as_object(found.get("metadata")).get("name"))):
                self.changed(ChangeKind.ADDED, found)

    def changed(self, kind: ChangeKind, found: JsonObject) -> None:
        """One of them is another now."""
        facts = service_facts_of(found)
        if facts is None or kind is ChangeKind.DELETED:
            self._known.pop(as_text(as_object(found.get("metadata")).get("name")), None)
        else:
            self._known[facts.name] = facts

    def cluster_ip(self, name: str) -> str:
        """Empty when it has none, or there is no such Service."""
        facts = self._known.get(name)
        return facts.cluster_ip if facts is not None else ""

    def uid(self, name: str) -> str:
        """Empty when there is no such Service."""
        facts = self._known.get(name)
        return facts.uid if facts is not None else ""

    def orphans(self, pods: Collection[str], *, now: float) -> list[tuple[str, str]]:
        """Name and uid of each Service that was without a pod whenever this was asked, for long enough by now."""
        alone = [facts for facts in self._known.values() if not facts.is_going and not _has_pod(facts, pods)]
        self._alone_since = {facts.uid: self._alone_since.get(facts.uid, now) for facts in alone}
        return [(each.name, each.uid) for each in alone if now - self._alone_since[each.uid] >= self._older_than]


def _has_pod(service: ServiceFacts, pods: Collection[str]) -> bool:
    return service.name in pods or service.selector.get(POD_ID_LABEL) in pods
