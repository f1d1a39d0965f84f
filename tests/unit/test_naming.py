"""Pod ids: as Porch's users know them where that is possible, and valid names always."""

from __future__ import annotations

import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krm_runner.core import image_ref
from krm_runner.core.naming import MAX_LENGTH, is_pod_id, pod_id

DIGEST = "sha256:0f3b5e2a" + "c" * 56
OTHER = "sha256:77777777" + "c" * 56

_word = st.text(string.ascii_lowercase + string.digits, min_size=1, max_size=30)
_part = st.lists(_word, min_size=1, max_size=5).flatmap(
    lambda words: st.sampled_from([".", "_", "__", "-", "---"]).map(lambda separator: separator.join(words))
)
_tag = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}", fullmatch=True)
_digest = st.text("0123456789abcdef", min_size=64, max_size=64).map(lambda digits: f"sha256:{digits}")
_registry = st.sampled_from(["ghcr.io", "localhost:5000", "Registry", "docker.io"])
_ending = st.one_of(_tag.map(lambda tag: f":{tag}"), _digest.map(lambda digest: f"@{digest}"), st.just(""))


def _image(registry: str, parts: list[str], ending: str) -> str:
    return f"{registry}/{'/'.join(parts)}"[:200].rstrip("._-/") + ending


_images = st.builds(_image, _registry, st.lists(_part, min_size=1, max_size=3), _ending)


def named(image: str, digest: str = DIGEST, number: int = 1) -> str:
    return pod_id(image_ref.parse(image), digest, number)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        ("ghcr.io/kptdev/krm-functions-catalog/set-namespace:v0.4.1", "set-namespace-v041-1-0f3b5e2a"),
        ("gcr.io/kpt-fn/apply_setters:v0.2", "apply-setters-v02-1-0f3b5e2a"),
        ("nephio/fn", "fn-latest-1-0f3b5e2a"),
        ("localhost:5000/a__b:x-1", "a--b-x-1-1-0f3b5e2a"),
    ],
)
def test_ordinary_images_have_the_names_that_people_know(image: str, expected: str) -> None:
    assert named(image) == expected


@pytest.mark.parametrize(
    ("image", "shape"),
    [
        (f"gcr.io/kpt-fn/set-namespace@{DIGEST}", r"set-namespace-[0-9a-f]{8}-1-0f3b5e2a"),
        ("gcr.io/kpt-fn/set-namespace:V1.0", r"set-namespace-v10-[0-9a-f]{8}-1-0f3b5e2a"),
        ("gcr.io/kpt-fn/set-namespace:v1_0", r"set-namespace-v1-0-[0-9a-f]{8}-1-0f3b5e2a"),
        ("gcr.io/kpt-fn/set.namespace:v1", r"set-namespace-v1-[0-9a-f]{8}-1-0f3b5e2a"),
        ("gcr.io/kpt-fn/3scale:v1", r"fn-3scale-v1-[0-9a-f]{8}-1-0f3b5e2a"),
        ("gcr.io/kpt-fn/f:_", r"f-[0-9a-f]{8}-1-0f3b5e2a"),
        ("gcr.io/kpt-fn/f:" + "t" * 128, r"f-t{41}-[0-9a-f]{8}-1-0f3b5e2a"),
        ("gcr.io/kpt-fn/" + "n" * 100 + ":v1", r"n{43}-[0-9a-f]{8}-1-0f3b5e2a"),
    ],
)
def test_what_does_not_fit_is_mended_and_hashed(image: str, shape: str) -> None:
    assert re.fullmatch(shape, named(image)), named(image)


def test_the_longest_ordinary_name_is_kept_and_one_character_more_is_not() -> None:
    room = MAX_LENGTH - len("-v1-1-0f3b5e2a")
    assert named(f"gcr.io/{'n' * room}:v1") == f"{'n' * room}-v1-1-0f3b5e2a"
    assert named(f"gcr.io/{'n' * (room + 1)}:v1") != f"{'n' * (room + 1)}-v1-1-0f3b5e2a"


def test_a_tag_beside_a_digest_is_only_a_comment() -> None:
    assert named(f"gcr.io/x/y:v1@{DIGEST}") == named(f"gcr.io/x/y:v2@{DIGEST}") == named(f"gcr.io/x/y@{DIGEST}")


def test_a_hash_tells_repositories_and_digests_apart() -> None:
    assert named(f"gcr.io/a/f@{DIGEST}") != named(f"gcr.io/b/f@{DIGEST}")
    assert named(f"gcr.io/a/{'n' * 100}:v1") != named(f"gcr.io/b/{'n' * 100}:v1")
    same_beginning = DIGEST[:-1] + "d"
    assert named("gcr.io/a/f:V1") != named("gcr.io/a/f:V1", same_beginning)


@given(_images, _digest, st.integers(min_value=1, max_value=1_000_000))
def test_every_image_has_a_valid_name_that_ends_with_number_and_digest(image: str, digest: str, number: int) -> None:
    name = named(image, digest, number)
    assert len(name) <= 63
    assert re.fullmatch(r"[a-z]([-a-z0-9]*[a-z0-9])?", name)
    assert re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?", name), "a label's value"
    assert is_pod_id(name)
    assert name.endswith(f"-{number}-{digest[7:15]}")
    assert named(image, digest, number) == name


@given(_images, st.integers(min_value=1, max_value=1000), st.integers(min_value=1, max_value=1000))
def test_numbers_and_digests_tell_pods_of_one_image_apart(image: str, one: int, other: int) -> None:
    assert (named(image, DIGEST, one) == named(image, DIGEST, other)) == (one == other)
    assert named(image, DIGEST, one) != named(image, OTHER, one)


@pytest.mark.parametrize("text", ["", "-a", "a-", "1a", "A", "a.b", "a_b", "a" * 64, "a\n"])
def test_what_is_no_pod_id(text: str) -> None:
    assert not is_pod_id(text)
