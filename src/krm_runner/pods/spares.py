"""Decides whether spare pods are kept: only of a template whose wrapper server can wait for a function.

The template must deliver the wrapper server of WRAPPER_SERVER_IMAGE. That image may still be of another make or
version, which the first spare shows: its wrapper server ends, or does not report that it waits. Then no spares are made
until the template changes.
"""

from __future__ import annotations

import structlog

from krm_runner.core.pod_failure import Failed
from krm_runner.core.pod_template import PodTemplate
from krm_runner.core.spare import USE_OUR_WRAPPER, Spare, why_no_spares
from krm_runner.pods.attendant import CANNOT_WAIT, Attendant
from krm_runner.pods.lease import WantedSpare

_log = structlog.get_logger("krm_runner.pods")
_ENDED_BY_ITSELF = ("Error", "CrashLoopBackOff")


class Spares:
    """Logs once for each template version why it has no spares."""

    def __init__(self, wrapper_image: str) -> None:
        self._wrapper_image = wrapper_image
        self._refused = ""

    def of(self, template: PodTemplate) -> WantedSpare | None:
        """The spares of a template; None if it has none."""
        if template.version == self._refused:
            return None
        if why := why_no_spares(template.pod, self._wrapper_image):
            self._refuse(template, why)
            return None
        return WantedSpare(Spare(self._wrapper_image), template)

    def failed(self, attendant: Attendant, failed: Failed, template: PodTemplate) -> None:
        """A spare of the template failed; refuse the template if its wrapper server is the reason."""
        is_ended = failed.reason in _ENDED_BY_ITSELF and not failed.may_pass
        if is_ended or attendant.trouble == CANNOT_WAIT:
            self._refuse(template, f"{CANNOT_WAIT}: {failed.message}" if is_ended else CANNOT_WAIT)

    def _refuse(self, template: PodTemplate, why: str) -> None:
        if template.version != self._refused:
            self._refused = template.version
            _log.warning("no spare pods are kept", why=why, hint=USE_OUR_WRAPPER, template_version=template.version)
