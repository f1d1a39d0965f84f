"""Functions in private registries, and tags that move."""

from __future__ import annotations

import asyncio
import base64
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster import layout, registries
from cluster.layout import OPEN, PRIVATE, PRIVATE_TLS, Registry
from support import function_images
from support.audit import AuditLog
from support.calls import served, until_ok, wish
from support.client import Client
from support.load import Load
from support.push import Push
from support.relay import Relay
from support.site import Rights, Site

RIGHTS = Rights(secrets=("get", "create", "update"))
SECRET = "pull-secret"


@pytest.fixture
def registry_relay() -> Iterator[Relay]:
    """To the open registry, for one test to close."""
    host, port = OPEN.address.split(":")
    with Relay((host, int(port))) as relay:
        yield relay


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


def kept_secret(site: Site) -> str:
    """What the kubelet is given."""
    found = site.functions.find(f"secrets/{SECRET}")
    return base64.b64decode(found["data"][".dockerconfigjson"]).decode() if found else ""


@pytest.mark.parametrize("registry", [PRIVATE, PRIVATE_TLS], ids=["in the clear", "TLS"])
async def test_a_private_image_with_credentials(site: Site, push: Push, credentials: Path, registry: Registry) -> None:
    write(credentials, registries.pull_secret(registry))
    authority = credentials.with_name("tls")
    authority.mkdir()
    (authority / "ca.crt").write_bytes(layout.full().certificate("registry-ca").read_bytes())
    tls = ("--enable-private-registries-tls", f"--tls-secret-path={authority}") if registry.has_tls else ()
    image = push("private", function_images.obliging(mark=push.prefix), registry)
    runner = site.start(site.account(rights=RIGHTS), *flags(credentials), *tls)
    async with Client(runner.address) as client:
        served(await client.evaluate(image, wish()))
    assert site.only_pod()["spec"]["imagePullSecrets"] == [{"name": SECRET}]
    assert kept_secret(site) == registries.pull_secret(registry)


async def test_rotated_credentials_count_when_the_file_changes(
    site: Site, push: Push, credentials: Path, audit_log: AuditLog
) -> None:
    image = push("private", function_images.obliging(mark=push.prefix), PRIVATE)
    write(credentials, registries.pull_secret(PRIVATE, "one that was changed"))
    runner = site.start(site.account(rights=RIGHTS), *flags(credentials))
    async with Client(runner.address) as client:
        refused = await client.evaluate(image, wish(), timeout=20)
        assert (refused.code, refused.reason) == ("FAILED_PRECONDITION", "IMAGE_PULL_REFUSED")
        assert str(credentials) in refused.message
        write(credentials, registries.pull_secret(PRIVATE))
        served(await until_ok(client, image))
        assert kept_secret(site) == registries.pull_secret(PRIVATE)
    assert len(audit_log.done("create", "pods", site.functions.name)) == 1
    said = "\n".join(runner.lines)
    assert "one that was changed" not in said
    assert "a password for tests only" not in said


async def test_a_tag_that_moves_is_followed_and_both_versions_answer_meanwhile(
    site: Site, push: Push, audit_log: AuditLog
) -> None:
    image = push("moving", function_images.obliging("one"))
    flags = ("--image-tag-ttl=2s", "--pod-ttl=10s", "--scan-interval=1s")
    async with Client(site.runner(*flags).address) as client:
        async with Load(client, image) as load:
            await load.more(10)
            under_way = asyncio.ensure_future(client.evaluate(image, wish(call="long", seconds=6)))
            await asyncio.sleep(0.5)
            push("moving", function_images.obliging("two"))
            await load.until(lambda call: call.version == "two", what="from the new version")
            assert len(site.living()) == 2
            await load.more(20)
            long = served(await under_way)
            assert (long.version, long.call) == ("one", "long")
        calls = load.served
    assert {call.version for call in calls.values()} == {"one", "two"}
    assert all(name == call.call for name, call in calls.items())
    assert len(audit_log.done("create", "pods", site.functions.name)) == 2
