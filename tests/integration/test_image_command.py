"""`krm-runner image`, as people use it; and that no credential is ever shown, at any log level."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from aiohttp import web

from support.certificates import Signer
from support.hostile import serving
from support.registry import Registry
from support.registry_images import make_image, push, skopeo
from support.resolving import write_auths
from support.runner import write_function
from support.token_server import TokenServer
from support.tools import need

USER, PASSWORD, IDENTITY, WRONG = "robot", "s3cret-pa55word", "identity-t0ken", "wr0ng-pa55word"
AUTH = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
SECRETS = [
    PASSWORD,
    AUTH,
    IDENTITY,
    WRONG,
    base64.b64encode(f"{USER}:{WRONG}".encode()).decode(),
    base64.b64encode(PASSWORD.encode()).decode(),
]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    need("docker-registry")
    with Registry(tmp_path_factory.mktemp("open")) as open_registry:
        push(open_registry.address, "team/fn", "v1", make_image(cmd=["--verbose"]))
        yield open_registry


def image(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "krm_runner", "image", *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"DOCKER_CONFIG": "/nonexistent"} | environment,
    )


def test_what_the_runner_sees(registry: Registry, tmp_path: Path) -> None:
    config = write_auths(tmp_path / "config.json", {})
    name = f"{registry.address}/team/fn:v1"
    done = image(name, "--image-platform=linux/amd64", DOCKER_CONFIG=str(tmp_path))
    assert done.returncode == 0, done.stderr
    facts = dict(line.split(":", 1) for line in done.stdout.splitlines())
    assert {key: value.strip() for key, value in facts.items()} == {
        "image": name,
        "digest": facts["digest"].strip(),
        "manifest": facts["digest"].strip(),
        "platform": "linux/amd64",
        "command": '["/fn", "--verbose"]',
        "credentials": f"none: {config} has no entry for {registry.address}/team/fn (default keychain)",
        "source": "registry",
        "cache": "kept for 600s, then the registry is asked whether the tag moved (--image-tag-ttl)",
    }


def test_for_machines(registry: Registry, tmp_path: Path) -> None:
    text = json.loads(image(f"{registry.address}/team/fn:v1", "-o", "json").stdout)
    assert (text["entrypoint"], text["cmd"]) == (["/fn"], ["--verbose"])
    pinned = json.loads(image(f"{registry.address}/team/fn@{text['digest']}", "-ojson").stdout)
    assert (pinned["digest"], pinned["cache"]) == (text["digest"], "kept for good: a digest does not move")
    done = image(f"{registry.address}/team/nix:v1", "-o=json")
    failed = json.loads(done.stdout)
    assert (done.returncode, failed["reason"]) == (1, "IMAGE_NOT_FOUND")
    assert "MANIFEST_UNKNOWN" in failed["error"]
    entry = {"image": "fn:v1", "digest": text["digest"], "entrypoint": ["/fn"]}
    (tmp_path / "map.yaml").write_text(json.dumps({"images": [entry]}))
    mapped = json.loads(image("fn:v1", f"--image-map={tmp_path / 'map.yaml'}", "-o=json").stdout)
    assert (mapped["source"], mapped["credentials"]) == ("image map", "not needed")


def test_what_fails_is_said_on_stderr(registry: Registry, tmp_path: Path) -> None:
    config = write_auths(tmp_path / "config.json", {})
    done = image(f"{registry.address}/team/nix:v1", DOCKER_CONFIG=str(tmp_path))
    assert done.returncode == 1
    assert done.stderr == (
        f'krm-runner image: image "{registry.address}/team/nix:v1" was not found: {registry.address} has no "v1" in '
        "team/nix: status 404 (MANIFEST_UNKNOWN)\n"
    )
    assert done.stdout.startswith(f"image:       {registry.address}/team/nix:v1\ncredentials: none: {config} has no")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name one image, such as set-namespace:v0.4.1"),
        (["a", "b"], "name one image"),
        (["A b"], '"A b" is no valid image'),
        (["a", "--prot=1"], "unknown flag --prot"),
        (["a", "--image-map=/nonexistent"], "cannot read /nonexistent: No such file or directory"),
        (["a", "-o", "xml"], "it takes one of text, json"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    done = image(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("krm-runner image: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_help_teaches() -> None:
    done = image("--help")
    assert done.returncode == 0
    for word in ("Examples:", "Exit codes:", "--registry-auth-secret-path", "--image-platform", "DOCKER_CONFIG"):
        assert word in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 120


def assert_clean(done: subprocess.CompletedProcess[str], *more: str) -> None:
    for secret in (*SECRETS, *more):
        assert secret not in done.stdout + done.stderr


def test_no_credential_is_shown_by_real_registries(registry: Registry, tmp_path: Path) -> None:
    need("skopeo", "htpasswd", "openssl")
    signer = Signer(tmp_path / "signer")
    with (
        TokenServer(signer, user=USER, password=PASSWORD, identity_token=IDENTITY) as tokens,
        Registry(tmp_path / "tokens", tokens=tokens) as by_token,
        Registry(tmp_path / "guarded", users={USER: PASSWORD}) as guarded,
    ):
        for target in (by_token, guarded):
            skopeo(
                "copy", "--src-tls-verify=false", "--dest-tls-verify=false", f"--dest-creds={USER}:{PASSWORD}",
                f"docker://{registry.address}/team/fn:v1", f"docker://{target.address}/team/fn:v1",
            )  # fmt: skip
        for number, (target, entry, code) in enumerate(
            (
                (guarded, {"auth": AUTH}, 0),
                (guarded, {"username": USER, "password": WRONG}, 1),
                (by_token, {"auth": AUTH}, 0),
                (by_token, {"username": USER, "password": WRONG}, 1),
                (by_token, {"identitytoken": IDENTITY}, 0),
                (by_token, {"identitytoken": WRONG}, 1),
                (by_token, {"registrytoken": tokens.token("repository:team/fn:pull")}, 0),
                (by_token, {"registrytoken": WRONG}, 1),
                (guarded, {"identitytoken": IDENTITY}, 1),
            )
        ):
            write_auths(tmp_path / str(number) / "config.json", {target.address: entry})
            name, folder = f"{target.address}/team/fn:v1", str(tmp_path / str(number))
            output = "json" if number % 2 else "text"
            done = image(name, f"-o={output}", "--log-level=5", DOCKER_CONFIG=folder)
            assert done.returncode == code, (entry, done.stderr)
            assert "registry asked" in done.stderr
            assert_clean(done, *tokens.issued)


def test_no_credential_is_shown_by_broken_files_and_helpers(tmp_path: Path) -> None:
    write_function(
        tmp_path / "bin", "docker-credential-leaky", f"#!/bin/sh\necho {PASSWORD}; echo {PASSWORD} >&2; exit 1\n"
    )
    for number, content in enumerate(
        (
            f'{{"auths": {{"127.0.0.1:1": {{"auth": "{AUTH}"}}',
            f'{{"auths": {{"127.0.0.1:1": {{"auth": "{PASSWORD}"}}}}}}',
            f'{{"auths": {{"127.0.0.1:1": "{PASSWORD}"}}}}',
            f'{{"auths": {{"127.0.0.1:1": {{"auth": "{AUTH}"}}}}, "credsStore": "leaky"}}',
        )
    ):
        path = tmp_path / str(number) / "config.json"
        path.parent.mkdir()
        path.write_text(content)
        done = image(
            "127.0.0.1:1/fn:v1", "--log-level=5", "--registry-timeout=1s",
            DOCKER_CONFIG=str(path.parent), PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        )  # fmt: skip
        assert done.returncode == 1
        assert "127.0.0.1:1" in done.stderr
        assert_clean(done)


ECHOES = ["body", "html", "error", "content-type", "artifact", "platform", "digest", "location", "realm"]


@pytest.mark.parametrize("place", ECHOES)
async def test_no_credential_is_shown_that_a_registry_sends_back(place: str, tmp_path: Path) -> None:
    """A registry that repeats what it was shown, everywhere it can."""

    async def handle(request: web.Request) -> web.StreamResponse:
        header = request.headers.get("Authorization")
        if header is None:
            return web.Response(status=401, headers={"WWW-Authenticate": "Basic realm=x"})
        plain = base64.b64decode(header.split()[1]).decode()
        echo = f"{plain} {header}"
        digest = "sha256:" + "0" * 64
        config = {"mediaType": f"application/{PASSWORD}\n", "digest": digest, "size": 3}
        match place:
            case "body":
                return web.Response(text=echo)
            case "html":
                return web.Response(text=f"<html>{echo}</html>", content_type="text/html")
            case "error":
                errors = [{"code": echo, "message": echo, "detail": echo}]
                return web.json_response({"errors": errors}, status=403)
            case "content-type":
                return web.Response(body=b'{"schemaVersion": 2}', headers={"Content-Type": f"x/y; a={echo}"})
            case "artifact":
                return web.json_response({"schemaVersion": 2, "artifactType": echo, "config": config, "layers": []})
            case "platform":
                item = {"digest": digest, "size": 3, "platform": {"os": plain, "architecture": header}}
                return web.json_response({"schemaVersion": 2, "manifests": [item]})
            case "digest":
                return web.json_response({"schemaVersion": 2, "config": {**config, "digest": echo}, "layers": []})
            case "location":
                return web.Response(status=307, headers={"Location": f"http://{plain}@registry.invalid/?x={echo}"})
            case _:
                challenge = f'Bearer realm="http://{plain}@auth.invalid/?x={echo}"'
                return web.Response(status=401, headers={"WWW-Authenticate": challenge})

    async with serving(handle) as server:
        write_auths(tmp_path / "config.json", {server.address: {"auth": AUTH}})
        done = await asyncio.to_thread(
            image, server.image(), "--log-level=5", "--registry-timeout=2s", DOCKER_CONFIG=str(tmp_path)
        )
        assert any(header.endswith(AUTH) for _, header in server.requests)
    assert done.returncode == 1, done.stdout
    assert done.stderr.count("krm-runner image: ") == 1
    assert_clean(done)
