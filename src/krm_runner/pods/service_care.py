"""Every pod has its Service, and every Service its pod.

A pod that lost its Service, to a person or to a race of two runners, gets it again; a Service of ours whose pod is gone
is deleted, once it has been alone for as long as a pod may take to start.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection

import structlog

from krm_runner.core.errors import KubernetesError
from krm_runner.pods.attendant import Attendant
from krm_runner.pods.launcher import Launch, Launcher
from krm_runner.pods.services import Services
from krm_runner.pods.tasks import Tasks

_log = structlog.get_logger("krm_runner.pods")
_ALONE = 3.0
"""For how long a pod may be without its Service: the two are shown by two watches."""


class ServiceCare:
    """Acts in the background, by `tasks`."""

    def __init__(
        self,
        launcher: Launcher,
        services: Services,
        tasks: Tasks,
        *,
        patience: float,
        deleted: Callable[[str], None],
    ) -> None:
        self._launcher = launcher
        self._services = services
        self._tasks = tasks
        self._patience = patience
        self._deleted = deleted

    def look_at(self, attendant: Attendant, launch: Callable[[], Launch | None]) -> None:
        """Give the pod a Service if it has none; `launch` says how the pod was made, None when that is not known."""
        now, name = asyncio.get_running_loop().time(), attendant.facts.name
        if self._services.uid(name) or attendant.is_leaving or attendant.verdict is not None:
            attendant.alone_since = None
        elif attendant.alone_since is None:
            attendant.alone_since = now
        elif now - attendant.alone_since > _ALONE and (wanted := launch()) is not None:
            # Once: where Services cannot be seen, asking again would not help.
            attendant.alone_since = math.inf
            self._tasks.start(self._give_service(wanted), name=f"Service of {name}")

    def delete_orphans(self, names: Collection[str]) -> None:
        """`names` are those of all pods that are there or on their way."""
        for name, uid in self._services.orphans(names, now=asyncio.get_running_loop().time()):
            self._tasks.start(self._delete(name, uid), name=f"deletion of Service {name}")

    async def _give_service(self, launch: Launch) -> None:
        _log.warning("pod has no service: it gets one", pod=launch.name)
        deadline = asyncio.get_running_loop().time() + self._patience
        # The pod is there, so that this adopts it and makes what is missing.
        await self._launcher.launch(launch, deadline=deadline, trouble=lambda _: None)

    async def _delete(self, name: str, uid: str) -> None:
        try:
            await self._launcher.delete_service(name, uid)
        except KubernetesError as error:
            _log.warning("orphaned service not deleted, tried again later", service=name, error=str(error))
        else:
            _log.info("orphaned service deleted", service=name)
            self._deleted("orphaned service")
