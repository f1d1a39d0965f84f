"""Faults inside the programs themselves: each ends what cannot go on, with a reason, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from integration.conftest import Installation
from support.client import Client
from support.defects import with_defect
from support.metrics import Metrics

LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
COPY = "#!/bin/sh\nexec cat\n"
FRONT_ALONE = pytest.mark.parametrize("installation", ["front"], indirect=True)

UNREPORTABLE = """
from krm_runner.front.ended import EndedCalls
from krm_runner.front.local_functions import LocalFunctions
def report(self, ended, *, unseen, report=EndedCalls.report):
    if "unlucky" in ended.image:
        raise RuntimeError("a defect")
    report(self, ended, unseen=unseen)
EndedCalls.report = report

from krm_runner.front import calls
def record(*arguments, image, record=calls.CallRecord, **more):
    if "untouchable" in image and more["started"] > 0 and not hasattr(record, "is_broken"):
        record.is_broken = True
        raise RuntimeError("a defect")
    return record(*arguments, image=image, **more)
calls.CallRecord = record
"""


@FRONT_ALONE
async def test_a_record_that_cannot_be_handled_is_logged_and_counted(
    installation: Installation, tmp_path: Path
) -> None:
    lucky, unlucky, untouchable = (installation.add(name, COPY) for name in ("lucky", "unlucky", "untouchable"))
    metrics = Metrics()
    runner = installation.start(environment=metrics.environment | with_defect(tmp_path, UNREPORTABLE))
    assert metrics.values("internal_errors_total", where="front message") == [0]
    async with Client(runner.address) as client:
        assert (await client.evaluate(unlucky, LIST)).code == "OK"
        refused = await client.evaluate(untouchable, LIST)
        assert (refused.code, refused.reason) == ("INTERNAL", "UNEXPECTED")
        assert (await client.evaluate(lucky, LIST)).code == "OK"
    for message, image in (("ended", unlucky), ("call", untouchable)):
        words = f'event="unexpected error" where="front message" message={message} image={re.escape(image)}'
        runner.wait_for_line(words)
    assert any("a defect" in line for line in runner.lines)
    runner.wait_for_line(f"event=evaluated image={re.escape(lucky)} runtime=exec code=OK")
    assert metrics.sum("internal_errors_total", where="front message") == 2
    assert runner.process.poll() is None
