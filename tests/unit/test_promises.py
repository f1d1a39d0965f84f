"""Which promises of pods hold, for how long, and what a call that used one says by it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from krm_runner.core import image_ref
from krm_runner.core.held_call import Destination, NoAnswer, Promise
from krm_runner.core.pod_template import built_in_template
from krm_runner.core.wrapper_delivery import InitContainer
from krm_runner.pods.lease import Wanted
from krm_runner.pods.promises import Promises

REFERENCE = image_ref.parse("example.com/some/function:v1")
FUNCTION = REFERENCE.canonical
TEMPLATE = built_in_template(delivery=InitContainer("example.com/wrapper:v1"), max_message_bytes=1000)
HEADERS = (("authorization", "Bearer word"),)


def way(connection: int) -> tuple[Destination, tuple[tuple[str, str], ...]]:
    return Destination(connection, "10.0.0.7:9446", "its-name:9446"), HEADERS


class Call:
    """One that is held, and on its way by a promise."""

    def __init__(self, promise: int, connection: int) -> None:
        self.promise = promise
        self.connection = connection

    async def forward(
        self, destination: Destination, *, timeout: float, headers: Sequence[tuple[str, str]]
    ) -> NoAnswer:
        return NoAnswer("nobody asks for that here", reached=False)

    def disconnect(self, destination: Destination) -> None:
        """Nor for that."""


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
def promises(told: Told) -> Promises[str]:
    return Promises(told, clock=lambda: 1000.0)


def wanted(seconds: float, spelling: str = "function:v1") -> Wanted:
    fresh_until = asyncio.get_running_loop().time() + seconds
    return Wanted(REFERENCE, "sha256:1", TEMPLATE, None, spelling=spelling, fresh_until=fresh_until)


@pytest.mark.parametrize(("fresh", "until", "seconds"), [(60, 1900, 60), (600, 1031, 30), (float("inf"), 1031, 30)])
async def test_a_promise_holds_as_long_as_the_pod_and_what_is_known_of_the_image(
    told: Told, promises: Promises[str], fresh: float, until: float, seconds: float
) -> None:
    promises.make(wanted(fresh), "one", way(4), until=until)
    (made,) = told.promises
    assert (made.image, made.reference, made.destination, made.headers) == ("function:v1", REFERENCE, *way(4))
    assert made.seconds == pytest.approx(seconds, abs=0.5)


@pytest.mark.parametrize(("fresh", "until"), [(-1, 1900), (60, 1000.5)])
async def test_what_would_not_hold_is_not_promised(
    told: Told, promises: Promises[str], fresh: float, until: float
) -> None:
    promises.make(wanted(fresh), "one", way(4), until=until)
    assert told.promises == []


async def test_another_spelling_takes_the_place_of_the_first(told: Told, promises: Promises[str]) -> None:
    promises.make(wanted(60), "one", way(4), until=1900)
    promises.make(wanted(60, "example.com/some/function:v1"), "two", way(5), until=1900)
    first, second = told.promises
    assert told.withdrawn == [(first.number, "function:v1")]
    assert promises.used(FUNCTION, Call(second.number, 5)) == "two"
    assert len(told.withdrawn) == 1, "what was used is not withdrawn"


async def test_a_call_that_used_an_earlier_one_is_known_and_takes_the_later_one_back(
    told: Told, promises: Promises[str]
) -> None:
    promises.make(wanted(60), "one", way(4), until=1900)
    promises.make(wanted(60), "two", way(5), until=1900)
    first, second = told.promises
    assert promises.used(FUNCTION, Call(first.number, 4)) == "one"
    assert told.withdrawn == [(first.number, "function:v1"), (second.number, "function:v1")]


async def test_one_that_was_withdrawn_may_have_been_used_before(told: Told, promises: Promises[str]) -> None:
    promises.make(wanted(60), "one", way(4), until=1900)
    (made,) = told.promises
    promises.withdraw(FUNCTION)
    promises.withdraw(FUNCTION)
    assert told.withdrawn == [(made.number, "function:v1")], "said once"
    assert promises.used(FUNCTION, Call(made.number, 4)) == "one"
    assert promises.used(FUNCTION, Call(0, 4)) is None, "it was not on its way"
    assert promises.used(FUNCTION, Call(made.number, 7)) is None


async def test_nothing_is_promised_any_more_to_functions_that_are_gone(told: Told, promises: Promises[str]) -> None:
    promises.make(wanted(60), "one", way(4), until=1900)
    promises.forget_others([FUNCTION])
    assert told.withdrawn == []
    promises.forget_others([])
    (made,) = told.promises
    assert told.withdrawn == [(made.number, "function:v1")]


async def test_no_more_pods_are_remembered_than_there_may_be(told: Told, promises: Promises[str]) -> None:
    for connection in range(1, 1100):
        promises.make(wanted(60), f"pod-{connection}", way(connection), until=1900)
    last = told.promises[-1]
    assert promises.used(FUNCTION, Call(last.number, 1)) is None
    assert promises.used(FUNCTION, Call(last.number, 1099)) == "pod-1099"
