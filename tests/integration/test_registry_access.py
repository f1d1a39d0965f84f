"""Who may read what: passwords, tokens, identity tokens, credential helpers, private CAs, and their rotation."""

from __future__ import annotations

import asyncio
import base64
import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog.testing

from krm_runner.core import image_ref
from krm_runner.core.errors import ImagePullRefusedError, RegistryUntrustedError
from krm_runner.core.registry_auth import Credentials
from krm_runner.core.secret import Secret
from krm_runner.registry.credential_helper import CredentialHelperError, ask_helper
from krm_runner.registry.trust import Trust
from support.certificates import Authority, Signer
from support.registry import Registry
from support.registry_images import make_image, push, skopeo
from support.resolving import failure, look_up, resolver, write_auths
from support.runner import write_function
from support.token_server import TokenServer
from support.tools import need

USER, PASSWORD, IDENTITY = "robot", "s3cret-pa55word", "identity-t0ken"
AUTH = base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
FLAGS = ("--image-platform=linux/amd64",)
PLAIN = ("--src-tls-verify=false", "--dest-tls-verify=false")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    """An open registry that others are filled from."""
    need("docker-registry", "skopeo", "htpasswd", "openssl")
    with Registry(tmp_path_factory.mktemp("source")) as registry:
        push(registry.address, "team/fn", "v1", make_image())
        yield registry


def fill(source: Registry, target: Registry, *flags: str) -> str:
    image = f"{target.address}/team/fn:v1"
    credentials = f"--dest-creds={USER}:{PASSWORD}"
    skopeo("copy", *PLAIN, credentials, *flags, f"docker://{source.address}/team/fn:v1", f"docker://{image}")
    return image


@pytest.fixture(scope="module")
def guarded(source: Registry, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Registry, str]]:
    """A registry with passwords, and its image."""
    with Registry(tmp_path_factory.mktemp("guarded"), users={USER: PASSWORD}) as registry:
        yield registry, fill(source, registry)


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TokenServer]:
    need("openssl")
    signer = Signer(tmp_path_factory.mktemp("signer"))
    with TokenServer(signer, user=USER, password=PASSWORD, identity_token=IDENTITY) as server:
        yield server


@pytest.fixture(scope="module")
def by_token(
    source: Registry, tokens: TokenServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Registry, str]]:
    """A registry that wants tokens, and its image."""
    with Registry(tmp_path_factory.mktemp("tokens"), tokens=tokens) as registry:
        yield registry, fill(source, registry)


@pytest.fixture(autouse=True)
def docker_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The default keychain's file; empty."""
    path = write_auths(tmp_path / "docker" / "config.json", {})
    monkeypatch.setenv("DOCKER_CONFIG", str(path.parent))
    return path


def private(path: Path) -> tuple[str, ...]:
    return *FLAGS, "--enable-private-registries", f"--registry-auth-secret-path={path}"


@pytest.mark.parametrize(
    "entry", [{"auth": AUTH}, {"username": USER, "password": PASSWORD}], ids=["auth", "user-and-password"]
)
@pytest.mark.parametrize("key", ["{host}", "https://{host}/v2/", "{host}/team"])
async def test_passwords(
    guarded: tuple[Registry, str], docker_config: Path, key: str, entry: dict[str, str], nothing_open: None
) -> None:
    registry, image = guarded
    write_auths(docker_config, {key.format(host=registry.address): entry})
    assert (await look_up(image, *FLAGS)).metadata.command == ("/fn",)


async def test_wrong_and_missing_credentials_are_one_clear_error(
    guarded: tuple[Registry, str], tmp_path: Path, docker_config: Path
) -> None:
    registry, image = guarded
    error = await failure(image, *FLAGS)
    assert isinstance(error, ImagePullRefusedError)
    assert f"{registry.address} asks for a user and a password" in str(error)
    assert f"{docker_config} has no entry for {registry.address}/team/fn" in str(error)

    mounted = write_auths(tmp_path / "secret.json", {registry.address: {"username": USER, "password": "wr0ng"}})
    error = await failure(image, *private(mounted))
    assert isinstance(error, ImagePullRefusedError)
    assert f'the credentials of {mounted}, entry "{registry.address}" are not accepted by {registry.address}' in str(
        error
    )
    assert "wr0ng" not in str(error)

    mounted.write_text('{"auths": {"wr0ng"')
    assert f"{mounted} is no valid JSON" in str(await failure(image, *private(mounted)))
    assert f"cannot read {tmp_path / 'none'}: No such file" in str(await failure(image, *private(tmp_path / "none")))


async def test_private_registries_use_the_mounted_file_and_default_ones_the_default_keychain(
    guarded: tuple[Registry, str], docker_config: Path, tmp_path: Path
) -> None:
    registry, image = guarded
    good, nothing = {registry.address: {"auth": AUTH}}, tmp_path / "nothing.json"
    write_auths(nothing, {})
    write_auths(docker_config, good)
    assert (await look_up(image, *FLAGS)).metadata.digest
    assert f"{nothing} has no entry" in str(await failure(image, *private(nothing)))
    # The default image prefix makes the same registry a default one.
    prefix = f"--default-image-prefix={registry.address}/team"
    assert (await look_up(image, *private(nothing), prefix)).metadata.digest
    write_auths(docker_config, {})
    mounted = write_auths(tmp_path / "mounted.json", good)
    assert (await look_up(image, *private(mounted))).metadata.digest
    assert f"{docker_config} has no entry" in str(await failure(image, *private(mounted), prefix))


async def test_rotated_credentials_count_without_a_restart(
    source: Registry, tmp_path: Path, docker_config: Path
) -> None:
    with Registry(tmp_path / "rotating", users={USER: PASSWORD}) as registry:
        image = fill(source, registry)
        for version, password in (("..v1", "old-pa55word"), ("..v2", PASSWORD)):
            write_auths(tmp_path / version / "config", {registry.address: {"username": USER, "password": password}})
        # As the kubelet mounts secrets: a link to a link, swapped at once.
        (tmp_path / "..data").symlink_to("..v1")
        (tmp_path / "config").symlink_to("..data/config")
        skopeo("copy", *PLAIN, "--src-creds", f"{USER}:{PASSWORD}", "--dest-creds", f"{USER}:{PASSWORD}",
               f"docker://{image}", f"docker://{registry.address}/team/fn:v2")  # fmt: skip
        async with resolver(*private(tmp_path / "config")) as images:
            with pytest.raises(ImagePullRefusedError):
                await images.look_up(image_ref.parse(image), image=image)
            (tmp_path / "..new").symlink_to("..v2")
            os.replace(tmp_path / "..new", tmp_path / "..data")
            other = f"{registry.address}/team/fn:v2"
            assert (await images.look_up(image_ref.parse(other), image=other)).metadata.command == ("/fn",)


async def test_tokens(
    by_token: tuple[Registry, str], tokens: TokenServer, docker_config: Path, nothing_open: None
) -> None:
    registry, image = by_token
    error = await failure(image, *FLAGS)
    assert isinstance(error, ImagePullRefusedError)
    assert f"the token server {tokens.realm} answered with status 401; no credentials" in str(error)

    write_auths(docker_config, {registry.address: {"auth": AUTH}})
    tokens.requests.clear()
    async with resolver(*FLAGS, "--image-tag-ttl=0") as images:
        for _ in range(3):
            assert (await images.look_up(image_ref.parse(image), image=image)).metadata.command == ("/fn",)
    # One token for manifest, config and two more looks; for this repository, and for reading alone.
    assert tokens.requests == ["GET /token?service=test-registry&scope=repository:team/fn:pull"]


async def test_identity_tokens(by_token: tuple[Registry, str], tokens: TokenServer, docker_config: Path) -> None:
    registry, image = by_token
    tokens.requests.clear()
    write_auths(docker_config, {registry.address: {"identitytoken": IDENTITY}})
    assert (await look_up(image, *FLAGS)).metadata.command == ("/fn",)
    assert tokens.requests == ["POST /token refresh_token"]
    write_auths(docker_config, {registry.address: {"identitytoken": "expired"}})
    assert isinstance(await failure(image, *FLAGS), ImagePullRefusedError)


async def test_registry_tokens_are_shown_as_they_are(
    by_token: tuple[Registry, str], tokens: TokenServer, docker_config: Path
) -> None:
    registry, image = by_token
    tokens.requests.clear()
    token = tokens.token("repository:team/fn:pull")
    write_auths(docker_config, {registry.address: {"registrytoken": token}})
    assert (await look_up(image, *FLAGS)).metadata.command == ("/fn",)
    assert tokens.requests == []


async def test_anonymous_tokens(
    by_token: tuple[Registry, str], tokens: TokenServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "allows_anonymous", True)
    assert (await look_up(by_token[1], *FLAGS)).metadata.command == ("/fn",)


async def test_tokens_that_expire_are_asked_for_again(
    by_token: tuple[Registry, str], tokens: TokenServer, docker_config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry, image = by_token
    write_auths(docker_config, {registry.address: {"auth": AUTH}})
    monkeypatch.setattr(tokens, "lifetime", 1)
    tokens.requests.clear()
    assert (await look_up(image, *FLAGS)).metadata.command == ("/fn",)
    assert len(tokens.requests) == 2


async def test_credential_helpers(
    guarded: tuple[Registry, str],
    docker_config: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    nothing_open: None,
) -> None:
    registry, image = guarded
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    answer = f'{{"ServerURL": "x", "Username": "{USER}", "Secret": "{PASSWORD}"}}'
    script = f"#!/bin/sh\nread -r address\n[ \"$1 $address\" = 'get {registry.address}' ] && echo '{answer}'\n"
    write_function(tmp_path / "bin", "docker-credential-good", script)
    write_function(tmp_path / "bin", "docker-credential-empty", "#!/bin/sh\necho credentials not found; exit 1\n")
    write_function(tmp_path / "bin", "docker-credential-broken", "#!/bin/sh\necho hunter2; echo hunter2 >&2; exit 1\n")
    for config in ({"credHelpers": {registry.address: "good"}}, {"credsStore": "good"}):
        write_auths(docker_config, {}, **config)
        assert (await look_up(image, *FLAGS)).metadata.command == ("/fn",)
    for helper, why in (
        ("empty", f"docker-credential-empty has none for {registry.address}"),
        ("broken", "docker-credential-broken failed"),
        ("missing", "docker-credential-missing cannot be started: No such file or directory"),
        ("../evil", '"../evil" is no name of a credential helper'),
    ):
        write_auths(docker_config, {}, credsStore=helper)
        error = await failure(image, *FLAGS)
        assert why in str(error)
        assert "hunter2" not in str(error)
        # What the file itself has counts where the helper has nothing.
        write_auths(docker_config, {registry.address: {"auth": AUTH}}, credsStore=helper)
        assert (await look_up(image, *FLAGS)).metadata.command == ("/fn",)


async def test_a_helper_that_hangs_is_ended_with_its_children(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nothing_open: None
) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    write_function(tmp_path, "docker-credential-slow", f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/pid\nwait\n")
    with pytest.raises(CredentialHelperError, match="docker-credential-slow did not answer within"):
        await ask_helper("slow", "x.io", seconds=0.5)
    child = Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}/stat")
    async with asyncio.timeout(20):
        while child.exists() and child.read_text().rpartition(")")[2].split()[0] != "Z":
            await asyncio.sleep(0.05)


async def test_a_helper_may_know_an_identity_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    write_function(tmp_path, "docker-credential-id", '#!/bin/sh\necho \'{"Username": "<token>", "Secret": "id"}\'\n')
    assert await ask_helper("id", "x.io") == Credentials(identity_token=Secret("id"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    need("openssl")
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def encrypted(
    source: Registry, authority: Authority, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Registry, str]]:
    """A registry with a certificate of our own CA, and its image."""
    with Registry(tmp_path_factory.mktemp("tls"), tls=authority.sign("localhost"), users={USER: PASSWORD}) as registry:
        yield registry, fill(source, registry)


def with_ca(encrypted: tuple[Registry, str], directory: Path, name: str, content: bytes) -> tuple[str, ...]:
    """Flags for a private registry with this CA file."""
    (directory / "tls").mkdir(exist_ok=True)
    (directory / "tls" / name).write_bytes(content)
    mounted = write_auths(directory / "auth.json", {encrypted[0].address: {"auth": AUTH}})
    return *private(mounted), "--enable-private-registries-tls", f"--tls-secret-path={directory / 'tls'}"


@pytest.mark.parametrize("name", ["ca.crt", "ca.pem"])
async def test_our_own_ca(encrypted: tuple[Registry, str], authority: Authority, tmp_path: Path, name: str) -> None:
    flags = with_ca(encrypted, tmp_path, name, authority.certificate.read_bytes())
    assert (await look_up(encrypted[1], *flags)).metadata.command == ("/fn",)
    # Without the flag it does not count, and a loopback registry with TLS is not asked without it either.
    error = await failure(encrypted[1], *(flag for flag in flags if flag != "--enable-private-registries-tls"))
    assert isinstance(error, RegistryUntrustedError)
    assert "the certificate of localhost is not trusted: unable to get local issuer certificate" in str(error)


async def test_another_ca_falls_back_to_the_systems_with_a_warning(
    encrypted: tuple[Registry, str], tmp_path: Path
) -> None:
    other = Authority(tmp_path / "other", "other-ca")
    flags = with_ca(encrypted, tmp_path, "ca.crt", other.certificate.read_bytes())
    with structlog.testing.capture_logs() as logs:
        error = await failure(encrypted[1], *flags)
    assert isinstance(error, RegistryUntrustedError)
    assert "is the CA in --tls-secret-path the one that signed it?" in str(error)
    assert any(line["event"].startswith("certificate not trusted with the CA of private") for line in logs)


@pytest.mark.parametrize("content", [b"", b"garbage", b"-----BEGIN CERTIFICATE-----\nxx\n-----END CERTIFICATE-----\n"])
async def test_a_broken_ca_file_leaves_the_systems_cas(
    encrypted: tuple[Registry, str],
    authority: Authority,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    content: bytes,
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.certificate))
    with structlog.testing.capture_logs() as logs:
        flags = with_ca(encrypted, tmp_path, "ca.crt", content)
        assert (await look_up(encrypted[1], *flags)).metadata.command == ("/fn",)
    assert [line["log_level"] for line in logs if "CA of private registries not read" in line["event"]] == ["warning"]


async def test_a_new_ca_file_counts_without_a_restart(
    encrypted: tuple[Registry, str], authority: Authority, tmp_path: Path
) -> None:
    flags = with_ca(encrypted, tmp_path, "ca.crt", b"garbage")
    async with resolver(*flags) as images:
        with pytest.raises(RegistryUntrustedError):
            await images.look_up(image_ref.parse(encrypted[1]), image="first")
        with_ca(encrypted, tmp_path, "ca.crt", authority.certificate.read_bytes())
        other = f"{encrypted[0].address}/team/fn@{(await look_up(encrypted[1], *flags)).metadata.digest}"
        assert (await images.look_up(image_ref.parse(other), image="second")).metadata.command == ("/fn",)


async def test_a_certificate_for_another_name_is_not_trusted(
    source: Registry, authority: Authority, tmp_path: Path
) -> None:
    certificate = authority.sign("other", subject_names="DNS:other.example.com")
    with Registry(tmp_path / "other", tls=certificate, users={USER: PASSWORD}) as registry:
        flags = with_ca((registry, ""), tmp_path, "ca.crt", authority.certificate.read_bytes())
        error = await failure(f"{registry.address}/team/fn:v1", *flags)
        assert isinstance(error, RegistryUntrustedError)
        assert "Hostname mismatch" in str(error)


def test_tls_is_1_2_at_least_and_always_verified(tmp_path: Path) -> None:
    need("openssl")
    (tmp_path / "ca.crt").write_bytes(Authority(tmp_path / "ca").certificate.read_bytes())
    contexts = Trust(tmp_path).contexts(private=True)
    assert len(contexts) == 2
    for context in contexts:
        assert context.minimum_version == ssl.TLSVersion.TLSv1_2
        assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
    assert Trust(tmp_path).contexts(private=False) != contexts
