"""Pods on their way, with a launcher that is played."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from opentelemetry.metrics import NoOpMeter
from structlog.testing import capture_logs

from krm_runner.core import image_ref
from krm_runner.core.errors import KubernetesError, KubernetesForbiddenError
from krm_runner.core.image_metadata import ImageMetadata
from krm_runner.core.json_object import JsonObject, as_object, as_text
from krm_runner.core.pod_failure import Failed
from krm_runner.core.pod_manifest import POD_ID_LABEL
from krm_runner.core.pod_template import PodTemplate
from krm_runner.core.pool import Pool
from krm_runner.core.pool_terms import Effects, Observed, PodState, Refuse, StartPod, Version
from krm_runner.core.spare import SPARE, Spare
from krm_runner.pods.addresses import Addresses
from krm_runner.pods.census import Census
from krm_runner.pods.channels import Channels
from krm_runner.pods.function_limits import FunctionLimits
from krm_runner.pods.launcher import Created, Launch, Launcher
from krm_runner.pods.lease import Explain, Ticket, Wanted, WantedSpare
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


class Outrun:
    """Creates a pod of the uid "own"; before the answer is there, the watch has shown that a pod of the name went."""

    def __init__(self, uid: str) -> None:
        self.uid = uid
        self.starting: Starting | None = None

    async def launch(self, launch: Launch, **_: Any) -> Created:
        start = self.starting.find(launch.name) if self.starting is not None else None
        assert start is not None
        start.gone.add(self.uid)
        await asyncio.sleep(0)
        return Created("own")


@pytest.mark.parametrize(("uid", "then"), [("own", [StartPod]), ("of a predecessor", [])])
async def test_a_pod_is_gone_and_replaced_if_it_is_that_of_the_launch(
    tmp_path: Path, uid: str, then: list[type[StartPod]]
) -> None:
    launcher = Outrun(uid)
    pool, starting, effects, tasks, wanted, functions = parts(tmp_path, launcher)
    launcher.starting = starting
    limits = functions.of(wanted.function).limits
    (start,) = pool.acquire(Ticket(), wanted.function, wanted.version, limits, now=0.0)
    assert isinstance(start, StartPod)
    starting.begin(start, wanted)
    async with asyncio.timeout(10):
        while (cold := starting.find(start.name)) is not None and not cold.is_launched:
            await asyncio.sleep(0)
    for _ in range(3):
        await asyncio.sleep(0)
    assert [type(effect) for effect in effects] == then
    await tasks.stop()


def empty_census() -> Census:
    return Census(
        addresses=cast(Addresses, None),
        channels=cast(Channels, None),
        came=lambda _: None,
        changed=lambda _: None,
        converted=lambda _: None,
        gone=lambda _attendant, _why: None,
    )


def parts(
    tmp_path: Path, launcher: object
) -> tuple[Pool[Ticket], Starting, Effects[Ticket], Tasks, Wanted, FunctionLimits]:
    """A pool and what starts its pods, by a launcher that is played."""
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
        census=empty_census(),
        launcher=cast(Launcher, launcher),
        functions=functions,
        metrics=PodMetrics(NoOpMeter("test")),
        tasks=tasks,
        timeout=60,
        clock=lambda: 0.0,
    )
    image = ImageMetadata(REFERENCE, DIGEST, DIGEST, None, ("function",))
    wanted = Wanted(REFERENCE, DIGEST, PodTemplate({}, {}, version="1"), image)
    return pool, starting, effects, tasks, wanted, functions


async def test_a_defect_in_a_start_is_told_at_once_to_whoever_waits_for_the_pod(tmp_path: Path) -> None:
    pool, starting, effects, tasks, wanted, functions = parts(tmp_path, BrokenLauncher())
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


class Conversions:
    """Converts those spares that it is told to, in the place of a launcher; launches end with what was launched."""

    def __init__(self, *outcomes: bool | KubernetesError) -> None:
        self.outcomes = list(outcomes)
        self.tried: list[str] = []
        self.launched: list[str] = []

    async def convert(self, spare: JsonObject, launch: Launch) -> bool:
        self.tried.append(as_text(as_object(spare["metadata"])["name"]))
        await asyncio.sleep(0)
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, KubernetesError):
            raise outcome
        return outcome

    async def launch(self, launch: Launch, **_: Any) -> Failed:
        self.launched.append(launch.name)
        return Failed("NotNow", "the test ends here", may_pass=True)


class Stage:
    """A function that needs a pod, and two spares that are ready."""

    def __init__(self, tmp_path: Path, *outcomes: bool | KubernetesError) -> None:
        config = tmp_path / "config.yaml"
        config.write_text("- name: example.com/large:v1\n  resources: {limits: {memory: 1Gi}}\n")
        self.functions = FunctionLimits(
            config,
            default_prefix="",
            ttl=100,
            max_waitlist_length=2,
            max_parallel_pods=1,
            max_queue_length=10,
            spares=2,
        )
        self.functions.load()
        self.pool: Pool[Ticket] = Pool(lambda function, _, number: f"{function.rpartition('/')[2][:5]}-{number}")
        self.launcher = Conversions(*outcomes)
        self.effects = cast(Effects[Ticket], [])
        self.tasks = Tasks()
        self.census = empty_census()
        self.starting = Starting(
            self.pool,
            self.effects.extend,
            census=self.census,
            launcher=cast(Launcher, self.launcher),
            functions=self.functions,
            metrics=PodMetrics(NoOpMeter("test")),
            tasks=self.tasks,
            timeout=1,
            clock=lambda: 0.0,
        )
        spares = self.starting.spares = WantedSpare(Spare("example.com/wrapper:v1"), TEMPLATE)
        limits = self.functions.of(SPARE).limits
        for effect in self.pool.keep_ready(SPARE, spares.version, limits, now=0.0):
            assert isinstance(effect, StartPod)
            metadata = {"name": effect.name, "uid": effect.name, "labels": {POD_ID_LABEL: effect.name}}
            self.census.replaced([*(each.pod for each in self.census), {"metadata": metadata}])
            seen = Observed(effect.name, effect.name, SPARE, spares.version, PodState.READY, 100.0)
            self.pool.observed(seen, limits, now=0.0)

    async def start(self, image: str = "example.com/function:v1", template: PodTemplate | None = None) -> list[str]:
        """The names of the function's pods once its start has come so far."""
        pods = await self.begin(image, template)
        await self.tasks.stop()
        return pods

    async def begin(self, image: str, template: PodTemplate | None = None) -> list[str]:
        """The same, and it goes on."""
        reference = image_ref.parse(image, default_prefix="")
        found = ImageMetadata(reference, DIGEST, DIGEST, None, ("function",))
        wanted = Wanted(reference, DIGEST, template or TEMPLATE, found)
        limits = self.functions.of(wanted.function).limits
        (effect,) = self.pool.acquire(Ticket(), wanted.function, wanted.version, limits, now=0.0)
        assert isinstance(effect, StartPod)
        self.starting.begin(effect, wanted)
        async with asyncio.timeout(10):
            while not self.launcher.launched and effect.name in self.pool.pods(wanted.function):
                await asyncio.sleep(0)
        return list(self.pool.pods(wanted.function))


TEMPLATE = PodTemplate({}, {}, version="1")


async def test_a_pod_is_made_of_a_spare(tmp_path: Path) -> None:
    stage = Stage(tmp_path, True)
    assert await stage.start() == ["spare-1"]
    assert (stage.launcher.tried, stage.launcher.launched) == (["spare-1"], [])
    assert "spare-1" in stage.starting
    assert stage.pool.ready(SPARE, Version("", "1")) == ["spare-2"]


async def test_a_spare_that_another_runner_took_is_no_reason_to_wait(tmp_path: Path) -> None:
    stage = Stage(tmp_path, False, True)
    assert await stage.start() == ["spare-2"]
    assert stage.launcher.tried == ["spare-1", "spare-2"]


async def test_without_a_spare_that_can_be_had_a_pod_is_made(tmp_path: Path) -> None:
    stage = Stage(tmp_path, False, False)
    await stage.start()
    assert (stage.launcher.tried, stage.launcher.launched) == (["spare-1", "spare-2"], ["funct-1"])


async def test_a_cluster_that_does_not_allow_it_is_not_asked_twice(tmp_path: Path) -> None:
    stage = Stage(tmp_path, KubernetesForbiddenError("a policy forbids it"))
    with capture_logs() as logs:
        await stage.start()
    assert (stage.launcher.tried, stage.launcher.launched) == (["spare-1"], ["funct-1"])
    (line,) = [line for line in logs if line["event"] == "spare given up"]
    assert (line["image"], line["error"]) == ("example.com/function:v1", "a policy forbids it")


@pytest.mark.parametrize(
    ("image", "template"),
    [("example.com/large:v1", TEMPLATE), ("example.com/funct:v1", PodTemplate({}, {}, version="2"))],
    ids=["resources of its own", "another template"],
)
async def test_what_no_spare_is_like_gets_a_pod_of_its_own(tmp_path: Path, image: str, template: PodTemplate) -> None:
    stage = Stage(tmp_path)
    await stage.start(image, template)
    assert (stage.launcher.tried, len(stage.launcher.launched)) == ([], 1)


async def test_starts_at_the_same_time_get_different_spares(tmp_path: Path) -> None:
    stage = Stage(tmp_path, True, True)
    pods = await asyncio.gather(stage.begin("example.com/one:v1"), stage.begin("example.com/two:v1"))
    await stage.tasks.stop()
    assert sorted(pods) == [["spare-1"], ["spare-2"]]
