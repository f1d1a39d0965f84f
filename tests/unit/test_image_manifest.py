"""Manifests, indexes, configs: what is chosen, and what is refused."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krm_runner.core.image_manifest import (
    DOCKER_LIST,
    DOCKER_MANIFEST,
    MAX_MANIFEST_BYTES,
    OCI_INDEX,
    OCI_MANIFEST,
    ImageManifestError,
    Index,
    Manifest,
    check_content,
    digest_of,
    parse_config,
    parse_manifest,
)
from krm_runner.core.image_metadata import ImageMetadata, Platform, parse_platform
from krm_runner.core.image_ref import parse as image

SHA = "sha256:" + "a1" * 32
CONFIG = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": SHA, "size": 100}
AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")


def manifest(content_type: str = "", **fields: object) -> Index | Manifest:
    document = {"schemaVersion": 2, **fields}
    return parse_manifest(json.dumps(document).encode(), content_type)


def index(*platforms: str, size: int = 10) -> Index:
    entries: list[dict[str, Any]] = []
    for number, name in enumerate(platforms):
        entry: dict[str, Any] = {"digest": "sha256:" + f"{number:02x}" * 32, "size": size, "mediaType": OCI_MANIFEST}
        if name:
            entry["platform"] = dict(zip(("os", "architecture", "variant"), name.split("/"), strict=False))
        entries.append(entry)
    found = manifest(mediaType=OCI_INDEX, manifests=entries)
    assert isinstance(found, Index)
    return found


def chosen(platform: str, *platforms: str) -> int:
    return int(index(*platforms).choose(parse_platform(platform)).digest[-2:], 16)


@pytest.mark.parametrize(
    ("media_type", "content_type"),
    [
        (OCI_MANIFEST, OCI_MANIFEST),
        (DOCKER_MANIFEST, DOCKER_MANIFEST),
        (None, OCI_MANIFEST),
        (None, f"{DOCKER_MANIFEST}; charset=utf-8"),
        (None, "application/json"),
        (None, ""),
        (DOCKER_MANIFEST, "text/plain"),
    ],
)
def test_manifests(media_type: str | None, content_type: str) -> None:
    found = manifest(content_type, **({"mediaType": media_type} if media_type else {}), config=CONFIG, layers=[])
    assert isinstance(found, Manifest)
    assert (found.config.digest, found.config.size) == (SHA, 100)


@pytest.mark.parametrize(
    ("media_type", "content_type"),
    [(OCI_INDEX, OCI_INDEX), (DOCKER_LIST, ""), (None, OCI_INDEX), (None, ""), (None, "application/json")],
)
def test_indexes(media_type: str | None, content_type: str) -> None:
    entry = {"digest": SHA, "size": 3, "platform": {"os": "linux", "architecture": "amd64"}}
    found = manifest(content_type, **({"mediaType": media_type} if media_type else {}), manifests=[entry])
    assert isinstance(found, Index)
    assert found.choose(AMD64).digest == SHA


@pytest.mark.parametrize(
    ("platform", "platforms", "expected"),
    [
        ("linux/amd64", ["linux/arm64", "linux/amd64"], 1),
        ("linux/amd64", ["windows/amd64", "linux/amd64", "linux/amd64"], 1),
        ("linux/amd64", ["unknown/unknown", "linux/amd64"], 1),
        ("linux/amd64", ["linux/amd64/v3", "linux/amd64"], 1),
        ("linux/arm64", ["linux/arm64/v8"], 0),
        ("linux/arm64", ["linux/arm64", "linux/arm64/v8"], 1),
        ("linux/arm", ["linux/arm/v5", "linux/arm/v6", "linux/arm/v7"], 2),
        ("linux/arm/v6", ["linux/arm/v7", "linux/arm/v5", "linux/arm/v6"], 2),
        ("linux/arm/v7", ["linux/arm/v5", "linux/arm/v6"], 1),
        ("linux/amd64", [""], 0),
    ],
)
def test_the_platforms_manifest_is_chosen(platform: str, platforms: list[str], expected: int) -> None:
    assert chosen(platform, *platforms) == expected


@pytest.mark.parametrize(
    ("platform", "platforms", "message"),
    [
        ("linux/amd64", ["linux/arm64", "windows/amd64", "unknown/unknown"], "it has linux/arm64, windows/amd64"),
        ("linux/amd64", ["linux/amd64/v3"], "nothing for linux/amd64"),
        ("linux/arm/v6", ["linux/arm/v7"], "nothing for linux/arm/v6"),
        ("linux/amd64", [], "no platform at all"),
        ("linux/amd64", ["", ""], "no platform at all"),
    ],
)
def test_a_missing_platform_is_refused_with_what_there_is(platform: str, platforms: list[str], message: str) -> None:
    with pytest.raises(ImageManifestError, match=message):
        chosen(platform, *platforms)


def test_an_index_may_not_announce_a_huge_manifest() -> None:
    with pytest.raises(ImageManifestError, match="announced with 1073741824 bytes"):
        index("linux/amd64", size=1024**3).choose(AMD64)
    assert index("linux/amd64", size=MAX_MANIFEST_BYTES).choose(AMD64).size == MAX_MANIFEST_BYTES


@pytest.mark.parametrize(
    ("body", "content_type", "message"),
    [
        (b"", "", "is no valid JSON"),
        (b'{"schemaVersion": 2, "config":', OCI_MANIFEST, "is no valid JSON"),
        (b"<html>login</html>", "text/html", r"the manifest is HTML \(18 bytes\), of type text/html"),
        (b"[" * 200_000, "", "is no valid JSON"),
        (b"[]", "", "is no JSON object"),
        (b"{}", "", "schemaVersion is not 2"),
        (b'{"schemaVersion": 1, "history": []}', "", "schema 1, which is obsolete"),
        (b"{}", "application/vnd.docker.distribution.manifest.v1+prettyjws", "schema 1, which is obsolete"),
        (b'{"schemaVersion": 2, "manifests": [], "config": {}}', "", "an index and an image at once"),
        (b'{"schemaVersion": 2, "manifests": [], "layers": []}', OCI_INDEX, "an index and an image at once"),
        (b'{"schemaVersion": 2, "manifests": {}}', "", "manifests is no list"),
        (b'{"schemaVersion": 2, "manifests": [{}]}', "", "manifests.digest is no digest"),
        (b'{"schemaVersion": 2, "manifests": [1]}', "", "manifests is no JSON object"),
        (b'{"schemaVersion": 2}', OCI_MANIFEST, "config is no JSON object"),
        (b'{"schemaVersion": 2, "mediaType": 5}', "", "mediaType is no text"),
        (b'{"schemaVersion": 2, "mediaType": "text/html"}', "", "no container image, of type text/html"),
    ],
)
def test_what_is_no_manifest_is_refused(body: bytes, content_type: str, message: str) -> None:
    with pytest.raises(ImageManifestError, match=message):
        parse_manifest(body, content_type)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({**CONFIG, "mediaType": "application/vnd.cncf.helm.config.v1+json"}, "no container image, of type"),
        ({**CONFIG, "mediaType": "application/vnd.oci.empty.v1+json"}, "artifact and no container image"),
        ({**CONFIG, "size": 1024**3}, "announced with 1073741824 bytes"),
        ({**CONFIG, "size": -1}, "config.size is no size"),
        ({**CONFIG, "size": True}, "config.size is no size"),
        ({**CONFIG, "size": "100"}, "config.size is no size"),
        ({**CONFIG, "digest": "sha256:../../etc"}, "config.digest is no digest"),
        ({**CONFIG, "digest": 1}, "config.digest is no text"),
    ],
)  # fmt: skip
def test_configs_that_no_image_has_are_refused(config: object, message: str) -> None:
    with pytest.raises(ImageManifestError, match=message):
        manifest(config=config, layers=[])


def test_an_artifact_type_is_named() -> None:
    with pytest.raises(ImageManifestError, match=r"of type application/vnd\.example"):
        manifest(artifactType="application/vnd.example", config={**CONFIG, "mediaType": "application/x"}, layers=[])


@pytest.mark.parametrize(
    ("settings", "command"),
    [
        ({"Entrypoint": ["/fn"]}, ["/fn"]),
        ({"Entrypoint": ["/fn", "a"], "Cmd": ["b"]}, ["/fn", "a", "b"]),
        ({"Cmd": ["/fn", "b"]}, ["/fn", "b"]),
        ({"Entrypoint": None, "Cmd": ["x"]}, ["x"]),
        ({"Entrypoint": [], "Cmd": ["x"]}, ["x"]),
        ({"Entrypoint": "/fn"}, ["/fn"]),
        ({"Entrypoint": ["ü", ""]}, ["ü", ""]),
    ],
)
def test_entrypoint_and_cmd(settings: object, command: list[str]) -> None:
    found = parse_config(json.dumps({"os": "linux", "architecture": "arm64", "config": settings}).encode())
    assert [*found.entrypoint, *found.cmd] == command
    assert found.platform == ARM64
    metadata = ImageMetadata(image("x.io/fn:v1"), SHA, SHA, found.platform, found.entrypoint, found.cmd)
    assert (list(metadata.command), metadata.pinned) == (command, f"x.io/fn@{SHA}")


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "neither an ENTRYPOINT nor a CMD"),
        ({"config": None}, "neither an ENTRYPOINT nor a CMD"),
        ({"config": {"Entrypoint": [], "Cmd": []}}, "neither an ENTRYPOINT nor a CMD"),
        ({"config": []}, "neither an ENTRYPOINT"),
        ({"config": [1]}, "config is no JSON object"),
        ({"config": {"Entrypoint": [1]}}, "Entrypoint is no list of words"),
        ({"config": {"Cmd": {}}}, "Cmd is no list"),
        ({"config": {"Cmd": ["a\0b"]}}, "Cmd is no list of words"),
        ({"config": {"Cmd": ["a" * 70_000]}}, "longer than 65536 bytes"),
        ({"os": "linux\n", "architecture": "x", "config": {"Cmd": ["x"]}}, "platform is no platform"),
        ([], "is no JSON object"),
    ],
)
def test_configs_that_cannot_be_run_are_refused(document: object, message: str) -> None:
    with pytest.raises(ImageManifestError, match=message):
        parse_config(json.dumps(document).encode())


def test_content_is_held_against_digest_and_size() -> None:
    body = b"content"
    for algorithm in ("sha256", "sha384", "sha512"):
        check_content(body, digest=digest_of(body, algorithm), size=7)
    with pytest.raises(ImageManifestError, match="should have 8 bytes, the registry sent 7"):
        check_content(body, digest=digest_of(body), size=8)
    with pytest.raises(ImageManifestError, match="does not match its digest"):
        check_content(body + b"x", digest=digest_of(body))
    with pytest.raises(ImageManifestError, match='"md5" are not supported'):
        check_content(body, digest="md5:" + "0" * 32)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.sampled_from([SHA, OCI_INDEX, OCI_MANIFEST]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["schemaVersion", "mediaType", "manifests", "config", "layers", "digest", "size", "platform", "os"]
            ),
            inner,
        )
    ),
    max_leaves=20,
)


@given(_JSON, st.sampled_from(["", OCI_INDEX, DOCKER_MANIFEST, "text/html"]))
def test_no_document_does_more_than_be_refused(document: object, content_type: str) -> None:
    body = json.dumps(document).encode()
    try:
        found = parse_manifest(body, content_type)
        if isinstance(found, Index):
            found.choose(AMD64)
    except ImageManifestError:
        pass
    with contextlib.suppress(ImageManifestError):
        parse_config(body)


@pytest.mark.parametrize("text", ["", "linux", "Linux/amd64", "linux/", "/amd64", "a/b/c/d", "linux/amd 64"])
def test_platforms(text: str) -> None:
    if text == "linux":
        # An architecture alone is one of Linux; nobody can know that this is none.
        assert str(parse_platform(text)) == "linux/linux"
        return
    with pytest.raises(ValueError, match="a platform such as"):
        parse_platform(text)
