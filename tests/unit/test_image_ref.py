"""Image references by Docker's rules."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krm_runner.core.image_ref import ImageRefError, parse

SHA = "sha256:" + "a1" * 32
PREFIX = "ghcr.io/kptdev/krm-functions-catalog"


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("alpine", "docker.io/library/alpine:latest"),
        ("alpine:3.20", "docker.io/library/alpine:3.20"),
        ("nephio/fn", "docker.io/nephio/fn:latest"),
        ("docker.io/alpine", "docker.io/library/alpine:latest"),
        ("index.docker.io/alpine:1", "docker.io/library/alpine:1"),
        ("localhost/fn:1", "localhost/fn:1"),
        ("localhost:5000/fn", "localhost:5000/fn:latest"),
        ("127.0.0.1:5000/a/b/c:v1", "127.0.0.1:5000/a/b/c:v1"),
        ("[::1]:5000/fn:1", "[::1]:5000/fn:1"),
        ("gcr.io/kpt-fn/set-namespace:v0.4.1", "gcr.io/kpt-fn/set-namespace:v0.4.1"),
        (f"gcr.io/x/y@{SHA}", f"gcr.io/x/y@{SHA}"),
        (f"gcr.io/x/y:v1@{SHA}", f"gcr.io/x/y@{SHA}"),
        ("Registry/fn:V1.0_A-b", "Registry/fn:V1.0_A-b"),
        ("gcr.io/a__b/c-d.e_f", "gcr.io/a__b/c-d.e_f:latest"),
    ],
)
def test_canonical_form(text: str, canonical: str) -> None:
    assert parse(text).canonical == canonical


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("set-namespace:v0.4.1", f"{PREFIX}/set-namespace:v0.4.1"),
        (f"set-namespace@{SHA}", f"{PREFIX}/set-namespace@{SHA}"),
        ("set-namespace", f"{PREFIX}/set-namespace:latest"),
        ("nephio/fn:v1", "docker.io/nephio/fn:v1"),
        ("localhost:5000/fn:v1", "localhost:5000/fn:v1"),
    ],
)
def test_default_prefix_goes_before_names_without_registry_or_path(text: str, canonical: str) -> None:
    assert parse(text, default_prefix=PREFIX).canonical == canonical
    assert parse(text, default_prefix=PREFIX + "/").canonical == canonical


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "the image is empty"),
        (":v1", "the image has no name"),
        ("a:", "is no valid tag"),
        ("a:b:c", "is no valid repository"),
        ("gcr.io/Upper/case", "it must be lower case"),
        ("a b", "is no valid repository"),
        ("a//b", "is no valid repository"),
        ("gcr.io/", "is no valid repository"),
        ("-bad.io/x", "is no valid registry"),
        ("a:" + "t" * 129, "is no valid tag"),
        ("a@sha256:abc", "is no valid digest"),
        ("a@sha256:" + "a" * 63, "is no valid digest"),
        ("a@", "is no valid digest"),
        ("ab" * 32, "bare digest"),
        ("gcr.io/" + "a" * 250, "longer than 255"),
        ("x" * 1025, "1024 are allowed"),
        ("a\nb", "is no valid repository"),
    ],
)
def test_what_is_no_reference_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ImageRefError, match=why):
        parse(text)
    if "/" not in text:
        with pytest.raises(ImageRefError):
            parse(text, default_prefix=PREFIX)


@given(st.text(max_size=60))
def test_a_canonical_form_stands_for_itself(text: str) -> None:
    try:
        reference = parse(text)
    except ImageRefError:
        return
    assert parse(reference.canonical).canonical == reference.canonical


_HOSTS = st.from_regex(r"[a-z0-9]{1,5}(\.[a-z0-9]{1,5}){1,2}(:[0-9]{1,4})?", fullmatch=True) | st.just("localhost")
_PATHS = st.from_regex(r"[a-z0-9]{1,4}([._-][a-z0-9]{1,4})?(/[a-z0-9]{1,4}(__[a-z0-9]{1,4})?){0,3}", fullmatch=True)
_TAGS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True)
_DIGESTS = st.from_regex(r"sha256:[0-9a-f]{64}", fullmatch=True)


@given(_HOSTS, _PATHS, st.none() | _TAGS, st.none() | _DIGESTS, st.sampled_from(["", PREFIX]))
def test_the_parts_of_a_full_reference_are_found_again(
    host: str, path: str, tag: str | None, digest: str | None, prefix: str
) -> None:
    text = f"{host}/{path}" + (f":{tag}" if tag else "") + (f"@{digest}" if digest else "")
    found = parse(text, default_prefix=prefix)
    assert (found.registry, found.repository, found.digest) == (host, path, digest or "")
    assert found.tag == (tag or ("" if digest else "latest"))
    assert found.canonical == (f"{host}/{path}@{digest}" if digest else f"{host}/{path}:{tag or 'latest'}")


@given(st.text(max_size=30), st.sampled_from(["", PREFIX]))
def test_what_is_accepted_can_stand_in_an_address(text: str, prefix: str) -> None:
    try:
        found = parse(text, default_prefix=prefix)
    except ImageRefError:
        return
    assert found.canonical.isascii()
    assert not set(found.canonical) & set(" ?#%&\\\n\r\0")
    assert ".." not in found.repository
