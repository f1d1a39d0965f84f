"""Puts function pods into the cluster, each with its Service, lets them stay longer, and takes them out again.

Pod and Service are created at once. What may pass (the API server is away, overloaded, or a name is just being freed)
is tried again until the deadline; a refusal counts at once. Runners that start together name one pod: whoever comes
second finds it, and adopts it when it serves the same; so does whoever lost the answer to its own creation. Halves do
not stay: when one of the two cannot be had, the other one goes again if this launch made it. A launch that is called
off finishes what is under way, for a moment; a whole pair stays then, for whoever comes next.

Nothing is touched that does not have our label, and nothing is deleted but as it was seen.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol, TypeVar

import structlog

from krm_runner.core.backoff import Backoff
from krm_runner.core.errors import (
    KubernetesConflictError,
    KubernetesError,
    KubernetesInvalidError,
    KubernetesNotFoundError,
    KubernetesUnavailableError,
)
from krm_runner.core.image_metadata import ImageMetadata
from krm_runner.core.json_object import JsonObject, as_object, as_text
from krm_runner.core.kept_object import deletion, extension
from krm_runner.core.pod_conversion import conversion
from krm_runner.core.pod_facts import PodFacts, facts_of
from krm_runner.core.pod_failure import Failed, creation_failure
from krm_runner.core.pod_manifest import FunctionPod, Manifests, render
from krm_runner.core.pod_template import PodTemplate
from krm_runner.core.resources import NO_RESOURCES, Resources
from krm_runner.core.service_facts import service_deletion, service_facts_of
from krm_runner.core.spare import SPARE, PodImage
from krm_runner.pods.pod_tokens import PodTokens

T = TypeVar("T")

_log = structlog.get_logger("krm_runner.pods")
_BACKOFF = Backoff(first=0.1, longest=5.0)
_REQUEST_TIMEOUT = 10.0
_CLEAN_UP_TIMEOUT = 5.0
_CONVERSION_TIMEOUT = 2.0
"""After that a pod of its own is as quick."""


class Api(Protocol):
    """What is needed of the Kubernetes API."""

    async def get(self, path: str, *, timeout: float | None = None) -> JsonObject: ...

    async def create(self, path: str, body: JsonObject, *, timeout: float | None = None) -> JsonObject: ...

    async def patch(self, path: str, body: JsonObject, *, timeout: float | None = None) -> JsonObject: ...

    async def delete(self, path: str, body: JsonObject, *, timeout: float | None = None) -> JsonObject: ...


@dataclass(frozen=True, slots=True)
class Launch:
    """A pod that is wanted."""

    name: str
    image: PodImage
    template: PodTemplate
    reclaim_after: float
    """In unix seconds."""
    resources: Resources = NO_RESOURCES


@dataclass(frozen=True, slots=True)
class Created:
    """The pod is new."""

    uid: str


@dataclass(frozen=True, slots=True)
class Adopted:
    """A pod of this name was there, and serves the same."""

    uid: str


@dataclass(frozen=True, slots=True)
class NameTaken:
    """By something else: another name may do."""

    why: str


Launched = Created | Adopted | NameTaken | Failed


@dataclass(frozen=True, slots=True)
class _Service:
    """One that leads to the pod."""

    uid: str
    is_new: bool
    """This launch made it, or may have: its answer was lost."""


@dataclass
class _Attempt:
    """One launch: what it makes, until when it tries, who hears of its trouble."""

    launch: Launch
    manifests: Manifests
    deadline: float
    trouble: Callable[[str], None]
    called_off: asyncio.Event = field(default_factory=asyncio.Event)
    """Nobody waits any more, or the other half cannot be had."""
    has_trouble: bool = False
    has_lost_service: bool = False
    """There was no answer to the creation of the Service."""
    refusal: NameTaken | Failed | None = None
    """Why it came to nothing: what was refused first."""

    def refuse(self, why: NameTaken | Failed) -> None:
        """There will be no pair, so that the other half need not be tried any longer."""
        self.refusal = self.refusal or why
        self.called_off.set()

    def check(self) -> None:
        """Before every request."""
        if self.called_off.is_set():
            raise KubernetesUnavailableError("the launch was called off")

    @property
    def seconds(self) -> float:
        """How long the next request may take."""
        left = self.deadline - asyncio.get_running_loop().time()
        return min(_REQUEST_TIMEOUT, max(0.05, left))

    async def goes_on(self, error: KubernetesUnavailableError, failures: int) -> bool:
        """Wait a while before the next try; False when there is none."""
        if self.called_off.is_set():
            return False
        self.trouble(str(error))
        if not self.has_trouble:
            self.has_trouble = True
            _log.warning("pod launch delayed", pod=self.launch.name, image=_image(self.launch), error=str(error))
        delay = max(_BACKOFF.delay(failures, chance=random.random()), error.retry_after or 0.0)  # noqa: S311 - jitter
        if asyncio.get_running_loop().time() + delay >= self.deadline:
            return False
        try:
            await asyncio.wait_for(self.called_off.wait(), delay)
        except TimeoutError:
            return True
        return False


class Launcher:
    """Of one namespace."""

    def __init__(
        self,
        api: Api,
        *,
        namespace: str,
        max_message_bytes: int,
        pull_secret: str = "",
        tokens: PodTokens | None = None,
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._max_message_bytes = max_message_bytes
        self._pull_secret = pull_secret
        self._tokens = tokens or PodTokens()
        self._pods = f"/api/v1/namespaces/{namespace}/pods"
        self._services = f"/api/v1/namespaces/{namespace}/services"

    async def launch(self, launch: Launch, *, deadline: float, trouble: Callable[[str], None]) -> Launched:
        """What became of it; raises nothing but CancelledError. `trouble` hears what it tries again after."""
        attempt = _Attempt(launch, self._render(launch), deadline, trouble)
        work = asyncio.create_task(self._make_both(attempt))
        try:
            result = await asyncio.shield(work)
        except asyncio.CancelledError:
            attempt.called_off.set()
            await _end(work)
            raise
        _say(launch, result)
        return result

    async def convert(self, spare: JsonObject, launch: Launch) -> bool:
        """Make a spare the pod of this launch; False when it is not to be had any more, or does not do.

        Else a KubernetesError says why: then it may have become so all the same, and the watch shows it.
        """
        facts, image = facts_of(spare), launch.image
        assert facts is not None  # noqa: S101 - a spare is one of ours
        assert isinstance(image, ImageMetadata)  # noqa: S101 - nothing else is put into one
        if facts.asked_for != SPARE:
            # Another runner was faster.
            return False
        patch = conversion(spare, facts, image, reclaim_after=math.ceil(launch.reclaim_after))
        if patch is None:
            return False
        try:
            await self._api.patch(f"{self._pods}/{facts.name}", patch, timeout=_CONVERSION_TIMEOUT)
        except (KubernetesNotFoundError, KubernetesConflictError):
            return False
        _log.info("pod made of a spare", pod=facts.name, image=_image(launch), uid=facts.uid)
        return True

    async def extend(self, facts: PodFacts, reclaim_after: float) -> bool:
        """Let a pod stay longer; False when it is gone, or another has its name. Else a KubernetesError says why."""
        try:
            await self._api.patch(f"{self._pods}/{facts.name}", extension(facts, math.ceil(reclaim_after)))
        except KubernetesNotFoundError:
            return False
        except KubernetesInvalidError as error:
            if "metadata.uid" not in str(error):
                raise
            return False
        return True

    async def delete(self, facts: PodFacts, *, service_uid: str = "") -> bool:
        """Delete a pod as it was seen, and then its Service; False when somebody changed the pod meanwhile.

        One that is gone counts as deleted. A Service that could not be deleted is an orphan, and goes as such.
        """
        try:
            await self._api.delete(f"{self._pods}/{facts.name}", deletion(facts))
        except KubernetesNotFoundError:
            pass
        except KubernetesConflictError as error:
            _log.info("pod not deleted", pod=facts.name, image=facts.asked_for, reason=str(error))
            # When another pod has the name by now, so it has the Service.
            return await self._is_gone(facts)
        _log.debug("pod deletion accepted", pod=facts.name, image=facts.asked_for, uid=facts.uid)
        if service_uid:
            try:
                await self.delete_service(facts.name, service_uid)
            except KubernetesError as error:
                _log.warning("service of a pod not deleted", service=facts.name, error=str(error))
        return True

    async def delete_service(self, name: str, uid: str) -> None:
        """Delete this Service; one that is gone, or another of the name, is none of it."""
        try:
            await self._api.delete(f"{self._services}/{name}", service_deletion(uid))
        except (KubernetesNotFoundError, KubernetesConflictError):
            return
        _log.debug("service deleted", service=name, uid=uid)

    def _render(self, launch: Launch) -> Manifests:
        return render(
            launch.template,
            FunctionPod(
                pod_id=launch.name,
                namespace=self._namespace,
                image=launch.image,
                max_message_bytes=self._max_message_bytes,
                reclaim_after=math.ceil(launch.reclaim_after),
                resources=launch.resources,
                pull_secret=self._pull_secret,
                token_nonce=secrets.token_urlsafe(16) if launch.template.token_key else "",
            ),
        )

    def _claimed(self, pod: JsonObject, launch: Launch) -> Adopted | NameTaken:
        facts = facts_of(pod)
        if facts is None:
            return NameTaken(f'pod "{launch.name}" is none of ours')
        if _is_going(pod):
            return NameTaken(f'pod "{launch.name}" is being deleted')
        version = self._tokens.version_of(facts)
        if replace(facts, template_version=version).serves(launch.image, template_version=launch.template.version):
            return Adopted(facts.uid)
        return NameTaken(
            f'pod "{launch.name}" serves {facts.asked_for or "an unknown image"} '
            f"as {facts.pinned or 'an unknown image'} by template version {facts.template_version or 'unknown'}"
        )

    async def _is_gone(self, facts: PodFacts) -> bool:
        try:
            return _uid(await self._api.get(f"{self._pods}/{facts.name}")) != facts.uid
        except KubernetesNotFoundError:
            return True

    async def _make_both(self, attempt: _Attempt) -> Launched:
        pod_made = asyncio.create_task(self._until_settled(attempt, self._make_pod))
        service_made = asyncio.create_task(
            self._until_settled(attempt, lambda attempt: self._make_service(attempt, pod_made))
        )
        try:
            pod, service = await asyncio.gather(pod_made, service_made)
        finally:
            pod_made.cancel()
            service_made.cancel()
        if isinstance(pod, Created | Adopted) and attempt.refusal is None:
            return pod
        if isinstance(pod, Created):
            await self._take_back(f"{self._pods}/{attempt.launch.name}", pod.uid)
        if isinstance(service, _Service) and service.is_new and not await self._has_pod(attempt):
            await self._take_back(f"{self._services}/{attempt.launch.name}", service.uid)
        assert attempt.refusal is not None  # noqa: S101 - a half that is missing was refused
        return attempt.refusal

    async def _until_settled(self, attempt: _Attempt, make: Callable[[_Attempt], Awaitable[T]]) -> T | Failed:
        """Try until it is there, refused, or there is no time left."""
        failures = 0
        while True:
            try:
                attempt.check()
                result = await make(attempt)
            except KubernetesUnavailableError as error:
                failures += 1
                if await attempt.goes_on(error, failures):
                    continue
                failed = creation_failure(error)
            except KubernetesError as error:
                failed = creation_failure(error)
            else:
                if isinstance(result, NameTaken):
                    attempt.refuse(result)
                return result
            attempt.refuse(failed)
            return failed

    async def _make_pod(self, attempt: _Attempt) -> Created | Adopted | NameTaken:
        try:
            made = await self._api.create(self._pods, attempt.manifests.pod, timeout=attempt.seconds)
        except KubernetesConflictError as conflict:
            found = await self._find(f"{self._pods}/{attempt.launch.name}", attempt, conflict)
            return self._claimed(found, attempt.launch)
        return Created(_uid(made))

    async def _make_service(
        self, attempt: _Attempt, pod_made: asyncio.Task[Created | Adopted | NameTaken | Failed]
    ) -> _Service | NameTaken:
        name = attempt.launch.name
        try:
            made = await self._api.create(self._services, attempt.manifests.service, timeout=attempt.seconds)
        except KubernetesConflictError as conflict:
            found = await self._find(f"{self._services}/{name}", attempt, conflict)
        except KubernetesUnavailableError as error:
            attempt.has_lost_service |= error.is_sent
            raise
        else:
            return _Service(_uid(made), is_new=True)
        facts = service_facts_of(found)
        if facts is None:
            return NameTaken(f'Service "{name}" is none of ours')
        if facts.is_going:
            raise KubernetesUnavailableError(f'Service "{name}" is being deleted')
        if facts.leads_to(attempt.manifests.pod):
            return _Service(facts.uid, is_new=attempt.has_lost_service)
        # It may be that of a pod of another template that has this name: then it stays as it is.
        if not isinstance(await asyncio.shield(pod_made), Created | Adopted):
            return NameTaken(f'Service "{name}" leads to another pod')
        await self.delete_service(name, facts.uid)
        raise KubernetesUnavailableError(f'Service "{name}" led elsewhere and is replaced')

    async def _find(self, path: str, attempt: _Attempt, conflict: KubernetesConflictError) -> JsonObject:
        """What has the name. A conflict over something else (a quota's count), or with what is gone again, may pass."""
        try:
            return await self._api.get(path, timeout=attempt.seconds)
        except KubernetesNotFoundError:
            raise KubernetesUnavailableError(str(conflict)) from conflict

    async def _has_pod(self, attempt: _Attempt) -> bool:
        """Whether the Service that this launch made is of use to a pod that another runner made meanwhile."""
        service = service_facts_of(attempt.manifests.service)
        assert service is not None  # noqa: S101 - it is rendered with our label
        try:
            pod = await self._api.get(f"{self._pods}/{attempt.launch.name}", timeout=_CLEAN_UP_TIMEOUT)
        except KubernetesError:
            return False
        return service.leads_to(pod) and not _is_going(pod)

    async def _take_back(self, path: str, uid: str) -> None:
        """Delete what this launch made. What cannot be deleted now has a time of its own after which it goes."""
        try:
            await self._api.delete(path, service_deletion(uid), timeout=_CLEAN_UP_TIMEOUT)
        except (KubernetesNotFoundError, KubernetesConflictError):
            return
        except KubernetesError as error:
            _log.warning("half of a launch stays behind", path=path, error=str(error))
            return
        _log.info("half of a launch taken back", path=path)


async def _end(work: asyncio.Task[Launched]) -> None:
    """A moment for what is under way; then it is cut off, and what it may have left goes by its time."""
    try:
        await asyncio.wait({work}, timeout=_CLEAN_UP_TIMEOUT)
    finally:
        work.cancel()
    await asyncio.wait({work})


def _say(launch: Launch, result: Launched) -> None:
    facts = {"pod": launch.name, "image": _image(launch)}
    match result:
        case Created(uid):
            _log.info("pod created", **facts, uid=uid, template_version=launch.template.version)
        case Adopted(uid):
            _log.info("pod was there already", **facts, uid=uid)
        case NameTaken(why):
            _log.info("pod name taken", **facts, reason=why)
        case Failed(reason, message):
            _log.warning("pod not created", **facts, reason=reason, error=message)


def _image(launch: Launch) -> str:
    return launch.image.asked_for


def _is_going(pod: JsonObject) -> bool:
    return bool(as_object(pod.get("metadata")).get("deletionTimestamp"))


def _uid(found: JsonObject) -> str:
    return as_text(as_object(found.get("metadata")).get("uid"))
