"""Pods on their way, with a launcher that is played."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

from opentelemetry.metrics import NoOpMeter
from structlog.testing import capture_logs

from krm_runner.core import image_ref
from krm_runner.core.image_metadata import ImageMetadata
from krm_runner.core.pod_template import PodTemplate
from krm_runner.core.pool import Pool
from krm_runner.core.pool_terms import Effects, Refuse, StartPod
from krm_runner.pods.census import Census
from krm_runner.pods.function_limits import FunctionLimits
from krm_runner.pods.launcher import Launch, Launcher
from krm_runner.pods.lease import Explain, Ticket, Wanted
from krm_runner.pods.starting import Starting
from krm_runner.pods.tasks import Tasks
from krm_runner.telemetry.pod_metrics import PodMetrics

REFERENCE = image_ref.parse("example.com/set-namespace:v1", default_prefix="")
DIGEST = "sha256:" + "0" * 64


class BrokenLauncher:
    """Has a defect."""

    async def launch(self, launch: Launch, **_: Any) -> None:
        await asyncio.sleep(0)
        raise AttributeError("a defect, for the test")


async def test_a_defect_in_a_start_is_told_at_once_to_whoever_waits_for_the_pod(tmp_path: Path) -> None:
    functions = FunctionLimits(
        tmp_path / "absent",
        default_prefix="",
        ttl=100,
        max_waitlist_length=2,
        max_parallel_pods=1,
        max_queue_length=10,
    )
    pool: Pool[Ticket] = Pool(lambda _function, _version, number: f"pod-{number}")
    tasks, effects = Tasks(), cast(Effects[Ticket], [])
    starting = Starting(
        pool,
        effects.extend,
        census=cast(Census, None),
        launcher=cast(Launcher, BrokenLauncher()),
        functions=functions,
        metrics=PodMetrics(NoOpMeter("test")),
        tasks=tasks,
        timeout=60,
        clock=lambda: 0.0,
    )
    image = ImageMetadata(REFERENCE, DIGEST, DIGEST, None, ("function",))
    wanted = Wanted(REFERENCE, DIGEST, PodTemplate({}, {}, version="1"), image)
    ticket = Ticket()
    (start,) = pool.acquire(ticket, wanted.function, wanted.version, functions.of(wanted.function).limits, now=0.0)
    assert isinstance(start, StartPod)
    with capture_logs() as logs:
        starting.begin(start, wanted)
        async with asyncio.timeout(10):
            while not effects or start.name in starting:
                await asyncio.sleep(0)
        await asyncio.sleep(0)
    (refused,) = effects
    assert isinstance(refused, Refuse)
    assert refused.ticket is ticket
    error = cast(Explain, refused.why)("set-namespace:v1")
    assert (error.reason, str(error)) == (
        "UNEXPECTED",
        'function "set-namespace:v1": unexpected AttributeError in the runner; its log has the details',
    )
    assert [line["what"] for line in logs if line["event"] == "unexpected error"] == ["start of pod-1"]
    await tasks.stop()
