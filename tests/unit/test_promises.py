"""Which promises of pods are told, for how long they hold, and what a call that went by one says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial

import pytest

from krm_runner.core import image_ref
from krm_runner.core.held_call import Destination, NoAnswer, Promise
from krm_runner.core.pod_template import built_in_template
from krm_runner.core.pool_terms import Promise as PromisedPod
from krm_runner.core.wrapper_delivery import InitContainer
from krm_runner.pods.lease import Wanted
from krm_runner.pods.promises import Promises, Way

REFERENCE = image_ref.parse("example.com/some/function:v1")
FUNCTION = REFERENCE.canonical
TEMPLATE = built_in_template(delivery=InitContainer("example.com/wrapper:v1"), max_message_bytes=1000)
HEADERS = (("authorization", "Bearer word"),)


def way(connection: int) -> Way:
    return Destination(connection, "10.0.0.7:9446", "its-name:9446"), HEADERS


class Call:
    """One that is held."""

    def __init__(self, connection: int, *, is_promised: bool = True) -> None:
        self.is_promised = is_promised
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
        self._news: list[Promise | int] = []

    def promise(self, promise: Promise) -> None:
        self._news.append(promise)

    def withdraw(self, connection: int) -> None:
        self._news.append(connection)

    def listen(self, served: Callable[[int], str]) -> None:
        """No call is served here."""

    async def news(self) -> list[Promise | int]:
        """Since it was asked for last: promises, and connections of those that were withdrawn."""
        # Not before calls that have their pods are on their way.
        assert self._news == []
        await asyncio.sleep(0)
        news, self._news = self._news, []
        return news

    async def short_news(self) -> list[tuple[str, int] | int]:
        """Image and connection of promises."""
        news = await self.news()
        return [(each.image, each.destination.connection) if isinstance(each, Promise) else each for each in news]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def promises(told: Told) -> Promises[str]:
    return Promises(told, clock=lambda: 1000.0)


SHORT, LONG = "function:v1", "example.com/some/function:v1"


def said(name: str = "one", until: float = 1900, calls: int = 2) -> PromisedPod:
    return PromisedPod(FUNCTION, name, until, calls, 1000)


def wanted(seconds: float = 60, spelling: str = SHORT) -> Wanted:
    fresh_until = asyncio.get_running_loop().time() + seconds
    return Wanted(REFERENCE, "sha256:1", TEMPLATE, None, spelling=spelling, fresh_until=fresh_until)


@pytest.mark.parametrize(("fresh", "until", "seconds"), [(60, 1900, 60), (600, 1031, 30), (float("inf"), 1031, 30)])
async def test_a_promise_holds_as_long_as_the_pod_and_what_is_known_of_the_image(
    told: Told, promises: Promises[str], fresh: float, until: float, seconds: float
) -> None:
    promises.make(said(until=until), "one", lambda: way(4), wanted(fresh))
    (made,) = await told.news()
    assert isinstance(made, Promise)
    assert (made.image, made.reference, made.destination, made.headers) == (SHORT, REFERENCE, *way(4))
    assert (made.calls, made.calls_in_all) == (2, 1000)
    assert made.seconds == pytest.approx(seconds, abs=0.5)


@pytest.mark.parametrize(("fresh", "until"), [(-1, 1900), (60, 1000.5)])
async def test_what_would_not_hold_is_not_told(told: Told, promises: Promises[str], fresh: float, until: float) -> None:
    promises.make(said(until=until), "one", lambda: way(4), wanted(fresh))
    promises.withdraw(FUNCTION, "one")
    assert await told.news() == []


async def test_who_asks_is_told_all_of_them_as_it_writes_the_image(told: Told, promises: Promises[str]) -> None:
    promises.make(said("one"), "one", lambda: way(4), None)
    promises.make(said("two"), "two", lambda: way(5), None)
    assert await told.news() == [], "nobody has looked what the image is"
    for spelling in (SHORT, LONG):
        promises.asked(wanted(spelling=spelling), "one", 2)
        assert await told.short_news() == [(spelling, 4), (spelling, 5)]


async def test_who_asks_since_pods_have_what_they_may_have_is_told_nothing(told: Told, promises: Promises[str]) -> None:
    promises.make(said(calls=2), "one", lambda: way(4), wanted())
    assert await told.short_news() == [(SHORT, 4)]
    promises.asked(wanted(), "one", 3)
    promises.asked(wanted(), "another", 1)
    assert await told.news() == []


async def test_the_way_is_the_one_of_now(told: Told, promises: Promises[str]) -> None:
    ways = [way(4)]
    promises.make(said(), "one", lambda: ways[-1], wanted())
    assert await told.short_news() == [(SHORT, 4)]
    ways.append(way(7))
    promises.asked(wanted(), "one", 1)
    assert await told.short_news() == [(SHORT, 7)]
    promises.withdraw(FUNCTION, "one")
    assert await told.short_news() == [7], "the first one is not used any more anyway"


async def test_what_is_withdrawn_is_not_told_again_and_may_have_been_used(told: Told, promises: Promises[str]) -> None:
    promises.make(said(), "one", lambda: way(4), wanted())
    assert await told.short_news() == [(SHORT, 4)]
    promises.withdraw(FUNCTION, "one")
    promises.withdraw(FUNCTION, "one")
    promises.asked(wanted(), "one", 1)
    assert await told.short_news() == [4]
    assert promises.used(Call(4)) == "one"
    assert promises.used(Call(4, is_promised=False)) is None, "it was not on its way"
    assert promises.used(Call(7)) is None


async def test_what_is_withdrawn_before_it_left_is_not_told(told: Told, promises: Promises[str]) -> None:
    promises.make(said("one"), "one", lambda: way(4), wanted())
    promises.make(said("two"), "two", lambda: way(5), wanted())
    promises.withdraw(FUNCTION, "one")
    assert await told.short_news() == [(SHORT, 5)], "and what is left is told once"


async def test_what_is_told_after_a_withdrawal_comes_after_it(told: Told, promises: Promises[str]) -> None:
    promises.make(said("one"), "one", lambda: way(4), wanted())
    assert await told.short_news() == [(SHORT, 4)]
    promises.asked(wanted(), "one", 1)
    promises.withdraw(FUNCTION, "one")
    promises.make(said("one"), "one", lambda: way(4), wanted())
    assert await told.short_news() == [(SHORT, 4), 4, (SHORT, 4)]


async def test_what_is_told_leaves_behind_whoever_was_granted_a_pod_before(told: Told, promises: Promises[str]) -> None:
    promises.make(said("one"), "one", lambda: way(4), wanted())
    granted = asyncio.get_running_loop().create_future()
    order: list[str] = []
    granted.add_done_callback(lambda _: order.append("forward"))
    granted.set_result(None)
    other = Wanted(image_ref.parse("example.com/other:v1"), "sha256:1", TEMPLATE, None, "", "other", float("inf"))
    promises.make(PromisedPod(other.function, "two", 1900, 2, 1000), "two", lambda: way(5), other)
    asyncio.get_running_loop().call_soon(lambda: order.append("later"))
    news = await told.short_news()
    assert (order, news) == (["forward", "later"], [(SHORT, 4), ("other", 5)])


async def test_another_pod_of_the_same_name_takes_the_place_of_the_first(told: Told, promises: Promises[str]) -> None:
    promises.make(said(), "first", lambda: way(4), wanted())
    assert await told.short_news() == [(SHORT, 4)]
    promises.make(said(until=1950), "first", lambda: way(4), wanted())
    assert await told.short_news() == [(SHORT, 4)], "it is the same, with another time"
    promises.make(said(), "second", lambda: way(5), wanted())
    assert await told.short_news() == [4, (SHORT, 5)]
    assert [promises.used(Call(connection)) for connection in (4, 5)] == ["first", "second"]


async def test_what_was_told_is_withdrawn_whatever_is_known_now(told: Told, promises: Promises[str]) -> None:
    promises.make(said(), "one", lambda: way(4), wanted())
    assert await told.short_news() == [(SHORT, 4)]
    promises.make(said(until=1950), "one", lambda: way(4), wanted(-1))
    assert await told.short_news() == []
    promises.withdraw(FUNCTION, "one")
    assert await told.short_news() == [4]


@pytest.mark.parametrize("latest", [SHORT, None])
async def test_other_terms_and_other_pods_count_for_all_who_write_the_image(
    told: Told, promises: Promises[str], latest: str | None
) -> None:
    now = wanted(spelling=latest) if latest else None
    all_of_them = [(SHORT, 4), (SHORT, 5)] if latest else []
    promises.make(said("one"), "one", lambda: way(4), wanted())
    promises.asked(wanted(spelling=LONG), "one", 1)
    assert await told.short_news() == [(SHORT, 4), (LONG, 4)]
    promises.make(said("two"), "two", lambda: way(5), now)
    assert await told.short_news() == [4, *all_of_them]
    promises.asked(wanted(spelling=LONG), "one", 1)
    assert await told.short_news() == [(LONG, 4), (LONG, 5)]
    promises.make(said("one", calls=9), "one", lambda: way(4), now)
    assert await told.short_news() == [4, 5, *all_of_them]
    promises.make(said("two", until=1950), "two", lambda: way(5), now)
    assert await told.short_news() == all_of_them, "it is only there for longer"


async def test_who_is_told_of_one_pod_is_told_of_all(told: Told, promises: Promises[str]) -> None:
    for connection, name in ((4, "one"), (5, "two")):
        promises.make(said(name), name, partial(way, connection), None)
    promises.make(said("one", until=1950), "one", lambda: way(4), wanted(spelling=LONG))
    assert await told.short_news() == [(LONG, 4), (LONG, 5)]


async def test_no_more_spellings_are_told_than_there_may_be(told: Told, promises: Promises[str]) -> None:
    promises.make(said(), "one", lambda: way(4), None)
    for number in range(16):
        promises.asked(wanted(spelling=f"function:{number}"), "one", 1)
    assert len(await told.short_news()) == 16
    promises.asked(wanted(spelling="function:15"), "one", 1)
    promises.asked(wanted(spelling="function:16"), "one", 1)
    assert await told.short_news() == [("function:15", 4), 4, ("function:16", 4)]


async def test_no_more_pods_are_remembered_than_there_may_be(told: Told, promises: Promises[str]) -> None:
    for connection in range(1, 4098):
        promises.make(said(), f"pod-{connection}", partial(way, connection), wanted())
        await told.news()
        assert promises.used(Call(1)) == "pod-1", "what is used is remembered"
    assert promises.used(Call(2)) is None
    assert promises.used(Call(4097)) == "pod-4097"
