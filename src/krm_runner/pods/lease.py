"""What is wanted of the keeper, by a call or ahead of all calls, and how a call hears what it got."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from krm_runner.core.errors import EvaluationError, RegistryUnavailableError
from krm_runner.core.image_metadata import ImageMetadata
from krm_runner.core.image_ref import ImageRef
from krm_runner.core.naming import pod_id
from krm_runner.core.pod_template import PodTemplate
from krm_runner.core.pool_terms import Version
from krm_runner.core.spare import SPARE, Spare, spare_id
from krm_runner.pods.attendant import Attendant

Explain = Callable[[str], EvaluationError]
"""Makes the error of one call, from the image as its caller wrote it."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A pod of this function, digest and template."""

    reference: ImageRef
    digest: str
    template: PodTemplate
    image: ImageMetadata | None
    """None while the registry cannot say it: pods that are there serve all the same, and none can be made."""
    why_unknown: str = ""
    spelling: str = ""
    """The image as the last caller wrote it."""
    fresh_until: float = 0.0
    """When a call has to look again what the image is, on the event loop's clock."""

    @property
    def function(self) -> str:
        """What the pool calls it."""
        return self.reference.canonical

    @property
    def version(self) -> Version:
        """What its pods must be."""
        return Version(self.digest, self.template.version)

    def pod_name(self, version: Version, number: int) -> str:
        """Of its pods."""
        return pod_id(self.reference, version.digest, number)

    def unknown_error(self, image: str) -> EvaluationError:
        """The error for a call that would need a new pod."""
        return RegistryUnavailableError(image, why=self.why_unknown)


@dataclass(frozen=True, slots=True)
class WantedSpare:
    """A pod of this template, for whichever function needs one next."""

    image: Spare
    template: PodTemplate

    @property
    def function(self) -> str:
        """See `Wanted.function`."""
        return SPARE

    @property
    def version(self) -> Version:
        """See `Wanted.version`."""
        return Version(self.image.digest, self.template.version)

    def pod_name(self, version: Version, number: int) -> str:
        """See `Wanted.pod_name`."""
        return spare_id(version.template, number)


class Ticket:
    """One call's place with a pod, or on the way to one."""

    __slots__ = ("_answer", "is_refused", "pod", "why")

    def __init__(self) -> None:
        self.pod: Attendant | None = None
        self.is_refused = False
        self.why: Explain | None = None
        """None when too many wait already."""
        self._answer: asyncio.Future[None] | None = None

    @property
    def is_answered(self) -> bool:
        """Whether it is granted or refused."""
        return self.pod is not None or self.is_refused

    def grant(self, pod: Attendant) -> None:
        """The call may go to this pod."""
        self.pod = pod
        self._wake()

    def refuse(self, why: Explain | None) -> None:
        """The call gets no pod."""
        self.is_refused, self.why = True, why
        self._wake()

    async def wait(self) -> None:
        """Until it is granted or refused."""
        self._answer = asyncio.get_running_loop().create_future()
        await self._answer

    def _wake(self) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)
