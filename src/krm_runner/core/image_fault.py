"""Why an image could not be resolved, before it is known who asked.

A fault is found once and told to everybody who waits for the image, each time as an error of its own that names the
image as that caller wrote it.
"""

from __future__ import annotations

from enum import Enum

from krm_runner.core import errors
from krm_runner.core.errors import EvaluationError, KrmRunnerError


class FaultKind(Enum):
    """What a caller can do about it differs by kind."""

    NOT_FOUND = "not found"
    REFUSED = "refused"
    UNUSABLE = "unusable"
    UNTRUSTED = "untrusted"
    AWAY = "away"


class ImageFault(KrmRunnerError):
    """The message says what went wrong with which registry, and what to do; the image is added by `to_error`."""

    def __init__(self, kind: FaultKind, why: str) -> None:
        super().__init__(why)
        self.kind = kind
        self.why = why

    @property
    def registry_is_away(self) -> bool:
        """Whether the same question may be answered later."""
        return self.kind is FaultKind.AWAY

    def to_error(self, image: str) -> EvaluationError:
        """The error for one caller."""
        match self.kind:
            case FaultKind.NOT_FOUND:
                return errors.ImageNotFoundError(image, why=self.why)
            case FaultKind.REFUSED:
                return errors.ImagePullRefusedError(image, why=self.why)
            case FaultKind.UNUSABLE:
                return errors.ImageUnusableError(image, why=self.why)
            case FaultKind.UNTRUSTED:
                return errors.RegistryUntrustedError(image, why=self.why)
            case FaultKind.AWAY:
                return errors.RegistryUnavailableError(image, why=self.why)
