"""Registries that lie, drip, redirect and break: refused in bounded time and memory, with a clear reason."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from krm_runner.core import image_ref
from krm_runner.core.errors import (
    EvaluationError,
    ImagePullRefusedError,
    ImageUnusableError,
    RegistryUnavailableError,
    RegistryUntrustedError,
)
from support.hostile import Handler, Server, serving, speaking
from support.registry_images import OCI_INDEX, OCI_MANIFEST, Blob, Image, make_image, make_index
from support.resolving import failure, look_up, resolver, write_auths

GIBIBYTE = 1024**3
FLAGS = ("--image-platform=linux/amd64", "--registry-timeout=10s")
IMPATIENT = "--registry-timeout=1500ms"
USER, PASSWORD = "robot", "s3cret-pa55word"
BASIC = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()


@pytest.fixture(autouse=True)
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = write_auths(tmp_path / "docker" / "config.json", {})
    monkeypatch.setenv("DOCKER_CONFIG", str(path.parent))
    return path


def response_of(blob: Blob, **headers: str) -> web.Response:
    return web.Response(body=blob.body, headers={"Content-Type": blob.media_type, **headers})


def registry_of(image: Image, *more: Blob, tag: Blob | None = None) -> Handler:
    """A well-behaved registry with one image."""
    known = {blob.digest: blob for blob in (image.manifest, *image.blobs, *more)}
    known["v1"] = tag or image.manifest

    async def handle(request: web.Request) -> web.StreamResponse:
        blob = known.get(request.path.rpartition("/")[2])
        return web.Response(status=404) if blob is None else response_of(blob)

    return handle


def altered(handler: Handler, part: str, response: Callable[[], web.Response]) -> Handler:
    """A registry that answers differently where the path holds `part`."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return response() if part in request.path else await handler(request)

    return handle


async def refusal(server: Server, *flags: str, reference: str = "fn:v1") -> EvaluationError:
    async with asyncio.timeout(60):
        return await failure(server.image(reference), *FLAGS, *flags)


IMAGE = make_image()
CONFIG = IMAGE.blobs[0]
OTHER = make_image(entrypoint=["/evil"])
CHANGED = Blob(CONFIG.media_type, CONFIG.body.replace(b"/fn", b"/nf"))


async def test_the_well_behaved_one_is_read(nothing_open: None) -> None:
    async with serving(registry_of(IMAGE)) as server:
        assert (await look_up(server.image(), *FLAGS)).metadata.digest == IMAGE.manifest.digest


LIES: list[tuple[str, str, Callable[[], web.Response], str]] = [
    ("html", "/manifests/", lambda: web.Response(text="<html>Log in</html>", content_type="text/html"), "is HTML"),
    ("truncated", "/manifests/", lambda: web.Response(body=IMAGE.manifest.body[:-9]), "is no valid JSON"),
    ("empty", "/manifests/", lambda: web.Response(text=""), "is no valid JSON"),
    (
        "wrong digest in the header",
        "/manifests/",
        lambda: response_of(IMAGE.manifest, **{"Docker-Content-Digest": OTHER.manifest.digest}),
        f"does not match its digest: expected {OTHER.manifest.digest}, the registry sent {IMAGE.manifest.digest}",
    ),
    ("another config", "/blobs/", lambda: response_of(CHANGED), "does not match its digest"),
    ("config with spaces", "/blobs/", lambda: web.Response(body=CONFIG.body + b"  "), "bytes allowed|bytes; "),
    ("config cut", "/blobs/", lambda: web.Response(body=CONFIG.body[:-1]), f"should have {len(CONFIG.body)} bytes"),
    (
        "compressed",
        "/manifests/",
        lambda: web.Response(body=IMAGE.manifest.body, headers={"Content-Encoding": "gzip"}),
        "compressed content that was not asked for",
    ),
    ("no content", "/manifests/", lambda: web.Response(status=204), "answered with status 204"),
    ("teapot", "/manifests/", lambda: web.Response(status=418), "answered with status 418"),
    ("redirect to nowhere", "/manifests/", lambda: web.Response(status=307), "redirects to an invalid address"),
    (
        "redirect to a file",
        "/manifests/",
        lambda: web.Response(status=302, headers={"Location": "file:///etc/passwd"}),
        "redirects to an invalid address",
    ),
    (
        "redirect to a broken address",
        "/manifests/",
        lambda: web.Response(status=302, headers={"Location": "http://[::1"}),
        "redirects to an invalid address",
    ),
]


@pytest.mark.parametrize(("part", "response", "why"), [lie[1:] for lie in LIES], ids=[lie[0] for lie in LIES])
async def test_lies(part: str, response: Callable[[], web.Response], why: str, nothing_open: None) -> None:
    async with serving(altered(registry_of(IMAGE), part, response)) as server:
        error = await refusal(server)
    assert isinstance(error, ImageUnusableError), error
    assert re.search(why, str(error)), error


async def test_content_that_does_not_match_the_asked_digest() -> None:
    async with serving(altered(registry_of(IMAGE), "/manifests/", lambda: response_of(OTHER.manifest))) as server:
        error = await refusal(server, reference=f"fn@{IMAGE.manifest.digest}")
    assert "the content does not match its digest" in str(error)


@pytest.mark.parametrize("size", [GIBIBYTE, 5 * 1024 * 1024])
@pytest.mark.parametrize("part", ["/manifests/", "/blobs/"])
async def test_too_much_is_announced(size: int, part: str) -> None:
    """Refused by the announcement: not one byte of the body is waited for."""
    reached = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        if part not in request.path:
            return await registry_of(IMAGE)(request)
        response = web.StreamResponse(headers={"Content-Length": str(size)})
        await response.prepare(request)
        reached.set()
        await asyncio.sleep(3600)
        return response

    async with serving(handle) as server:
        error = await refusal(server)
    assert reached.is_set()
    assert isinstance(error, ImageUnusableError)
    assert f"announces {size} bytes" in str(error)


@pytest.mark.parametrize("part", ["/manifests/", "/blobs/"])
async def test_too_much_is_sent_without_an_announcement(part: str) -> None:
    sent = 0

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        if part not in request.path:
            return await registry_of(IMAGE)(request)
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        while sent < GIBIBYTE:
            await response.write(b" " * 65_536)
            sent += 65_536
        return response

    async with serving(handle) as server:
        error = await refusal(server)
    assert isinstance(error, ImageUnusableError)
    assert "sends more than the" in str(error)
    assert sent < 64 * 1024 * 1024


async def test_a_huge_config_is_refused_by_its_descriptor() -> None:
    document = json.loads(IMAGE.manifest.body)
    document["config"]["size"] = GIBIBYTE
    huge = Blob(OCI_MANIFEST, json.dumps(document).encode())
    async with serving(registry_of(IMAGE, tag=huge)) as server:
        error = await refusal(server)
        assert not any("/blobs/" in line for line, _ in server.requests)
    assert "the image's config is announced with 1073741824 bytes" in str(error)


async def test_an_index_that_names_itself() -> None:
    """The digest of a document that holds its own digest cannot be right: the first turn is the last."""
    digest = "sha256:" + "0" * 64
    document = json.loads(make_index((IMAGE.manifest, {"os": "linux", "architecture": "amd64"})).body)
    document["manifests"][0]["digest"] = digest
    loop = Blob(OCI_INDEX, json.dumps(document).encode())
    document["manifests"][0]["size"] = len(loop.body)
    loop = Blob(OCI_INDEX, json.dumps(document).encode())
    async with serving(altered(registry_of(IMAGE), "/manifests/", lambda: response_of(loop))) as server:
        error = await refusal(server)
        assert len([line for line, _ in server.requests if "/manifests/" in line]) == 2
    assert "the content does not match its digest" in str(error) or "should have" in str(error)


async def test_endless_redirects() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(status=302, headers={"Location": f"/v2/fn/manifests/v1?turn={len(server.requests)}"})

    async with serving(handle) as server:
        error = await refusal(server)
        assert len(server.requests) == 6
    assert isinstance(error, ImageUnusableError)
    assert "more than 5 redirects" in str(error)


async def test_credentials_do_not_follow_a_redirect_to_another_host(docker_config: Path) -> None:
    signature = "X-Signature=s1gned"

    async def store(request: web.Request) -> web.StreamResponse:
        return response_of(CONFIG)

    async def registry(request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != BASIC:
            return web.Response(status=401, headers={"WWW-Authenticate": "Basic realm=x"})
        if "/moved/" in request.path:
            return web.Response(
                status=307, headers={"Location": f"http://user:pw@localhost:{port}/store/%2Fa?{signature}"}
            )
        if "/blobs/" in request.path:
            return web.Response(status=307, headers={"Location": "/moved/blob"})
        return await registry_of(IMAGE)(request)

    async with serving(store) as other, serving(registry) as server:
        port = other.address.rpartition(":")[2]
        write_auths(docker_config, {server.address: {"username": USER, "password": PASSWORD}})
        assert (await look_up(server.image(), *FLAGS)).metadata.command == ("/fn",)
        # On the same host the credentials go along; the other host gets the address as it was signed and nothing else.
        assert ("GET /moved/blob", BASIC) in server.requests
        assert other.requests == [(f"GET /store/%2Fa?{signature}", "")]


async def test_a_redirect_to_plain_http_elsewhere_is_refused() -> None:
    response = web.Response(status=307, headers={"Location": "http://registry.invalid/latest/meta-data"})
    async with serving(altered(registry_of(IMAGE), "/blobs/", lambda: response)) as server:
        error = await refusal(server)
    assert isinstance(error, RegistryUntrustedError)
    assert "redirects to plain HTTP on registry.invalid, which is not allowed" in str(error)


@pytest.mark.parametrize(
    ("realm", "why"),
    [
        ("http://auth.invalid/token", "a token server without TLS: http://auth.invalid/token"),
        ("gopher://auth", "a token server with an invalid address"),
        ("", "neither Basic nor Bearer"),
        ("http://[", "a token server with an invalid address"),
    ],
)
async def test_token_servers_that_are_not_asked(realm: str, why: str, docker_config: Path) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(status=401, headers={"WWW-Authenticate": f'Bearer realm="{realm}",service="s"'})

    async with serving(handle) as server:
        write_auths(docker_config, {server.address: {"username": USER, "password": PASSWORD}})
        error = await refusal(server)
        assert len(server.requests) == 1
    assert why in str(error)


async def test_an_identity_token_is_not_sent_on_by_a_redirect(docker_config: Path) -> None:
    async def elsewhere(request: web.Request) -> web.StreamResponse:
        return web.json_response({"token": "t"})

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.method == "POST":
            return web.Response(status=307, headers={"Location": f"http://localhost:{port}/token"})
        return web.Response(status=401, headers={"WWW-Authenticate": f'Bearer realm="http://{server.address}/token"'})

    async with serving(elsewhere) as other, serving(handle) as server:
        port = other.address.rpartition(":")[2]
        write_auths(docker_config, {server.address: {"identitytoken": "identity-t0ken"}})
        error = await refusal(server)
        assert other.requests == []
    assert "redirects a request for a token" in str(error)


@pytest.mark.parametrize(
    "answer",
    [b"", b"<html>", b"[]", b"{}", b'{"token": 5}', b'{"token": "a\\r\\nX-Evil: 1"}', b'{"token": "\xc3\xbc"}'],
)
async def test_token_servers_that_talk_nonsense(answer: bytes) -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        if "/token" in request.path:
            return web.Response(body=answer)
        return web.Response(status=401, headers={"WWW-Authenticate": f'Bearer realm="http://{server.address}/token"'})

    async with serving(handle) as server:
        error = await refusal(server)
    assert isinstance(error, ImageUnusableError)
    assert "sent no token" in str(error)


async def test_a_token_that_is_refused_is_replaced_once(docker_config: Path) -> None:
    """A registry that forgets its tokens: a new one is fetched, and a second refusal is the end."""
    valid = {"Bearer 1"}

    async def handle(request: web.Request) -> web.StreamResponse:
        if "/token" in request.path:
            issued = sum("/token" in line for line, _ in server.requests)
            return web.json_response({"token": str(issued), "expires_in": 3600})
        if request.headers.get("Authorization", "") not in valid:
            return web.Response(
                status=401, headers={"WWW-Authenticate": f'Bearer realm="http://{server.address}/token"'}
            )
        return await registry_of(IMAGE)(request)

    async with serving(handle) as server:
        write_auths(docker_config, {server.address: {"username": USER, "password": PASSWORD}})
        async with resolver(*FLAGS, "--image-tag-ttl=0") as images:
            reference = image_ref.parse(server.image())
            await images.look_up(reference, image="fn")
            valid.clear()
            valid.add("Bearer 2")
            await images.look_up(reference, image="fn")
            assert sum("/token" in line for line, _ in server.requests) == 2
            valid.clear()
            with pytest.raises(ImagePullRefusedError, match="are not accepted"):
                await images.look_up(reference, image="fn")


async def test_a_caller_waits_no_longer_than_its_deadline_and_leaves_the_answer_to_others() -> None:
    answers = asyncio.Event()

    async def handle(request: web.Request) -> web.StreamResponse:
        await answers.wait()
        return await registry_of(IMAGE)(request)

    async with serving(handle) as server, resolver(*FLAGS) as images:
        reference, loop = image_ref.parse(server.image()), asyncio.get_running_loop()
        patient = asyncio.create_task(images.look_up(reference, image="fn", deadline=loop.time() + 60))
        with pytest.raises(TimeoutError):
            await images.look_up(reference, image="fn", deadline=loop.time() + 0.05)
        answers.set()
        assert (await patient).metadata.command == ("/fn",)


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_what_may_pass_is_tried_again(status: int) -> None:
    failures = 2

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal failures
        failures -= 1
        if failures >= 0:
            return web.Response(status=status, headers={"Retry-After": "0"})
        return await registry_of(IMAGE)(request)

    async with serving(handle) as server:
        assert (await look_up(server.image(), *FLAGS)).metadata.command == ("/fn",)
        assert len(server.requests) == 4


async def test_a_registry_that_stays_broken_is_unavailable_with_its_status() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(status=503)

    async with serving(handle) as server:
        error = await refusal(server, IMPATIENT)
        assert 2 <= len(server.requests) <= 5
    assert isinstance(error, RegistryUnavailableError)
    assert "answered with status 503 (" in str(error)


async def test_who_asks_to_come_back_after_the_deadline_is_not_waited_for() -> None:
    async def handle(request: web.Request) -> web.StreamResponse:
        return web.Response(status=429, headers={"Retry-After": "3600"})

    async with serving(handle) as server:
        error = await refusal(server)
        assert len(server.requests) == 1
    assert isinstance(error, RegistryUnavailableError)
    assert "status 429" in str(error)


@pytest.mark.parametrize(
    ("words", "pause", "why"),
    [
        ((b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n", b"{"), 0.0, "closed in the middle of the answer"),
        ((b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"5\r\n{"), 0.0, "closed in the middle"),
        ((b"SSH-2.0-OpenSSH_9.2\r\n",), 0.0, "no valid HTTP"),
        ((b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n",), 0.0, "no valid HTTP"),
        ((b"",), 0.0, "closed before an answer came"),
    ],
    ids=["cut", "cut-chunk", "no-http", "endless-header", "silent"],
)
async def test_broken_connections(words: tuple[bytes, ...], pause: float, why: str, nothing_open: None) -> None:
    async with speaking(*words, pause=pause) as server:
        error = await refusal(server, IMPATIENT)
        assert len(server.requests) >= 2
    assert isinstance(error, RegistryUnavailableError)
    assert why in str(error)


@pytest.mark.parametrize(
    ("start", "drop"),
    [
        (b"", b""),
        (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"x"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n{", b" "),
    ],
    ids=["nothing", "header", "body"],
)
async def test_a_slow_drip_ends_with_the_deadline(start: bytes, drop: bytes, nothing_open: None) -> None:
    async with speaking(start, drop, pause=0.1, repeat_last=True) as server:
        error = await refusal(server, IMPATIENT)
        assert [line for line, _ in server.requests] == ["GET /v2/fn/manifests/v1"]
    assert isinstance(error, RegistryUnavailableError)
    assert "did not answer within" in str(error)


async def test_nobody_listens() -> None:
    async with serving(registry_of(IMAGE)) as server:
        image = server.image()
    error = await failure(image, *FLAGS, IMPATIENT)
    assert isinstance(error, RegistryUnavailableError)
    assert "Connect call failed" in str(error) or "Connection refused" in str(error)


async def test_plain_http_is_for_loopback_and_named_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """`registry.test` is this machine by /etc/hosts' place: the resolver of names is told so."""
    real = socket.getaddrinfo

    def local(host: str, *arguments: object, **more: object) -> object:
        return real("127.0.0.1" if host == "registry.test" else host, *arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", local)
    async with serving(registry_of(IMAGE)) as server:
        named = f"registry.test:{server.address.rpartition(':')[2]}"
        error = await failure(f"{named}/fn:v1", *FLAGS)
        assert isinstance(error, RegistryUntrustedError)
        assert "name it in --plain-http-registries if it speaks plain HTTP only" in str(error)
        assert server.requests == []
        for flag in (f"--plain-http-registries={named}", "--plain-http-registries=other,registry.test"):
            assert (await look_up(f"{named}/fn:v1", *FLAGS, flag)).metadata.command == ("/fn",)


@pytest.mark.parametrize(
    ("image", "host"),
    [
        ("alpine:3", "registry-1.docker.io:443"),
        ("registry.test/fn:v1", "registry.test:443"),
        ("r.test:5000/fn", "r.test:5000"),
    ],
)
async def test_a_proxy_is_asked_for_the_registrys_own_host(
    image: str, host: str, monkeypatch: pytest.MonkeyPatch, nothing_open: None
) -> None:
    async with speaking(b"HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n") as proxy:
        monkeypatch.setenv("https_proxy", f"http://robot:{PASSWORD}@{proxy.address}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        error = await failure(image, *FLAGS, IMPATIENT)
        assert {line for line, _ in proxy.requests} == {f"CONNECT {host}"}
    assert isinstance(error, RegistryUnavailableError)
    assert "the proxy answered with status 403" in str(error)
    assert PASSWORD not in str(error)


async def test_loopback_needs_no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("https_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    async with serving(registry_of(IMAGE)) as server:
        assert (await look_up(server.image(), *FLAGS)).metadata.command == ("/fn",)
