"""What a pod that exists says of itself: who made it, what it serves, how long it may stay.

The counterpart of `pod_manifest`. A restarted runner, and every other replica, knows function pods from here alone. A
pod without our label has no facts: it is nobody's business.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from krm_runner.core.function_container import function_image
from krm_runner.core.json_object import JsonObject, as_object, as_text
from krm_runner.core.pod_conversion import is_converted
from krm_runner.core.pod_manifest import ASKED_FOR, POD_ID_LABEL, RECLAIM_AFTER, TEMPLATE_VERSION, TOKEN_NONCE
from krm_runner.core.spare import SPARE, PodImage, Spare

_UNIX_SECONDS = re.compile(r"[0-9]{1,12}")


@dataclass(frozen=True, slots=True)
class PodFacts:
    """One pod. Text that is missing is empty."""

    name: str
    uid: str
    resource_version: str
    pod_id: str
    asked_for: str
    """The canonical image whose calls it serves; empty for pods that another program made."""
    pinned: str
    """The image that its function container runs, by digest."""
    template_version: str
    reclaim_after: int | None
    """None when it is missing or unreadable: such a pod is given a new time."""
    token_nonce: str = ""
    """What its token is made of, beside a key that runners have."""
    is_converted: bool = False
    """Whether it was a spare before it had its function."""

    @property
    def digest(self) -> str:
        """Of the image that it runs; empty when that is not named by digest, or does not matter."""
        return "" if self.asked_for == SPARE else self.pinned.partition("@")[2]

    def serves(self, image: PodImage, *, template_version: str) -> bool:
        """Whether calls for this image, as it is resolved now, may go to this pod."""
        if isinstance(image, Spare):
            return (self.asked_for, self.template_version) == (SPARE, template_version)
        return (self.asked_for, self.pinned, self.template_version) == (
            image.asked_for,
            image.pinned,
            template_version,
        )


def facts_of(pod: JsonObject) -> PodFacts | None:
    """The facts of a pod as the API server has it; None when it does not have our label."""
    metadata = as_object(pod.get("metadata"))
    pod_id = as_text(as_object(metadata.get("labels")).get(POD_ID_LABEL))
    if not pod_id:
        return None
    annotations = as_object(metadata.get("annotations"))
    return PodFacts(
        name=as_text(metadata.get("name")),
        uid=as_text(metadata.get("uid")),
        resource_version=as_text(metadata.get("resourceVersion")),
        pod_id=pod_id,
        asked_for=as_text(annotations.get(ASKED_FOR)),
        pinned=function_image(pod),
        template_version=as_text(annotations.get(TEMPLATE_VERSION)),
        reclaim_after=unix_seconds(as_text(annotations.get(RECLAIM_AFTER))),
        token_nonce=as_text(annotations.get(TOKEN_NONCE)),
        is_converted=is_converted(pod),
    )


def unix_seconds(text: str) -> int | None:
    """The time that an annotation says; None when it says none."""
    return int(text) if _UNIX_SECONDS.fullmatch(text) else None
