"""Which promises of pods hold, for how long, and what a call that used one says by it."""

from __future__ import annotations

import asyncio

import pytest

from krm_runner.core import image_ref
from krm_runner.core.held_call import Destination, Promise
from krm_runner.core.pod_facts import PodFacts
from krm_runner.core.pod_template import built_in_template
from krm_runner.core.wrapper_delivery import InitContainer
from krm_runner.pods.lease import Wanted
from krm_runner.pods.promises import Promises

REFERENCE = image_ref.parse("example.com/some/function:v1")
FUNCTION = REFERENCE.canonical
TEMPLATE = built_in_template(delivery=InitContainer("example.com/wrapper:v1"), max_message_bytes=1000)
WAY = (Destination(4, "10.0.0.7:9446", "its-name:9446"), (("authorization", "Bearer word"),))


def pod(name: str) -> PodFacts:
    return PodFacts(name, f"uid-{name}", "1", name, FUNCTION, "example.com/fn@sha256:1", TEMPLATE.version, None)


class Told:
    """Whoever sends calls; what it was told."""

    def __init__(self) -> None:
        self.promises: list[Promise] = []
        self.withdrawn: list[tuple[int, str]] = []

    def promise(self, promise: Promise) -> None:
        self.promises.append(promise)

    def withdraw(self, number: int, image: str) -> None:
        self.withdrawn.append((number, image))


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def promises(told: Told) -> Promises:
    return Promises(told, clock=lambda: 1000.0)


def wanted(seconds: float, spelling: str = "function:v1") -> Wanted:
    fresh_until = asyncio.get_running_loop().time() + seconds
    return Wanted(REFERENCE, "sha256:1", TEMPLATE, None, spelling=spelling, fresh_until=fresh_until)


@pytest.mark.parametrize(("fresh", "until", "seconds"), [(60, 1900, 60), (600, 1030, 30), (float("inf"), 1030, 30)])
async def test_a_promise_holds_as_long_as_the_pod_and_what_is_known_of_the_image(
    told: Told, promises: Promises, fresh: float, until: float, seconds: float
) -> None:
    promises.make(wanted(fresh), pod("one"), WAY, until=until)
    (made,) = told.promises
    assert (made.image, made.reference, made.destination, made.headers) == ("function:v1", REFERENCE, *WAY)
    assert made.seconds == pytest.approx(seconds, abs=5)


@pytest.mark.parametrize(("fresh", "until"), [(-1, 1900), (60, 1000)])
async def test_what_would_not_hold_is_not_promised(told: Told, promises: Promises, fresh: float, until: float) -> None:
    promises.make(wanted(fresh), pod("one"), WAY, until=until)
    assert told.promises == []


async def test_another_spelling_takes_the_place_of_the_first(told: Told, promises: Promises) -> None:
    promises.make(wanted(60), pod("one"), WAY, until=1900)
    promises.make(wanted(60, "example.com/some/function:v1"), pod("two"), WAY, until=1900)
    first, second = told.promises
    assert told.withdrawn == [(first.number, "function:v1")]
    assert promises.used(FUNCTION, first.number) is None, "only the last one is known"
    assert promises.used(FUNCTION, second.number) == pod("two")
    assert promises.used(FUNCTION, second.number) is None, "once"


async def test_one_that_was_withdrawn_may_have_been_used_before(told: Told, promises: Promises) -> None:
    promises.make(wanted(60), pod("one"), WAY, until=1900)
    (made,) = told.promises
    promises.withdraw(FUNCTION)
    promises.withdraw(FUNCTION)
    assert told.withdrawn == [(made.number, "function:v1")], "said once"
    assert promises.used("another", made.number) is None
    assert promises.used(FUNCTION, made.number) == pod("one")


async def test_nothing_is_kept_of_functions_that_are_gone(told: Told, promises: Promises) -> None:
    promises.make(wanted(60), pod("one"), WAY, until=1900)
    promises.forget_others([FUNCTION])
    assert told.withdrawn == []
    promises.forget_others([])
    (made,) = told.promises
    assert told.withdrawn == [(made.number, "function:v1")]
    assert promises.used(FUNCTION, made.number) is None
