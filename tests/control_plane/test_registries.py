"""Functions in private registries, and tags that move."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from control_plane import local_images
from control_plane.faults import Waiting
from control_plane.site import PlayedSite
from support.audit import AuditLog
from support.calls import served, until_ok, wish
from support.client import Client
from support.load import Load
from support.push import Push
from support.push import push as push_to
from support.registry import Registry
from support.relay import Relay
from support.site import Rights

RIGHTS = Rights(secrets=("get", "create", "update"))
SECRET = "pull-secret"
USER, PASSWORD = "porch", "a password for tests only"


@pytest.fixture
def registry_relay(registry: Registry) -> Iterator[Relay]:
    """To the open registry, for one test to close."""
    with Relay(("127.0.0.1", registry.port)) as relay:
        yield relay


@pytest.fixture(scope="session")
def private_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """One that wants a password."""
    with Registry(tmp_path_factory.mktemp("private-registry"), users={USER: PASSWORD}) as registry:
        yield registry


@pytest.fixture
def credentials(tmp_path: Path) -> Path:
    return tmp_path / "dockerconfigjson"


def write(path: Path, content: str) -> None:
    """In one step, as a mounted Secret changes."""
    temporary = path.with_suffix(".new")
    temporary.write_text(content)
    os.replace(temporary, path)


def flags(credentials: Path) -> tuple[str, ...]:
    return (
        "--enable-private-registries",
        f"--registry-auth-secret-path={credentials}",
        f"--registry-auth-secret-name={SECRET}",
    )


def kept_secret(site: PlayedSite) -> str:
    """What the kubelet is given."""
    found = site.functions.find(f"secrets/{SECRET}")
    return base64.b64decode(found["data"][".dockerconfigjson"]).decode() if found else ""


def push_privately(registry: Registry, push: Push) -> str:
    """An image that nobody may read without a password; its reference."""
    reference = f"{registry.address}/{push.prefix}/private:v1"
    options = ["--dest-tls-verify=false", f"--dest-creds={USER}:{PASSWORD}"]
    push_to(local_images.obliging(mark=push.prefix), reference, options)
    return reference


def docker_config(registry: Registry, password: str = PASSWORD) -> str:
    login = base64.b64encode(f"{USER}:{password}".encode()).decode()
    return json.dumps({"auths": {registry.address: {"auth": login}}})


async def test_a_private_image_with_credentials(
    site: PlayedSite, push: Push, private_registry: Registry, credentials: Path
) -> None:
    write(credentials, docker_config(private_registry))
    image = push_privately(private_registry, push)
    runner = site.start(site.account(rights=RIGHTS), *flags(credentials))
    async with Client(runner.address) as client:
        served(await client.evaluate(image, wish()))
    assert site.only_pod()["spec"]["imagePullSecrets"] == [{"name": SECRET}]
    assert kept_secret(site) == docker_config(private_registry)


async def test_rotated_credentials_count_when_the_file_changes(
    site: PlayedSite, push: Push, private_registry: Registry, credentials: Path, audit_log: AuditLog
) -> None:
    image = push_privately(private_registry, push)
    write(credentials, docker_config(private_registry, "one that was changed"))
    runner = site.start(site.account(rights=RIGHTS), *flags(credentials))
    async with Client(runner.address) as client:
        refused = await client.evaluate(image, wish(), timeout=20)
        assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "IMAGE_PULL_REFUSED")
        assert str(credentials) in refused.message
        write(credentials, docker_config(private_registry))
        served(await until_ok(client, image))
        assert kept_secret(site) == docker_config(private_registry)
    assert len(audit_log.done("create", "pods", site.functions.name)) == 1
    said = "\n".join(runner.lines)
    assert "one that was changed" not in said
    assert PASSWORD not in said


async def test_without_credentials_it_says_so(
    site: PlayedSite, push: Push, private_registry: Registry, audit_log: AuditLog
) -> None:
    image = push_privately(private_registry, push)
    async with Client(site.runner().address) as client:
        refused = await client.evaluate(image, wish(), timeout=20)
    assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "IMAGE_PULL_REFUSED")
    assert "credential" in refused.message
    assert audit_log.done("create", "pods", site.functions.name) == []


async def test_a_pull_secret_that_may_not_be_written_is_said(
    site: PlayedSite, push: Push, private_registry: Registry, credentials: Path
) -> None:
    image = push_privately(private_registry, push)
    write(credentials, docker_config(private_registry))
    site.kubelet.fault = Waiting("ErrImagePull", "pull access denied: 401 Unauthorized")
    runner = site.start(site.account(), *flags(credentials))
    async with Client(runner.address) as client:
        refused = await client.evaluate(image, wish(), timeout=30)
    assert refused.code == "FAILED_PRECONDITION", refused
    assert "pull secret" in refused.message
    runner.wait_for_line("cannot (get|create) resource \\W+secrets")


async def test_a_tag_that_moves_is_followed_and_both_versions_answer_meanwhile(
    site: PlayedSite, push: Push, audit_log: AuditLog
) -> None:
    image = push("moving", local_images.obliging("one"))
    flags = ("--image-tag-ttl=1s", "--pod-ttl=3s", "--scan-interval=1s")
    async with Client(site.runner(*flags).address) as client:
        async with Load(client, image) as load:
            await load.more(10)
            under_way = asyncio.ensure_future(client.evaluate(image, wish(call="long", seconds=3)))
            await asyncio.sleep(0.5)
            push("moving", local_images.obliging("two"))
            await load.until(lambda call: call.version == "two", what="from the new version")
            assert len(site.living()) == 2
            await load.more(20)
            long = served(await under_way)
            assert (long.version, long.call) == ("one", "long")
        calls = load.served
    assert {call.version for call in calls.values()} == {"one", "two"}
    assert all(name == call.call for name, call in calls.items())
    assert len(audit_log.done("create", "pods", site.functions.name)) == 2


async def test_a_tag_that_moves_leaves_the_pod_of_its_digest_to_those_who_ask_for_that(
    site: PlayedSite, push: Push
) -> None:
    image = push("moving", local_images.obliging("one"))
    digest = f"{image.removesuffix(':v1')}@{local_images.obliging('one').digest}"
    async with Client(site.runner("--image-tag-ttl=1s").address) as client:
        assert served(await client.evaluate(image, wish())).version == "one"
        assert served(await client.evaluate(digest, wish())).version == "one"
        push("moving", local_images.obliging("two"))
        async with Load(client, image) as load:
            await load.until(lambda call: call.version == "two", what="from the new version")
        assert load.served
        assert served(await client.evaluate(digest, wish())).version == "one"


async def test_two_repositories_with_one_digest_have_pods_of_their_own(site: PlayedSite, push: Push) -> None:
    one, other = push("team-a/same", local_images.obliging()), push("team-b/same", local_images.obliging())
    async with Client(site.runner().address) as client:
        assert served(await client.evaluate(one, wish())).pod != served(await client.evaluate(other, wish())).pod
    assert {pod["metadata"]["annotations"]["krm-runner/image"] for pod in site.pods()} == {one, other}


async def test_a_registry_that_is_away_does_not_matter_to_functions_that_have_a_pod(
    site: PlayedSite, push: Push, registry: Registry, registry_relay: Relay, audit_log: AuditLog
) -> None:
    """Neither to a runner that knows the image, nor to one that starts meanwhile and finds the pod."""
    address = f"127.0.0.1:{registry_relay.port}"
    image = push("obliging", local_images.obliging()).replace(registry.address, address)
    place = site.account()
    first = site.start(place, "--image-tag-ttl=1s", "--registry-timeout=2s")
    async with Client(first.address) as client:
        made = served(await client.evaluate(image, wish()))
        registry_relay.close()
        async with Load(client, image) as load:
            await load.until(lambda call: call.ended > made.ended + 3, what="after the tag's time")
        assert {call.pod for call in load.served.values()} == {made.pod}
    first.stop(signal.SIGKILL)
    second = site.start(place, "--image-tag-ttl=1s", "--registry-timeout=2s")
    async with Client(second.address) as client:
        assert served(await client.evaluate(image, wish())).pod == made.pod
        unknown = await client.evaluate(image.replace(":v1", ":v2"), wish(), timeout=20)
        assert (unknown.code, unknown.reason) == ("UNAVAILABLE", "REGISTRY_UNAVAILABLE")
    assert len(audit_log.done("create", "pods", site.functions.name)) == 1
