"""Keeps the ConfigMaps of the wrapper server where function pods can mount them: made, adopted, made again, extended.

What to do is decided in `core.wrapper_config_maps`; here it is done, in the background. Several runners do it at once:
whoever comes second finds them there, looks into them once, and uses them. What is there is known from a watch of the
metadata alone, since each holds almost a megabyte. A pod is made only when they are there (`wait`): nobody waits for a
mount that cannot succeed.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import structlog

from krm_runner.core.backoff import Backoff
from krm_runner.core.errors import (
    KubernetesConflictError,
    KubernetesError,
    KubernetesInvalidError,
    KubernetesNotFoundError,
    KubernetesUnavailableError,
)
from krm_runner.core.json_object import JsonObject, as_list, as_object
from krm_runner.core.kept_object import deletion, extension
from krm_runner.core.pod_failure import Failed
from krm_runner.core.wrapper_config_maps import (
    SHORTEST_STAY,
    Check,
    ConfigMapFacts,
    Create,
    Delete,
    Extend,
    Part,
    Step,
    facts_of,
    missing,
    mounted_by,
    steps,
)
from krm_runner.kube.reflector import ChangeKind

_log = structlog.get_logger("krm_runner.pods")
_BACKOFF = Backoff(first=0.2, longest=10.0)


class Api(Protocol):
    """What is needed of the Kubernetes API."""

    async def get(self, path: str, query: Mapping[str, str]) -> JsonObject: ...

    async def create(self, path: str, body: JsonObject) -> JsonObject: ...

    async def patch(self, path: str, body: JsonObject) -> JsonObject: ...

    async def delete(self, path: str, body: JsonObject) -> JsonObject: ...


class WrapperConfigMaps:
    """This runner's own ones, and what others have left behind; a copy of the kind `kube.reflector.Copy`."""

    def __init__(
        self,
        api: Api,
        parts: Sequence[Part],
        *,
        namespace: str,
        pod_ttl: float,
        pods: Callable[[], Iterable[JsonObject]],
        scan_interval: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`pods` are those of ours that there are."""
        self._api = api
        self._parts = {part.name: part for part in parts}
        self._namespace = namespace
        self._collection = f"/api/v1/namespaces/{namespace}/configmaps"
        self._stay = max(SHORTEST_STAY, pod_ttl)
        self._pods = pods
        self._scan_interval = scan_interval
        self._clock = clock
        self._seen: dict[str, ConfigMapFacts] = {}
        self._checked: set[str] = set()
        """The uids of those that hold what they should."""
        self._troubles: dict[str, KubernetesError] = {}
        """Why a part is not there, as far as that is known."""
        self._news = asyncio.Event()
        self._turn = asyncio.Event()
        """Set whenever all may be there, or it is known why not; then another one takes its place."""

    async def wait(self, *, deadline: float, trouble: Callable[[str], None]) -> Failed | None:
        """Returns when pods can mount them; why they cannot, when waiting does not help or the time is over."""
        while (name := self._missing()) is not None:
            error = self._troubles.get(name)
            if error is not None and not isinstance(error, KubernetesUnavailableError):
                return missing(error, name=name, namespace=self._namespace)
            why = f": {error}" if error is not None else ""
            trouble(f'ConfigMap "{name}" of the wrapper server is not there yet{why}')
            try:
                async with asyncio.timeout_at(deadline):
                    await self._turn.wait()
            except TimeoutError:
                late = error or KubernetesUnavailableError("it is not there yet")
                return missing(late, name=name, namespace=self._namespace)
        return None

    def _missing(self) -> str | None:
        """The first part that pods could not mount."""
        for name in self._parts:
            facts = self._seen.get(name)
            if facts is None or facts.uid not in self._checked or facts.is_going:
                return name
        return None

    # --- what the watch says --------------------------------------------------------------------------------------

    def replaced(self, objects: list[JsonObject]) -> None:
        """See `kube.reflector.Copy`."""
        found = [facts for facts in map(facts_of, objects) if facts is not None]
        self._seen = {facts.name: facts for facts in found}
        self._checked &= {facts.uid for facts in found}
        self._news.set()

    def changed(self, kind: ChangeKind, found: JsonObject) -> None:
        """See `kube.reflector.Copy`."""
        facts = facts_of(found)
        if facts is None:
            return
        if kind is not ChangeKind.DELETED:
            self._seen[facts.name] = facts
        elif (known := self._seen.get(facts.name)) is not None and known.uid == facts.uid:
            del self._seen[facts.name]
            self._checked.discard(facts.uid)
            if facts.name in self._parts:
                _log.warning("config map of the wrapper server deleted: it is made again", config_map=facts.name)
        self._news.set()

    # --- what is done ---------------------------------------------------------------------------------------------

    async def keep(self) -> None:
        """Do what there is to do, whenever something is new, and now and then; never returns."""
        failures = 0
        while True:
            self._news.clear()
            error = await self._round()
            failures = failures + 1 if error else 0
            self._tell()
            wait = self._scan_interval
            if error is not None:
                wait = _BACKOFF.delay(failures, chance=random.random())  # noqa: S311 - jitter
                if isinstance(error, KubernetesUnavailableError):
                    wait = max(wait, error.retry_after or 0.0)
                # However much is new: who has just been refused does not ask without pause.
                await asyncio.sleep(min(wait, _BACKOFF.first))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._news.wait()

    def _tell(self) -> None:
        turn, self._turn = self._turn, asyncio.Event()
        turn.set()

    async def _round(self) -> KubernetesError | None:
        """Every step that is due; the last error, after which the others are tried all the same."""
        due = steps(
            self._seen,
            self._parts,
            checked=self._checked,
            mounted=mounted_by(self._pods()),
            stay=self._stay,
            now=self._clock(),
        )
        last: KubernetesError | None = None
        before, self._troubles = self._troubles, {}
        for step in list(due):
            name = step.name if isinstance(step, Create) else step.facts.name
            try:
                await self._take(step)
            except KubernetesError as error:
                last = self._troubles[name] = error
                log = _log.debug if name in before else _log.error
                log("config map of the wrapper server not kept", config_map=name, error=str(error))
        return last

    async def _take(self, step: Step) -> None:
        match step:
            case Create(name, reclaim_after):
                await self._create(self._parts[name], reclaim_after)
            case Check(facts):
                await self._look_into(self._parts[facts.name])
            case Extend():
                await self._extend(step)
            case Delete(facts):
                await self._delete(facts)

    async def _create(self, part: Part, reclaim_after: int) -> None:
        try:
            made = await self._api.create(
                self._collection, part.manifest(namespace=self._namespace, reclaim_after=reclaim_after)
            )
        except KubernetesConflictError:
            await self._look_into(part)
            return
        self._note(made)
        _log.info("config map of the wrapper server created", config_map=part.name, namespace=self._namespace)

    async def _look_into(self, part: Part) -> None:
        """At the one of that name, whole."""
        found = await self._api.get(self._collection, {"fieldSelector": f"metadata.name={part.name}"})
        items = [as_object(item) for item in as_list(found.get("items"))]
        if not items:
            self._seen.pop(part.name, None)
            raise KubernetesUnavailableError("it was deleted a moment ago")
        if as_object(items[0].get("metadata")).get("deletionTimestamp"):
            raise KubernetesUnavailableError("it is being deleted")
        if fault := part.fault(items[0]):
            raise KubernetesInvalidError(f"one of that name is there, and {fault}", status=0)
        self._note(items[0])
        _log.info("config map of the wrapper server found", config_map=part.name, namespace=self._namespace)

    def _note(self, found: JsonObject) -> None:
        facts = facts_of(found)
        assert facts is not None  # noqa: S101 - it has our label
        self._seen[facts.name] = facts
        self._checked.add(facts.uid)

    async def _extend(self, step: Extend) -> None:
        facts = step.facts
        try:
            await self._api.patch(f"{self._collection}/{facts.name}", extension(facts, step.reclaim_after))
        except KubernetesNotFoundError:
            self._forget(facts)
        except KubernetesInvalidError as error:
            if "metadata.uid" not in str(error):
                raise
            # Another has its name by now.
            self._forget(facts)
        else:
            if self._seen.get(facts.name) == facts:
                self._seen[facts.name] = step.extended

    async def _delete(self, facts: ConfigMapFacts) -> None:
        try:
            await self._api.delete(f"{self._collection}/{facts.name}", deletion(facts))
        except KubernetesConflictError:
            # Somebody uses it after all.
            return
        except KubernetesNotFoundError:
            pass
        self._forget(facts)
        _log.info("expired config map of a wrapper server deleted", config_map=facts.name)

    def _forget(self, facts: ConfigMapFacts) -> None:
        if (known := self._seen.get(facts.name)) is not None and known.uid == facts.uid:
            del self._seen[facts.name]
