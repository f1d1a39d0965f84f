"""Spare pods: all of a function pod but the function, made before anybody calls it.

Most of a pod's start is the same for every function: a node, an address, volumes, the wrapper server. A spare has all
of that, and its wrapper server waits. Whoever needs a pod puts a function into it (`pod_conversion`): Kubernetes lets
the image of a running pod be replaced, and the kubelet then ends the one container and starts the other. What to
execute cannot be an argument, since those stay as they were: it is an annotation, which the container reads as a
variable when it starts.

Spares are the pods of a function of their own, which is kept ready like any other.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from krm_runner.core.image_metadata import ImageMetadata
from krm_runner.core.json_object import JsonObject, as_list, as_object, as_text

SPARE = "spare"
"""What spares serve, in the place of an image: the canonical form of an image has a colon or an @."""
COMMAND = "krm-runner/command"
"""The annotation that says what a pod executes which was a spare; on a spare it is empty."""
COMMAND_VARIABLE = "KRM_RUNNER_COMMAND"
RESTARTS = "krm-runner/restarts-as-spare"
"""How often the container had been started again when the pod got its function."""
USE_OUR_WRAPPER = (
    "put the image of WRAPPER_SERVER_IMAGE into the init container or the image volume of the pod template, "
    "or set --spare-pods=0"
)
_DIGITS = 8


@dataclass(frozen=True, slots=True)
class Spare:
    """The image of a spare: anything that is on the nodes does, since the wrapper server is what runs. So it does not
    matter to what a spare is, and admission may write it in another way."""

    image: str

    @property
    def asked_for(self) -> str:
        """See `ImageMetadata.asked_for`."""
        return SPARE

    @property
    def pinned(self) -> str:
        """See `ImageMetadata.pinned`; it is taken as it is written."""
        return self.image

    @property
    def digest(self) -> str:
        """Of nothing."""
        return ""


PodImage = ImageMetadata | Spare
"""What a pod can be made for."""


def spare_id(template_version: str, number: int) -> str:
    """The id of the `number`th spare of a template: the same for every runner, as with `naming.pod_id`."""
    return f"krm-spare-{hashlib.sha256(template_version.encode()).hexdigest()[:_DIGITS]}-{number}"


def why_no_spares(pod: JsonObject, wrapper_image: str) -> str:
    """Why no spares are made of a template's Pod; empty if it delivers the wrapper server of `wrapper_image`."""
    spec = as_object(pod.get("spec"))
    copied = {as_text(as_object(each).get("image")) for each in as_list(spec.get("initContainers"))}
    volumes = (as_object(as_object(each).get("image")) for each in as_list(spec.get("volumes")))
    found = (copied | {as_text(volume.get("reference")) for volume in volumes}) - {""}
    if wrapper_image in found:
        return ""
    delivered = f", but {', '.join(sorted(found))}" if found else ""
    return f"the pod template does not deliver the wrapper server of {wrapper_image} (WRAPPER_SERVER_IMAGE){delivered}"


def as_annotation(command: Sequence[str]) -> str:
    r"""A command as the wrapper server reads it: a word on each line, `\n` for a new line, `\\` for a backslash."""
    return "\n".join(word.replace("\\", "\\\\").replace("\n", "\\n") for word in command)
