"""Images in real registries: resolved, chosen, cached, and refused with a clear reason."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog.testing
from aiohttp import web

from krm_runner.core import image_ref
from krm_runner.core.errors import (
    EvaluationError,
    ImageNotFoundError,
    ImageUnusableError,
    RegistryUnavailableError,
)
from krm_runner.registry.resolver import ImageResolver
from support.hostile import serving
from support.registry import Registry
from support.registry_images import (
    OCI_MANIFEST,
    Blob,
    as_blob,
    inspect,
    make_by_umoci,
    make_image,
    make_index,
    push,
    push_manifest,
    skopeo,
)
from support.resolving import failure, look_up, resolver
from support.tools import need

AMD64, ARM64 = {"os": "linux", "architecture": "amd64"}, {"os": "linux", "architecture": "arm64"}
PLAIN = ("--src-tls-verify=false", "--dest-tls-verify=false")
FLAGS = ("--image-platform=linux/amd64",)
IMAGES = ["ours/single:v1", "ours/multi:v1", "skopeo/docker:v1", "skopeo/list:v1", "umoci/fn:v1", "ours/cmd-only:v1"]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """An open registry with an image of every kind."""
    need("docker-registry", "skopeo", "umoci")
    directory = tmp_path_factory.mktemp("registry")
    with Registry(directory / "open") as open_registry:
        address = open_registry.address
        amd64, arm64 = make_image(cmd=["x"]), make_image(architecture="arm64", entrypoint=["/fn-arm"])
        push(address, "ours/single", "v1", make_image(entrypoint=["/fn", "ü"], cmd=["a b"]))
        push(address, "ours/cmd-only", "v1", make_image(entrypoint=None, cmd=["/fn", "x"]))
        push(address, "ours/multi", "v1", make_index((arm64.manifest, ARM64), (amd64.manifest, AMD64)), amd64, arm64)
        for source, target, flags in (
            ("ours/single", "skopeo/docker", ("--format=v2s2",)),
            ("ours/multi", "skopeo/list", ("--all", "--format=v2s2")),
            ("ours/single", "skopeo/schema1", ("--format=v2s1",)),
        ):
            skopeo("copy", *PLAIN, *flags, f"docker://{address}/{source}:v1", f"docker://{address}/{target}:v1")
        make_by_umoci(directory / "layout", "v1", entrypoint=["/usr/bin/fn", "--flag"], cmd=["1", "2"])
        skopeo("copy", PLAIN[1], f"oci:{directory / 'layout'}:v1", f"docker://{address}/umoci/fn:v1")
        yield open_registry


@pytest.fixture(autouse=True)
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty default keychain, whoever runs the tests."""
    directory = tmp_path / "docker"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    monkeypatch.setenv("DOCKER_CONFIG", str(directory))
    return directory / "config.json"


@pytest.mark.parametrize("name", IMAGES)
async def test_digest_and_entrypoint_are_what_skopeo_sees(registry: Registry, name: str, nothing_open: None) -> None:
    image = f"{registry.address}/{name}"
    found = (await look_up(image, *FLAGS)).metadata
    digest, command = await asyncio.to_thread(inspect, image, "--tls-verify=false", "--override-arch=amd64")
    assert (found.digest, list(found.command)) == (digest, command)
    assert str(found.platform) == "linux/amd64"
    # By digest the same image is found again, with and without a tag beside it.
    for reference in (f"{image.rpartition(':')[0]}@{digest}", f"{image}@{digest}"):
        again = (await look_up(reference, *FLAGS)).metadata
        assert (again.digest, again.command, again.manifest_digest) == (digest, found.command, found.manifest_digest)


@pytest.mark.parametrize("name", ["ours/multi:v1", "skopeo/list:v1"])
async def test_the_flag_chooses_the_platform(registry: Registry, name: str) -> None:
    image = f"{registry.address}/{name}"
    found = (await look_up(image, "--image-platform=linux/arm64")).metadata
    digest, command = await asyncio.to_thread(inspect, image, "--tls-verify=false", "--override-arch=arm64")
    assert (found.digest, list(found.command), str(found.platform)) == (digest, command, "linux/arm64")
    assert found.manifest_digest != (await look_up(image, *FLAGS)).metadata.manifest_digest
    error = await failure(image, "--image-platform=linux/s390x")
    assert isinstance(error, ImageUnusableError)
    assert "has nothing for linux/s390x; it has linux/amd64, linux/arm64" in str(error)


async def test_an_index_in_an_index_is_followed_and_a_tower_of_them_is_not(registry: Registry) -> None:
    image = make_image()
    inner = make_index((image.manifest, AMD64))
    outer = make_index((inner, AMD64))
    tower = make_index((outer, None))
    repository = "ours/nested"
    push(registry.address, repository, "inner", inner, image)
    push(registry.address, repository, "outer", outer)
    push(registry.address, repository, "tower", tower)
    found = (await look_up(f"{registry.address}/{repository}:outer", *FLAGS)).metadata
    assert (found.digest, found.manifest_digest) == (outer.digest, image.manifest.digest)
    error = await failure(f"{registry.address}/{repository}:tower", *FLAGS)
    assert "indexes are nested more than 2 deep" in str(error)


async def test_an_image_of_another_platform_is_used_with_a_warning(registry: Registry) -> None:
    push(registry.address, "ours/arm", "v1", make_image(architecture="arm64"))
    with structlog.testing.capture_logs() as logs:
        found = (await look_up(f"{registry.address}/ours/arm:v1", *FLAGS)).metadata
    assert str(found.platform) == "linux/arm64"
    assert [line["wanted"] for line in logs if line["event"] == "image is for another platform"] == ["linux/amd64"]


async def test_what_is_no_image_is_refused(registry: Registry) -> None:
    chart = as_blob("application/vnd.cncf.helm.config.v1+json", {"name": "chart"})
    layer = Blob("application/vnd.cncf.helm.chart.content.v1.tar+gzip", b"chart")
    manifest = {"schemaVersion": 2, "mediaType": OCI_MANIFEST, "config": chart.descriptor()}
    artifact = as_blob(OCI_MANIFEST, {**manifest, "layers": [layer.descriptor()]})
    push_manifest(registry.address, "ours/chart", "v1", artifact, chart, layer)
    push(registry.address, "ours/nothing", "v1", make_image(entrypoint=None))
    for name, why in (
        ("ours/chart:v1", "an artifact and no container image, of type application/vnd.cncf.helm.config.v1+json"),
        ("ours/nothing:v1", "the image has neither an ENTRYPOINT nor a CMD"),
        ("skopeo/schema1:v1", "Docker's schema 1, which is obsolete; push the image again"),
    ):
        error = await failure(f"{registry.address}/{name}", *FLAGS)
        assert isinstance(error, ImageUnusableError), error
        assert why in str(error)
        assert f'image "{registry.address}/{name}" cannot be used: {registry.address}: ' in str(error)


async def test_what_is_not_there_is_said_with_the_registrys_code(registry: Registry) -> None:
    digest = "sha256:" + "0" * 64
    for name, code in ((":nix", "MANIFEST_UNKNOWN"), (f"@{digest}", "MANIFEST_UNKNOWN")):
        error = await failure(f"{registry.address}/ours/single{name}")
        assert isinstance(error, ImageNotFoundError)
        assert f'has no "{name[1:]}" in ours/single: status 404 ({code})' in str(error)


async def test_a_hundred_callers_at_once_are_one_fetch(registry: Registry, nothing_open: None) -> None:
    push(registry.address, "ours/burst", "v1", make_image())
    image = f"{registry.address}/ours/burst:v1"
    async with resolver(*FLAGS) as images:
        reference = image_ref.parse(image)
        found = await asyncio.gather(*(images.look_up(reference, image=image) for _ in range(100)))
        assert len({id(each.metadata) for each in found}) == 1
        assert (await images.look_up(reference, image=image)).source == "cache"
    assert len(registry.requests(r"GET /v2/ours/burst/manifests/")) == 1
    assert len(registry.requests(r"GET /v2/ours/burst/blobs/")) == 1


async def test_a_burst_for_a_missing_image_asks_once_and_each_caller_reads_its_own_spelling(registry: Registry) -> None:
    async with resolver(f"--default-image-prefix={registry.address}/ours") as images:
        reference = image_ref.parse(f"{registry.address}/ours/missing:v1")
        outcomes = await asyncio.gather(
            *(images.look_up(reference, image=f"spelling-{number}") for number in range(20)), return_exceptions=True
        )
        with pytest.raises(ImageNotFoundError, match='"later"'):
            await images.look_up(reference, image="later")
    for number, outcome in enumerate(outcomes):
        assert isinstance(outcome, ImageNotFoundError)
        assert f'"spelling-{number}"' in str(outcome)
    assert len(registry.requests("GET /v2/ours/missing/")) == 1


async def test_one_callers_end_is_not_the_others(registry: Registry, nothing_open: None) -> None:
    push(registry.address, "ours/cancelled", "v1", make_image())
    image = f"{registry.address}/ours/cancelled:v1"
    async with resolver(*FLAGS) as images:
        reference = image_ref.parse(image)
        callers = [asyncio.create_task(images.look_up(reference, image=image)) for _ in range(3)]
        await asyncio.sleep(0)
        callers[0].cancel()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await images.look_up(reference, image=image)
        outcomes = await asyncio.gather(*callers, return_exceptions=True)
        assert isinstance(outcomes[0], asyncio.CancelledError)
        assert not any(isinstance(outcome, BaseException) for outcome in outcomes[1:])
    assert len(registry.requests("GET /v2/ours/cancelled/manifests/")) == 1


async def test_a_flight_that_nobody_waits_for_ends_with_the_resolver(registry: Registry, nothing_open: None) -> None:
    async with resolver(*FLAGS) as images:
        image = f"{registry.address}/ours/single:v1"
        caller = asyncio.create_task(images.look_up(image_ref.parse(image), image=image))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)


async def test_a_moved_tag_is_seen_after_its_time_and_an_unmoved_one_costs_a_head(registry: Registry) -> None:
    repository = "ours/moving"
    first, second = make_image(entrypoint=["/one"]), make_image(entrypoint=["/two"])
    push(registry.address, repository, "v1", first)
    image = f"{registry.address}/{repository}:v1"
    reference = image_ref.parse(image)
    async with resolver(*FLAGS, "--image-tag-ttl=0") as images:
        assert (await images.look_up(reference, image=image)).metadata.command == ("/one",)
        assert (await images.look_up(reference, image=image)).metadata.command == ("/one",)
        assert len(registry.requests(f"GET /v2/{repository}/manifests/")) == 1
        assert len(registry.requests(f"HEAD /v2/{repository}/manifests/v1 200")) == 1
        push(registry.address, repository, "v1", second)
        with structlog.testing.capture_logs() as logs:
            moved = (await images.look_up(reference, image=image)).metadata
        assert (moved.command, moved.digest) == (("/two",), second.manifest.digest)
        assert [line["was"] for line in logs if line["event"] == "tag moved"] == [first.manifest.digest]
    async with resolver(*FLAGS) as images:
        await images.look_up(reference, image=image)
        push(registry.address, repository, "v1", first)
        assert (await images.look_up(reference, image=image)).metadata.command == ("/two",)


async def test_while_the_registry_is_away_known_tags_are_served_with_a_warning(tmp_path: Path) -> None:
    need("docker-registry")
    with Registry(tmp_path / "registry") as registry:
        push(registry.address, "fn", "v1", make_image())
        image = f"{registry.address}/fn:v1"
        known, unknown = image_ref.parse(image), image_ref.parse(f"{registry.address}/fn:v2")

        async def source(images: ImageResolver) -> str:
            return (await images.look_up(known, image=image)).source

        async with resolver(*FLAGS, "--image-tag-ttl=0", "--registry-timeout=2s") as images:
            assert await source(images) == "registry"
            registry.stop()
            with structlog.testing.capture_logs() as logs:
                assert await source(images) == "stale cache"
                # For a moment the registry is left alone.
                assert await source(images) == "stale cache"
            (warning,) = [line for line in logs if line["log_level"] == "warning"]
            assert warning["event"] == "registry away, the tag is served as it was known"
            with pytest.raises(RegistryUnavailableError, match=r"cannot be looked up for now.*try again later"):
                await images.look_up(unknown, image="unknown")
            registry.start()
            async with asyncio.timeout(60):
                while await source(images) != "registry":
                    await asyncio.sleep(0.1)


async def test_a_registry_that_swallows_everything_holds_nobody_up_for_long() -> None:
    """The first caller after the tag's time waits for the registry; while it is away, later ones do not."""
    hang = asyncio.Event()
    image = make_image()
    blobs = {"v1": image.manifest, **{blob.digest: blob for blob in image.blobs}}

    async def handle(request: web.Request) -> web.StreamResponse:
        if hang.is_set():
            await asyncio.sleep(3600)
        blob = blobs[request.path.rpartition("/")[2]]
        return web.Response(body=blob.body, headers={"Content-Type": blob.media_type})

    async with serving(handle) as server, resolver(*FLAGS, "--image-tag-ttl=0", "--registry-timeout=1s") as images:
        reference = image_ref.parse(server.image())
        await images.look_up(reference, image="fn")
        hang.set()
        with structlog.testing.capture_logs() as logs:
            assert (await images.look_up(reference, image="fn")).source == "stale cache"
            asked = len(server.requests)
            async with asyncio.timeout(60):
                while len(server.requests) == asked:
                    # What never waits for the network is done within one turn of the loop.
                    looking = asyncio.ensure_future(images.look_up(reference, image="fn"))
                    await asyncio.sleep(0)
                    assert looking.done()
                    assert looking.result().source == "stale cache"
                    await asyncio.sleep(0.1)
        assert [line["event"] for line in logs if line["log_level"] == "warning"] == [
            "registry away, the tag is served as it was known"
        ]


async def test_a_deleted_tag_is_not_served_from_the_cache(tmp_path: Path) -> None:
    need("docker-registry")
    with Registry(tmp_path / "registry") as registry:
        push(registry.address, "fn", "v1", make_image())
        image = f"{registry.address}/fn:v1"
        async with resolver(*FLAGS, "--image-tag-ttl=0") as images:
            await images.look_up(image_ref.parse(image), image=image)
            shutil.rmtree(tmp_path / "registry/data/docker/registry/v2/repositories/fn/_manifests/tags/v1")
            with pytest.raises(ImageNotFoundError):
                await images.look_up(image_ref.parse(image), image=image)


async def test_mapped_images_ask_no_registry(tmp_path: Path) -> None:
    path, digest = tmp_path / "map.yaml", "sha256:" + "a1" * 32
    entry = {"image": "registry.invalid/fn:v1", "digest": digest, "entrypoint": ["/fn"]}
    path.write_text(json.dumps({"images": [entry]}))
    reference = image_ref.parse("registry.invalid/fn:v1")
    async with resolver(f"--image-map={path}", "--registry-timeout=1s") as images:
        found = await images.look_up(reference, image="fn")
        assert (found.source, found.metadata.digest, found.metadata.command) == ("image map", digest, ("/fn",))
        # A broken version of the file does not replace a good one; a good one does.
        path.write_text("images: [{")
        assert (await images.look_up(reference, image="fn")).metadata.command == ("/fn",)
        replacement = tmp_path / "new.yaml"
        replacement.write_text(json.dumps({"images": [{**entry, "entrypoint": ["/new"]}]}))
        os.replace(replacement, path)
        assert (await images.look_up(reference, image="fn")).metadata.command == ("/new",)
        with pytest.raises(EvaluationError, match=r"registry\.invalid"):
            await images.look_up(image_ref.parse("registry.invalid/fn:v2"), image="v2")
