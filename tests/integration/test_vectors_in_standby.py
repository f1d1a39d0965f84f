"""All of tests/vectors once more, with processes in standby: the answers are the same."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from integration.test_vectors import Runners, Vector, has_nothing_left, of, try_vector
from support.front import built_front
from support.processes import eventually


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ACTS_EARLY = names(
    """
    exit-1-with-results-in-json exit-1-with-results-of-v1alpha1 exit-1-with-results-of-wrong-types
    exit-1-without-a-word exit-255 exit-3-with-stderr grandchild-of-a-failed-function input-closed-early input-ignored
    killed-by-sigkill killed-by-sigsegv log-cut-to-fit no-arguments ok-with-log output-before-input
    process-group-of-its-own signals-are-default stderr-not-utf8 stderr-not-utf8-in-an-error
    stderr-of-20-mb-and-exit-1 stderr-of-200-kb stderr-of-many-bytes-to-encode stdout-over-the-limit
    """
)
"""Their functions end or write before they read, or without reading."""

CANNOT_START = names(
    """
    executable-is-a-directory executable-of-bad-format executable-without-its-interpreter
    executable-without-permission
    """
)
NEVER_STARTED = names("executable-missing image-empty image-malformed image-unknown request-over-the-limit")
STOPPED = names(
    """
    cancelled deadline deadline-of-a-child-outside-the-group deadline-of-a-daemon deadline-of-a-leader-outside-its-group
    deadline-of-a-stubborn-function deadline-with-stdout-closed stdout-over-the-limit
    stdout-over-the-limit-outside-the-group
    """
)
"""Their functions do not end by themselves."""


def without_the_dead(vector: Vector) -> Vector:
    """Does not wait until nothing is left of its processes, which takes until its function is idle."""
    expected = {key: value for key, value in vector.data["expect"].items() if key != "gone"}
    return Vector(vector.name, vector.data | {"expect": expected})


@pytest.fixture(scope="module")
def fronts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runners]:
    """Runners with one process of every function in standby."""
    # What a vector wants gone would live on in the process that waits for the next call: so it waits for 6 s alone.
    flags = (f"--front={built_front()}", "--standby=1", "--standby-idle=6s")
    pool = Runners(tmp_path_factory.mktemp("vectors-in-standby-of-the-front"), *flags)
    yield pool
    pool.stop()


@pytest.mark.parametrize("vector", of("exec"), ids=lambda vector: vector.name)
async def test_vector(vector: Vector, fronts: Runners) -> None:
    runner, metrics = fronts.for_vector(vector), fronts.metrics[vector.limit]
    unfit = re.compile(rf'event="function not kept in standby" .*function={re.escape(vector.name)}( |$)')

    def waits() -> bool:
        return metrics.sum("standby_processes", function=vector.name) == 1

    def is_unfit() -> bool:
        return any(unfit.search(line) for line in runner.lines)

    await try_vector(without_the_dead(vector), runner)
    # What the metric says later may be of before: the third call finds a process or does not.
    if vector.name in ACTS_EARLY:
        await eventually(lambda: is_unfit() or waits(), what="an act before the input")
    elif vector.name not in CANNOT_START | NEVER_STARTED and "cancel_after_seconds" not in vector.data:
        await eventually(waits, what="a process in standby")
    await try_vector(without_the_dead(vector), runner)
    if vector.name in ACTS_EARLY:
        await eventually(is_unfit, what="an act before the input")
    await try_vector(vector, runner)
    assert is_unfit() == (vector.name in ACTS_EARLY)
    ended = 0 if vector.name in NEVER_STARTED | CANNOT_START | STOPPED else 3

    def executions() -> float:
        return metrics.sum("executions_total", function=vector.name)

    await eventually(lambda: executions() == ended, what=f"{ended} executions counted")
    by_standby = metrics.sum("executions_total", function=vector.name, process="standby")
    # One that acts early may be taken before it does, once.
    assert by_standby <= 1 if vector.name in ACTS_EARLY or not ended else by_standby in (1, 2)
    assert ended or not by_standby


async def test_nothing_is_left_after_all_of_them(fronts: Runners) -> None:
    """Runs last in this module."""
    for runner in fronts.started.values():
        await has_nothing_left(runner)
