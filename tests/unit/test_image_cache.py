"""What is kept of images, and for how long."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from krm_runner.core.image_cache import Failed, Freshness, ImageCache, Known
from krm_runner.core.image_fault import FaultKind, ImageFault
from krm_runner.core.image_metadata import ImageMetadata
from krm_runner.core.image_ref import ImageRef
from krm_runner.core.image_ref import parse as image

SHA, OTHER_SHA = "sha256:" + "a1" * 32, "sha256:" + "b2" * 32
TAG, DIGEST = image("x.io/fn:v1"), image(f"x.io/fn@{SHA}")
AWAY = ImageFault(FaultKind.AWAY, "x.io does not answer")
GONE = ImageFault(FaultKind.NOT_FOUND, "x.io has no v1")


def metadata(reference: ImageRef, digest: str = SHA) -> ImageMetadata:
    return ImageMetadata(reference, digest, digest, None, ("/fn",))


def freshness(cache: ImageCache, reference: ImageRef, now: float) -> Freshness | None:
    found = cache.find(reference, now=now)
    return found.freshness(now) if isinstance(found, Known) else None


def test_a_tag_is_fresh_for_its_time_and_a_digest_for_ever() -> None:
    cache = ImageCache(tag_ttl=600)
    cache.resolved(metadata(TAG), now=1000)
    cache.resolved(metadata(DIGEST), now=1000)
    assert [freshness(cache, TAG, now) for now in (1000, 1599.9, 1600)] == [
        Freshness.FRESH, Freshness.FRESH, Freshness.STALE,
    ]  # fmt: skip
    assert freshness(cache, DIGEST, 1e12) is Freshness.FRESH


def test_without_a_time_a_tag_is_asked_for_every_time() -> None:
    cache = ImageCache(tag_ttl=0)
    cache.resolved(metadata(TAG), now=5)
    assert freshness(cache, TAG, 5) is Freshness.STALE


def test_a_moved_tag_replaces_what_was_known() -> None:
    cache = ImageCache(tag_ttl=600)
    cache.resolved(metadata(TAG), now=0)
    cache.resolved(metadata(TAG, OTHER_SHA), now=700)
    found = cache.find(TAG, now=700)
    assert isinstance(found, Known)
    assert found.metadata.digest == OTHER_SHA


def test_while_the_registry_is_away_a_known_tag_is_served_and_the_registry_left_alone_for_a_moment() -> None:
    cache = ImageCache(tag_ttl=600, failure_ttl=5)
    cache.resolved(metadata(TAG), now=0)
    kept = cache.failed(TAG, AWAY, now=700)
    assert kept is not None
    assert (kept.metadata.digest, kept.is_stale) == (SHA, True)
    assert [freshness(cache, TAG, now) for now in (704.9, 705)] == [Freshness.FRESH, Freshness.STALE]
    back = cache.resolved(metadata(TAG), now=706)
    assert (back.is_stale, back.fresh_until) == (False, 1306)


def test_a_tag_that_is_gone_is_not_served() -> None:
    cache = ImageCache(tag_ttl=600)
    cache.resolved(metadata(TAG), now=0)
    assert cache.failed(TAG, GONE, now=700) is None
    found = cache.find(TAG, now=701)
    assert isinstance(found, Failed)
    assert found.fault is GONE


def test_failures_count_for_seconds() -> None:
    cache = ImageCache(tag_ttl=600, failure_ttl=5)
    assert cache.failed(TAG, AWAY, now=0) is None
    assert isinstance(cache.find(TAG, now=4.9), Failed)
    assert cache.find(TAG, now=5) is None
    assert len(cache) == 0


def test_the_one_that_was_not_asked_for_longest_goes_first() -> None:
    cache = ImageCache(tag_ttl=600, capacity=2)
    first, second, third = (image(f"x.io/fn:{number}") for number in range(3))
    cache.resolved(metadata(first), now=0)
    cache.resolved(metadata(second), now=0)
    cache.find(first, now=1)
    cache.failed(third, GONE, now=2)
    assert [cache.find(reference, now=3) is None for reference in (first, second, third)] == [False, True, False]


@given(st.lists(st.tuples(st.integers(0, 6), st.sampled_from(["resolved", "away", "gone", "find"])), max_size=60))
def test_it_never_outgrows_its_capacity_and_never_mixes_images_up(steps: list[tuple[int, str]]) -> None:
    cache = ImageCache(tag_ttl=3, failure_ttl=2, capacity=3)
    for now, (number, step) in enumerate(steps):
        reference = image(f"x.io/fn:{number}")
        if step == "resolved":
            cache.resolved(metadata(reference), now=now)
        elif step != "find":
            cache.failed(reference, AWAY if step == "away" else GONE, now=now)
        found = cache.find(reference, now=now)
        if isinstance(found, Known):
            assert found.metadata.reference == reference
        assert len(cache) <= 3
        assert step == "find" or found is not None
