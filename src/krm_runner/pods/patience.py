"""How long a pod is waited for, and what is said of one that does not come.

Mostly the watch tells: a pod serves, or its status says why it never will. What the status does not say, or says late,
is asked for here: a kubelet that cannot start a container tells so in an event, and in the pod's status up to a quarter
minute later. So the events of a pod that this runner starts are read when it is late, less and less often, and at the
end of its time; nothing is read of a pod that comes up as pods do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from krm_runner.core.pod_failure import Failed, overdue
from krm_runner.core.pod_status import PodStatus, Starting
from krm_runner.pods.attendant import Attendant
from krm_runner.pods.cold_start import waits_for
from krm_runner.pods.evidence import Evidence

_FIRST_LOOK = 2.0
"""At the events of a pod that is being started; most are up by then."""


class Patience:
    """Ends after the start timeout."""

    def __init__(
        self,
        evidence: Evidence,
        *,
        seconds: float,
        is_on_its_way: Callable[[Attendant], bool],
        is_started_here: Callable[[Attendant], bool],
    ) -> None:
        self._evidence = evidence
        self._seconds = seconds
        self._is_on_its_way = is_on_its_way
        self._is_started_here = is_started_here

    async def wait(self, attendant: Attendant) -> Failed | None:
        """Why the pod is to be given up; None when it came, went, or serves others and only not us."""
        loop = asyncio.get_running_loop()
        end = loop.time() + self._seconds
        failed = await self._look_for_trouble(attendant, until=end)
        if failed is not None or not self._is_on_its_way(attendant):
            return failed
        await asyncio.sleep(max(0.0, end - loop.time()))
        if not self._is_on_its_way(attendant) or self._serves_others(attendant):
            return None
        status = await self._evidence.status_of(attendant.pod)
        if isinstance(status, Failed) or self._is_on_its_way(attendant):
            return status if isinstance(status, Failed) else self._overdue(attendant, status)
        return None

    def _serves_others(self, attendant: Attendant) -> bool:
        return attendant.is_ready_for_kubernetes and not self._is_started_here(attendant)

    async def _look_for_trouble(self, attendant: Attendant, *, until: float) -> Failed | None:
        loop = asyncio.get_running_loop()
        pause = _FIRST_LOOK
        look = loop.time() + pause
        while look < until:
            await asyncio.sleep(look - loop.time())
            if not self._is_on_its_way(attendant):
                return None
            if self._is_started_here(attendant) and attendant.is_waiting:
                status = await self._evidence.status_of(attendant.pod)
                if isinstance(status, Failed):
                    return status
            look, pause = look + pause, 2 * pause
        return None

    def _overdue(self, attendant: Attendant, status: PodStatus) -> Failed:
        runs = attendant.is_ready_for_kubernetes or (isinstance(status, Starting) and bool(status.address))
        return overdue(*waits_for(status, is_running=runs, trouble=attendant.trouble), after=self._seconds)
