"""The ConfigMaps that bring the wrapper server into function pods: what they hold, and what to do about them.

One holds a mebibyte at most, and the packed server has more: each has a part of it, as a file, and a pod mounts all of
them as one folder (`wrapper/loader` puts them together). Their names have the hash of their content, so that runners
of one version share them, and those of another have their own. They cannot be changed, only deleted: what a pod starts
is what its runner has put there. Every runner that uses them lets them stay longer; one that nobody uses any more
expires, and goes once no pod has it mounted.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from krm_runner.core.errors import ConfigurationError, KubernetesError
from krm_runner.core.json_object import JsonObject, as_list, as_object, as_text
from krm_runner.core.pod_facts import unix_seconds
from krm_runner.core.pod_failure import Failed, creation_failure, excerpt
from krm_runner.core.pod_manifest import RECLAIM_AFTER, reclaim_time
from krm_runner.core.wrapper_delivery import CONFIG_MAP_PREFIX

LABEL = "krm-runner/wrapper-server"
PART_BYTES = 1_000_000
"""A ConfigMap may hold 1 MiB, by Kubernetes' own rule."""
SHORTEST_STAY = 3600.0
_PROGRAM = "wrapper-server"
"""The file that a pod starts; further parts are beside it, with a number."""
_MAX_PARTS = 4
_PACKED = "packed"
_ELF = b"\x7fELF"
_LABELS = {"app.kubernetes.io/managed-by": "krm-runner", LABEL: _PACKED}


@dataclass(frozen=True, slots=True)
class Part:
    """As much of the packed wrapper server as one ConfigMap holds."""

    name: str
    """Of its ConfigMap."""
    key: str
    """The file that it is in a pod."""
    encoded: str

    def manifest(self, *, namespace: str, reclaim_after: int) -> JsonObject:
        """The ConfigMap, to be created."""
        metadata: JsonObject = {
            "name": self.name,
            "namespace": namespace,
            "labels": dict(_LABELS),
            "annotations": {RECLAIM_AFTER: str(reclaim_after)},
        }
        body: JsonObject = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "immutable": True}
        return {**body, "binaryData": {self.key: self.encoded}}

    def fault(self, found: JsonObject) -> str:
        """Why a ConfigMap of this name is not to be used; empty: it is as this runner would make it."""
        if facts_of(found) is None:
            return f"it does not have our label {LABEL}"
        if found.get("immutable") is not True:
            return "it is not immutable: somebody could change what pods start"
        if as_object(found.get("binaryData")) != {self.key: self.encoded} or found.get("data"):
            return "it holds something else"
        return ""


def parts_of(packed: bytes, *, source: str) -> tuple[Part, ...]:
    """The packed wrapper server for ConfigMaps; ConfigurationError when it is none."""
    if not packed.startswith(_ELF):
        raise ConfigurationError(f"--wrapper-file: {source} is no program for Linux; `make wrapper` builds it")
    if len(packed) > _MAX_PARTS * PART_BYTES:
        raise ConfigurationError(
            f"--wrapper-file: {source} has {len(packed)} bytes, too many for ConfigMaps: "
            "it takes the packed wrapper server, which `make wrapper` builds"
        )
    count = math.ceil(len(packed) / PART_BYTES)
    size = math.ceil(len(packed) / count)
    return tuple(_part(packed[number * size : (number + 1) * size], number) for number in range(count))


def _part(content: bytes, number: int) -> Part:
    key = f"{_PROGRAM}.{number}" if number else _PROGRAM
    name = CONFIG_MAP_PREFIX + hashlib.sha256(content).hexdigest()[:12]
    return Part(name, key, base64.b64encode(content).decode())


@dataclass(frozen=True, slots=True)
class ConfigMapFacts:
    """One that is there, as its metadata say."""

    name: str
    uid: str
    resource_version: str
    reclaim_after: int | None
    """None when it is missing or unreadable: it is given a new time."""
    is_going: bool = False


def facts_of(found: JsonObject) -> ConfigMapFacts | None:
    """None when it does not have our label."""
    metadata = as_object(found.get("metadata"))
    if as_object(metadata.get("labels")).get(LABEL) != _PACKED:
        return None
    return ConfigMapFacts(
        name=as_text(metadata.get("name")),
        uid=as_text(metadata.get("uid")),
        resource_version=as_text(metadata.get("resourceVersion")),
        reclaim_after=unix_seconds(as_text(as_object(metadata.get("annotations")).get(RECLAIM_AFTER))),
        is_going=bool(metadata.get("deletionTimestamp")),
    )


@dataclass(frozen=True, slots=True)
class Create:
    """A part of this runner's version is not there."""

    name: str
    reclaim_after: int


@dataclass(frozen=True, slots=True)
class Check:
    """There is one that this runner has not looked into."""

    facts: ConfigMapFacts


@dataclass(frozen=True, slots=True)
class Extend:
    """It may stay longer."""

    facts: ConfigMapFacts
    reclaim_after: int

    @property
    def extended(self) -> ConfigMapFacts:
        """As it is then; what else the API server makes of it, the watch says."""
        return replace(self.facts, reclaim_after=self.reclaim_after)


@dataclass(frozen=True, slots=True)
class Delete:
    """Its time is over, and no pod has it."""

    facts: ConfigMapFacts


Step = Create | Check | Extend | Delete


def steps(
    seen: Mapping[str, ConfigMapFacts],
    own: Collection[str],
    *,
    checked: Collection[str],
    mounted: Collection[str],
    stay: float,
    now: float,
) -> Iterator[Step]:
    """What to do now; `own` are the names of this runner's parts, `checked` the uids of those that it has looked into.

    `mounted` are the names that pods of ours have, `stay` is for how long one that is in use is kept.
    """
    until = reclaim_time(unix_now=now, ttl=stay)
    for name in own:
        facts = seen.get(name)
        if facts is None or facts.is_going:
            yield Create(name, until)
        elif facts.uid not in checked:
            yield Check(facts)
        elif facts.reclaim_after is None or facts.reclaim_after - now < 0.75 * stay:
            yield Extend(facts, until)
    for facts in seen.values():
        if facts.name in own or facts.is_going:
            continue
        if facts.reclaim_after is None:
            yield Extend(facts, until)
        elif facts.reclaim_after < now and facts.name not in mounted:
            yield Delete(facts)


def mounted_by(pods: Iterable[JsonObject]) -> set[str]:
    """The names of those that pods have in a volume."""
    names: set[str] = set()
    for pod in pods:
        for volume in map(as_object, as_list(as_object(pod.get("spec")).get("volumes"))):
            sources = [volume, *map(as_object, as_list(as_object(volume.get("projected")).get("sources")))]
            names.update(as_text(as_object(source.get("configMap")).get("name")) for source in sources)
    return {name for name in names if name.startswith(CONFIG_MAP_PREFIX)}


def missing(error: KubernetesError, *, name: str, namespace: str) -> Failed:
    """Why no pod can be started: there is no wrapper server for it."""
    failed = creation_failure(error)
    message = f'ConfigMap "{name}" of the wrapper server (--wrapper-delivery=config-map): {failed.message}'
    advice = failed.advice
    if failed.reason == "Forbidden" and not failed.may_pass:
        advice = (
            f"grant the runner create, delete, list, patch and watch on configmaps in {namespace}, "
            "as deploy/components/wrapper-config-map does"
        )
    elif failed.reason == "Invalid":
        advice = "delete it, and the runner makes it again"
    return Failed(failed.reason, excerpt(message), failed.may_pass, advice)
