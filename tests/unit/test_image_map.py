"""The image map of the air gap."""

from __future__ import annotations

import pytest

from krm_runner.core.errors import ConfigurationError
from krm_runner.core.image_map import ImageMap, parse_image_map
from krm_runner.core.image_ref import parse as image

SHA, OTHER = "sha256:" + "a1" * 32, "sha256:" + "b2" * 32


def parse(text: str) -> ImageMap:
    return parse_image_map(text.encode(), source="map.yaml", default_prefix="x.io/catalog")


def test_images_are_found_by_any_spelling() -> None:
    found = parse(
        f"""
        images:
        - {{image: set-labels:v1, digest: '{SHA}', entrypoint: [/fn, --x]}}
        - {{image: 'y.io/fn:v1@{OTHER}', entrypoint: [fn]}}
        """
    )
    metadata = found.find(image("x.io/catalog/set-labels:v1"))
    assert metadata is not None
    assert (metadata.digest, metadata.command) == (SHA, ("/fn", "--x"))
    assert metadata.pinned == f"x.io/catalog/set-labels@{SHA}"
    by_digest = found.find(image(f"y.io/fn@{OTHER}"))
    assert by_digest is not None
    assert by_digest.digest == OTHER
    assert found.find(image("x.io/catalog/set-labels:v2")) is None
    assert parse("images: []").find(image("x.io/fn")) is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "map.yaml: the file must be a mapping"),
        ("a: [", "map.yaml: not valid YAML"),
        ("image: x", '"image" is not known; it takes images'),
        ("images: {}", "images must be a list"),
        ("images: [x]", "images[0] must be a mapping"),
        ("images: [{}]", "images[0].image is no image: the image is empty"),
        ("images: [{image: a b}]", "images[0].image is no image"),
        ("images: [{image: x.io/a}]", "images[0].digest is no digest"),
        (f"images: [{{image: x.io/a, digest: '{SHA}0'}}]", "images[0].digest is no digest"),
        (f"images: [{{image: 'x.io/a@{SHA}', digest: '{OTHER}'}}]", "the image names another digest"),
        (f"images: [{{image: x.io/a, digest: '{SHA}'}}]", "images[0].entrypoint must be a list of words"),
        (f"images: [{{image: x.io/a, digest: '{SHA}', entrypoint: fn}}]", "entrypoint must be a list of words"),
        (f"images: [{{image: x.io/a, digest: '{SHA}', entrypoint: [1]}}]", "entrypoint must be a list of words"),
        (f"images: [{{image: x.io/a, digets: '{SHA}'}}]", '"digets" is not known; it takes image, digest, entrypoint'),
        (f"images: [&a {{image: x.io/a, digest: '{SHA}', entrypoint: [f]}}, *a]", "x.io/a:latest stands twice"),
    ],
)
def test_what_cannot_be_understood_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        parse(text)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)
