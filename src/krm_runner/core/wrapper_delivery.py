"""The ways in which the wrapper server comes into a function pod.

An init container copies it, as in Porch: every cluster can do that, and it has to be started and seen to end before the
function's own container is, by a kubelet that looks at containers once a second. Where the cluster can mount images, a
volume of the wrapper image has it when the pod starts.
"""

from __future__ import annotations

from dataclasses import dataclass

DELIVERIES = ("init-container", "image-volume")


@dataclass(frozen=True, slots=True)
class InitContainer:
    """Copies it out of its image."""

    image: str


@dataclass(frozen=True, slots=True)
class ImageVolume:
    """Its image, mounted: on by default from Kubernetes 1.35 on, where the container runtime can do it."""

    image: str


WrapperDelivery = InitContainer | ImageVolume
