"""Objects of ours that Kubernetes keeps until their time is over: how this very one is extended, and how it is deleted.

Several runners look after the same objects. What one of them writes must never hit another object that has the name by
now, and a deletion must not hit one that somebody else has extended meanwhile.
"""

from __future__ import annotations

from typing import Protocol

from krm_runner.core.json_object import JsonObject
from krm_runner.core.pod_manifest import RECLAIM_AFTER


class KeptObject(Protocol):
    """What tells it from every other, and from what it was or will be."""

    @property
    def uid(self) -> str: ...

    @property
    def resource_version(self) -> str: ...


def extension(found: KeptObject, reclaim_after: int) -> JsonObject:
    """A merge patch that lets it stay longer; refused as invalid (422) when another has its name by now."""
    return {"metadata": {"uid": found.uid, "annotations": {RECLAIM_AFTER: str(reclaim_after)}}}


def deletion(found: KeptObject) -> JsonObject:
    """The body of a deletion that hits it only as it was seen: one that somebody extended meanwhile stays.

    Without a resourceVersion it is hit whatever became of it.
    """
    preconditions: JsonObject = {"uid": found.uid}
    if found.resource_version:
        preconditions["resourceVersion"] = found.resource_version
    return {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
