"""Spare pods of an installation: runners that keep them, and those that are there."""

from __future__ import annotations

from support.kube import Json
from support.namespace import is_ready
from support.processes import eventually
from support.runner import RunnerProcess
from support.site import ASKED_FOR, Site

SPARE = "spare"


def start(site: Site, *flags: str, spares: int = 1) -> RunnerProcess:
    place = site.account(f"runner-{len(site.runners)}")
    return site.start(place, f"--spare-pods={spares}", *flags)


def spares(site: Site) -> list[Json]:
    """Those that wait for a function."""
    return [pod for pod in site.living() if pod["metadata"]["annotations"][ASKED_FOR] == SPARE]


def names(pods: list[Json]) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods}


async def until_ready(site: Site, runner: RunnerProcess, count: int = 1) -> set[str]:
    """So many spares are there, and the runner knows it; their names."""
    await eventually(lambda: len([pod for pod in spares(site) if is_ready(pod)]) == count, what="spares", seconds=60)
    found = names(spares(site))
    for name in found:
        runner.wait_for_line(rf'event="pod (ready|adopted)" pod={name} ')
    return found
