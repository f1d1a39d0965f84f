"""Pods that are there before it is known whose they will be: first calls that need no new pod."""

from __future__ import annotations

from pathlib import Path

import pytest

from cluster import registries
from cluster.layout import PRIVATE
from images.oci import Image
from support import function_images
from support.audit import AuditLog
from support.calls import served, wish
from support.client import Client
from support.processes import eventually
from support.push import Push
from support.site import Site
from support.spares import names, start, until_ready

SOON = 12
"""Long before a pod's time to start is over."""


@pytest.fixture
def images(push: Push) -> list[str]:
    return [push(f"obliging-{number}", function_images.obliging()) for number in range(3)]


@pytest.mark.parametrize("flags", [(), ("--front=off",)], ids=["front", "front off"])
async def test_a_first_call_is_served_by_a_spare(
    site: Site, images: list[str], flags: tuple[str, ...], audit_log: AuditLog
) -> None:
    image, *_ = images
    runner = start(site, *flags)
    (spare,) = await until_ready(site, runner)
    async with Client(runner.address) as client:
        assert served(await client.evaluate(image, wish())).pod == spare
        assert served(await client.evaluate(image, wish())).pod == spare, "from then on it is the function's"
        # What was used up is made up for.
        (other,) = await until_ready(site, runner)
        assert other != spare
        assert served(await client.evaluate(images[1], wish())).pod == other
    runner.wait_for_line(rf'event="pod ready" pod={spare} image=\S*obliging-0:v1 ')
    assert len(audit_log.done("create", "pods", site.functions.name)) <= 3


async def test_an_entrypoint_that_is_not_there_is_told_as_ever(site: Site, push: Push) -> None:
    image = push("absent", Image((function_images.alpine(),), entrypoint=("/nowhere/function",)))
    runner = start(site)
    (spare,) = await until_ready(site, runner)
    async with Client(runner.address) as client:
        answer = await client.evaluate(image, wish(), timeout=SOON)
    assert (answer.code, answer.reason) == ("FAILED_PRECONDITION", "POD_CANNOT_START")
    assert spare in answer.message
    assert "the entrypoint /nowhere/function cannot be executed: there is no such file" in answer.message
    await eventually(lambda: spare not in names(site.pods()), what="the pod is gone", seconds=60)


async def test_an_image_that_the_kubelet_may_not_pull_is_told_as_ever(site: Site, push: Push, tmp_path: Path) -> None:
    image = push("private", function_images.obliging(mark=push.prefix), PRIVATE)
    (tmp_path / "config.json").write_text(registries.pull_secret(PRIVATE))
    runner = site.start(site.account(), "--spare-pods=1", environment={"DOCKER_CONFIG": str(tmp_path)})
    (spare,) = await until_ready(site, runner)
    async with Client(runner.address) as client:
        answer = await client.evaluate(image, wish(), timeout=SOON)
    assert (answer.code, answer.reason) == ("FAILED_PRECONDITION", "POD_CANNOT_START")
    assert "401 Unauthorized" in answer.message
    assert spare in answer.message
