"""TLS, client certificates and tokens between callers and the service, with real certificates that are replaced."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse
from grpc_reflection.v1alpha.reflection_pb2 import ServerReflectionRequest, ServerReflectionResponse

from integration.conftest import Installation
from integration.test_eval import SHOP, evaluate
from krm_runner.app.front_port import read_credentials
from krm_runner.core.errors import ConfigurationError
from krm_runner.settings import parse_settings
from support.certificates import Authority, convert_key, self_signed
from support.client import Answer, Client, check_health
from support.runner import RunnerProcess
from support.secret_volume import SecretVolume
from support.server import free_port

LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
COPY = "#!/bin/sh\nexec cat\n"
OLD, NEW = "b2xkIHRva2VuIG9sZCB0b2tlbg==", "bmV3IHRva2VuIG5ldyB0b2tlbg=="


class Site:
    """A runner with a function, and a CA."""

    def __init__(self, directory: Path, installation: Installation) -> None:
        self.directory = directory
        self.authority = Authority(directory / "ca")
        self.image = installation.add("copy", COPY)
        self._installation = installation

    def volume(self, name: str = "first", authority: Authority | None = None) -> SecretVolume:
        """With a certificate of that name."""
        certificate, key = (authority or self.authority).sign(name)
        ca = self.authority.certificate
        return SecretVolume(self.directory / "mounted", tls_crt=certificate, tls_key=key, ca_crt=ca)

    def start(self, *flags: str) -> RunnerProcess:
        return self._installation.start(*flags)

    def credentials(self, client: str = "", authority: Authority | None = None) -> grpc.ChannelCredentials:
        """That trust our CA; with a certificate of that name."""
        ca = self.authority.certificate.read_bytes()
        if not client:
            return grpc.ssl_channel_credentials(ca)
        certificate, key = (authority or self.authority).sign(client, usage="clientAuth")
        return grpc.ssl_channel_credentials(ca, key.read_bytes(), certificate.read_bytes())

    async def call(
        self, runner: RunnerProcess, credentials: grpc.ChannelCredentials | None = None, *, token: str = ""
    ) -> Answer:
        """On a connection of its own."""
        async with Client(runner.address, credentials=credentials, token=token) as client:
            return await client.evaluate(self.image, LIST)

    def shown_by(self, runner: RunnerProcess) -> str:
        """The name in the certificate that a new connection gets to see."""
        context = ssl.create_default_context(cafile=str(self.authority.certificate))
        context.set_alpn_protocols(["h2"])
        with (
            socket.create_connection(("localhost", runner.port), timeout=30) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as secured,
        ):
            certificate = cast("dict[str, tuple[tuple[tuple[str, str], ...], ...]]", secured.getpeercert())
            return certificate["subject"][0][0][1]


@pytest.fixture
def site(tmp_path: Path, fronted: Installation) -> Site:
    return Site(tmp_path, fronted)


def tls(volume: SecretVolume, *, clients: bool = False) -> list[str]:
    flags = [f"--tls-cert-file={volume['tls.crt']}", f"--tls-key-file={volume['tls.key']}"]
    return [*flags, f"--tls-client-ca-file={volume['ca.crt']}"] if clients else flags


# --- TLS ----------------------------------------------------------------------------------------------------------


async def test_calls_by_tls(site: Site) -> None:
    runner = site.start(*tls(site.volume()))
    runner.wait_for_line("event=serving .*security=TLS")
    assert await site.call(runner, site.credentials()) == Answer("OK", resource_list=LIST)
    assert (await site.call(runner)).code == "UNAVAILABLE", "plain text"
    stranger = Authority(site.directory / "stranger").certificate.read_bytes()
    answer = await site.call(runner, grpc.ssl_channel_credentials(stranger))
    assert (answer.code, "CERTIFICATE_VERIFY_FAILED" in answer.message) == ("UNAVAILABLE", True)
    async with grpc.aio.secure_channel(runner.address, site.credentials()) as channel:
        assert (await check_health(channel)).status == HealthCheckResponse.SERVING


async def test_without_flags_it_is_plain_text_and_open(site: Site) -> None:
    runner = site.start()
    runner.wait_for_line('event=serving .*security="plain text"')
    assert (await site.call(runner)).code == "OK"
    assert (await site.call(runner, token=OLD)).code == "OK", "a token that nobody asks for is no fault"


async def test_text_around_certificates_is_ignored(site: Site) -> None:
    def annotated(certificate: Path) -> bytes:
        return b"Bag Attributes\n    friendlyName: M\xc3\xbcller, M\xfcller\n" + certificate.read_bytes()

    certificate, key = site.authority.sign("first")
    authority = annotated(site.authority.certificate)
    volume = SecretVolume(site.directory / "mounted", tls_crt=annotated(certificate), tls_key=key, ca_crt=authority)
    runner = site.start(*tls(volume, clients=True))
    caller = site.credentials("porch")
    assert (await site.call(runner, caller)).code == "OK"
    certificate, key = site.authority.sign("second")
    volume.put(tls_crt=annotated(certificate), tls_key=key, ca_crt=authority + site.authority.certificate.read_bytes())
    await eventually_shown(site, runner, "second")
    assert (await site.call(runner, caller)).code == "OK"


@pytest.mark.parametrize("form", [["-traditional"], []], ids=["as it was made for the algorithm", "PKCS 8"])
async def test_keys_in_every_form(site: Site, form: list[str]) -> None:
    certificate, key = site.authority.sign("form")
    key = convert_key(key, *form)
    runner = site.start(f"--tls-cert-file={certificate}", f"--tls-key-file={key}")
    assert (await site.call(runner, site.credentials())).code == "OK"


async def test_clients_that_do_not_finish_a_handshake_do_not_keep_others_out(site: Site) -> None:
    runner = site.start(*tls(site.volume()))
    with ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(socket.create_connection(("localhost", runner.port), timeout=30))
        assert await site.call(runner, site.credentials()) == Answer("OK", resource_list=LIST)


async def test_callers_must_show_a_certificate_of_the_ca(site: Site) -> None:
    runner = site.start(*tls(site.volume(), clients=True))
    runner.wait_for_line('security="mutual TLS"')
    assert (await site.call(runner, site.credentials("porch"))).code == "OK"
    assert (await site.call(runner, site.credentials())).code == "UNAVAILABLE"
    stranger = Authority(site.directory / "stranger", "stranger")
    assert (await site.call(runner, site.credentials("porch", stranger))).code == "UNAVAILABLE"


async def test_probes_have_a_port_in_plain_text_with_health_and_nothing_else(site: Site) -> None:
    port = free_port()
    runner = site.start(
        *tls(site.volume(), clients=True), f"--health-port={port}", "--shutdown-delay=30s", "--shutdown-timeout=60s"
    )
    runner.wait_for_line("event=serving")
    async with Client(f"localhost:{port}") as client:
        assert (await check_health(client.channel)).status == HealthCheckResponse.SERVING
        assert (await client.evaluate(site.image, LIST)).code == "UNIMPLEMENTED"
        runner.process.terminate()
        async with asyncio.timeout(20):
            while (await check_health(client.channel)).status != HealthCheckResponse.NOT_SERVING:
                await asyncio.sleep(0.02)
    assert runner.stop() == 128 + signal.SIGTERM, "the second signal ends the delay"


@pytest.mark.parametrize("port", ["--health-port={}", "--port={}"])
def test_a_port_in_use_is_one_line_and_exit_code_1(site: Site, port: str) -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as taken:
        number = taken.getsockname()[1]
        code, text = refusal(*tls(site.volume()), port.format(number))
    assert code == 1
    assert f"cannot listen on port {number}" in text


# --- what refuses to start ----------------------------------------------------------------------------------------


def refusal(*flags: str) -> tuple[int, str]:
    program = [sys.executable, "-m", "krm_runner", "serve", "--disable-runtimes=exec,pod", "--port=0", *flags]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    lines = [line for line in done.stderr.splitlines() if not line.startswith(("timestamp=", "E1", "I1"))]
    assert len(lines) == 1, done.stderr
    return done.returncode, lines[0]


def load(*flags: str) -> None:
    """What is read before anything starts, without a process for each."""
    security = parse_settings(["--disable-runtimes=exec,pod", *flags], {}).security
    read_credentials(security)


def test_wrong_files_are_one_line_and_exit_code_2(site: Site) -> None:
    certificate, key = site.authority.sign("one")
    _, another = site.authority.sign("two")
    locked = convert_key(key, "-aes256", "-passout", "pass:secret")
    broken = site.directory / "broken.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    truncated = site.directory / "truncated.pem"
    truncated.write_bytes(certificate.read_bytes() + b"-----BEGIN CERTIFICATE-----\nAAAA\n")
    empty = site.directory / "empty"
    empty.touch()

    def pair(certificate: Path, key: Path) -> list[str]:
        return [f"--tls-cert-file={certificate}", f"--tls-key-file={key}"]

    good = pair(certificate, key)
    for flags, message in (
        (pair(site.directory / "none", key), f"cannot read {site.directory}/none: No such file or directory"),
        (pair(key, key), f"{key} has no certificate in PEM"),
        (pair(certificate, certificate), f"{certificate} has no private key in PEM"),
        (pair(certificate, another), "the key is not that of the certificate"),
        (pair(certificate, locked), f"{locked} is encrypted"),
        (pair(broken, key), f"{broken} and {key}: they cannot be read"),
        (pair(truncated, key), f"{truncated} and {key}: they cannot be read"),
        (good[:1], "--tls-cert-file needs --tls-key-file"),
        (good[1:], "--tls-key-file needs --tls-cert-file"),
        ([f"--tls-client-ca-file={certificate}"], "--tls-client-ca-file needs --tls-cert-file and --tls-key-file"),
        ([*good, f"--tls-client-ca-file={empty}"], f"{empty} has no certificate in PEM"),
        ([*good, f"--tls-client-ca-file={broken}"], f"{broken}: its certificates cannot be read"),
        ([*good, f"--tls-client-ca-file={truncated}"], f"{truncated}: its certificates cannot be read"),
        ([f"--auth-token-file={empty}"], f"{empty} has no token in it"),
        ([f"--auth-token-file={site.directory}"], "Is a directory"),
        (["--port=9445", "--health-port=9445"], "--health-port must be another port than --port"),
        (["--health-port=x"], "invalid value"),
    ):
        with pytest.raises(ConfigurationError) as raised:
            load(*flags)
        assert message in str(raised.value)
        assert "\n" not in str(raised.value)
    for flags, message in (
        (pair(certificate, another), "the key is not that of the certificate"),
        ([f"--auth-token-file={empty}"], f"{empty} has no token in it"),
        (pair(*self_signed(site.directory / "p-521", curve="P-521")), "--tls-cert-file, --tls-key-file or"),
    ):
        code, text = refusal(*flags)
        assert (code, message in text) == (2, True), text


@pytest.mark.parametrize(
    ("start", "end", "why"),
    [
        ("2001", "2002", "certificate has expired"),
        ("2098", "2099", "certificate is not yet valid"),
        ("2001", "2099", ""),
    ],
)
def test_a_certificate_that_is_not_valid_now_is_reported_and_served(site: Site, start: str, end: str, why: str) -> None:
    certificate, key = self_signed(site.directory / start, start=start, end=end)
    runner = site.start(f"--tls-cert-file={certificate}", f"--tls-key-file={key}")
    runner.wait_for_line("event=serving")
    reports = [line for line in runner.lines if "callers will not trust the certificate" in line]
    assert [(f"path={certificate} " in line, f'why="{why}"' in line) for line in reports] == [(True, True)] * bool(why)


# --- files that are replaced --------------------------------------------------------------------------------------


class Callers:
    """Some on one lasting connection, some on a new one for every call."""

    def __init__(self, site: Site, runner: RunnerProcess, credentials: grpc.ChannelCredentials | None) -> None:
        self._site, self._runner, self._credentials = site, runner, credentials
        self._answers: list[Answer] = []
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []
        self.token = ""

    async def __aenter__(self) -> Callers:
        self._tasks = [asyncio.create_task(self._on_one()), asyncio.create_task(self._on_new_ones())]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)
        assert [answer for answer in self._answers if answer.code != "OK"] == []

    async def more(self, calls: int = 20) -> None:
        wanted = len(self._answers) + calls
        async with asyncio.timeout(60):
            while len(self._answers) < wanted:
                await asyncio.sleep(0.02)

    async def _on_one(self) -> None:
        async with Client(self._runner.address, credentials=self._credentials) as client:
            while not self._is_over:
                client.metadata = (("authorization", f"Bearer {self.token}"),) if self.token else ()
                self._answers.append(await client.evaluate(self._site.image, LIST))

    async def _on_new_ones(self) -> None:
        while not self._is_over:
            self._answers.append(await self._site.call(self._runner, self._credentials, token=self.token))


async def eventually_shown(site: Site, runner: RunnerProcess, name: str) -> None:
    async with asyncio.timeout(30):
        while await asyncio.to_thread(site.shown_by, runner) != name:
            await asyncio.sleep(0.05)


async def waits_for(runner: RunnerProcess, pattern: str) -> None:
    await asyncio.to_thread(runner.wait_for_line, pattern)


async def test_certificates_are_replaced_under_load_and_broken_ones_are_not_taken(site: Site) -> None:
    volume = site.volume("first")
    runner = site.start(*tls(volume))
    certificate, key = site.authority.sign("second")
    other_certificate, _ = site.authority.sign("other")
    async with Callers(site, runner, site.credentials()) as callers:
        await callers.more()
        assert await asyncio.to_thread(site.shown_by, runner) == "first"
        volume.put(tls_crt=certificate, tls_key=key)
        await eventually_shown(site, runner, "second")
        await callers.more()
        volume.put(tls_crt=other_certificate, tls_key=key)
        await waits_for(runner, "old version stays.*the key is not that of the certificate")
        volume.put(tls_crt=certificate)
        await waits_for(runner, "old version stays.*tls.key: No such file or directory")
        await callers.more()
        assert await asyncio.to_thread(site.shown_by, runner) == "second"
        volume.put(tls_crt=certificate, tls_key=key)
        await callers.more()
    assert len([line for line in runner.lines if "files read again" in line]) == 1


async def test_the_cas_of_callers_are_replaced(site: Site) -> None:
    volume = site.volume()
    runner = site.start(*tls(volume, clients=True))
    successor = Authority(site.directory / "successor", "successor")
    old, new = site.credentials("porch"), site.credentials("porch", successor)
    both = site.authority.certificate.read_bytes() + successor.certificate.read_bytes()
    pair = {name: volume[name.replace("_", ".")].read_bytes() for name in ("tls_crt", "tls_key")}
    assert [(await site.call(runner, one)).code for one in (old, new)] == ["OK", "UNAVAILABLE"]
    async with Client(runner.address, credentials=old) as lasting:
        assert (await lasting.evaluate(site.image, LIST)).code == "OK"
        volume.put(**pair, ca_crt=both)
        async with asyncio.timeout(30):
            while (await site.call(runner, new)).code != "OK":
                await asyncio.sleep(0.05)
        assert (await site.call(runner, old)).code == "OK"
        volume.put(**pair, ca_crt=successor.certificate)
        async with asyncio.timeout(30):
            while (await site.call(runner, old)).code == "OK":
                await asyncio.sleep(0.05)
        assert (await site.call(runner, new)).code == "OK"
        assert (await lasting.evaluate(site.image, LIST)).code == "OK", "connections that are open stay"


# --- tokens -------------------------------------------------------------------------------------------------------


def token_file(site: Site, *tokens: str) -> Path:
    path = site.directory / "tokens"
    path.write_text("".join(f"{token}\n" for token in tokens))
    return path


async def test_calls_need_a_token_and_health_and_reflection_need_none(site: Site) -> None:
    runner = site.start(f"--auth-token-file={token_file(site, OLD, NEW)}")
    runner.wait_for_line('security="plain text, tokens"')
    for token in (OLD, NEW):
        assert (await site.call(runner, token=token)).code == "OK"
    for shown, why in (
        ((), "the call has no token"),
        ((("authorization", f"Bearer {OLD}x"),), "the call's token is not, or no longer, accepted"),
        ((("authorization", "Basic eDp5"),), 'the call\'s "authorization" is no token'),
    ):
        async with Client(runner.address) as client:
            client.metadata = shown
            answer = await client.evaluate(site.image, LIST)
            assert (answer.code, answer.reason) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
            assert why in answer.message
            assert "--auth-token-file" in answer.message
    async with Client(runner.address) as client:
        assert (await check_health(client.channel)).status == HealthCheckResponse.SERVING
        reflection = client.channel.stream_stream(
            "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
            request_serializer=ServerReflectionRequest.SerializeToString,
            response_deserializer=ServerReflectionResponse.FromString,
        )
        stream = reflection()
        await stream.write(ServerReflectionRequest(list_services=""))
        answered = cast(ServerReflectionResponse, await stream.read())
        assert "evaluator.FunctionEvaluator" in [one.name for one in answered.list_services_response.service]
        await stream.done_writing()
    line = runner.wait_for_line("event=evaluated .*UNAUTHENTICATED.*").string
    assert re.search(r"request_bytes=0 .*peer=\S+:\d+", line)
    assert not [line for line in runner.lines if OLD in line or NEW in line]


async def test_the_message_of_a_call_without_a_token_is_not_even_read(site: Site) -> None:
    runner = site.start(f"--auth-token-file={token_file(site, OLD)}")
    async with Client(runner.address, (("grpc.max_send_message_length", -1),)) as client:
        answers = await asyncio.gather(*(client.evaluate(site.image, b"x" * 80_000_000) for _ in range(3)))
        assert {answer.code for answer in answers} == {"UNAUTHENTICATED"}
        client.metadata = (("authorization", f"Bearer {OLD}"),)
        assert (await client.evaluate(site.image, LIST)).code == "OK", "on the same connection"


async def test_tokens_are_changed_under_load(site: Site) -> None:
    path = token_file(site, OLD)
    runner = site.start(f"--auth-token-file={path}")
    async with Callers(site, runner, None) as callers:
        callers.token = OLD
        await callers.more()
        token_file(site, NEW, OLD)
        await waits_for(runner, "files read again")
        callers.token = NEW
        await callers.more()
        token_file(site, NEW)
        async with asyncio.timeout(30):
            while (await site.call(runner, token=OLD)).code == "OK":
                await asyncio.sleep(0.05)
        path.write_text("")
        await waits_for(runner, "old version stays.*has no token in it")
        await callers.more()
    assert (await site.call(runner, token=OLD)).code == "UNAUTHENTICATED"


# --- eval as a client ---------------------------------------------------------------------------------------------

Eval = Callable[..., subprocess.CompletedProcess[str]]


def test_eval_by_tls_with_a_certificate_and_a_token(site: Site) -> None:
    runner = site.start(*tls(site.volume(), clients=True), f"--auth-token-file={token_file(site, OLD)}")
    shop = Path(shutil.copytree(SHOP, site.directory / "shop"))
    ca = f"--tls-ca-file={site.authority.certificate}"
    certificate, key = site.authority.sign("person", usage="clientAuth")
    own = [f"--tls-cert-file={certificate}", f"--tls-key-file={key}"]
    token = f"--token-file={site.directory / 'tokens'}"

    def run(*flags: str, host: str = "localhost") -> subprocess.CompletedProcess[str]:
        return evaluate(shop, "--image", site.image, f"--address={host}:{runner.port}", *flags)

    assert run(ca, *own, token).returncode == 0
    assert run(ca, *own, token, "--tls-server-name=localhost", host="127.0.0.2").returncode == 0
    runner_ = f"the runner at localhost:{runner.port}"
    for flags, message in (
        ([], f"{runner_} closes the connection; does it want TLS (--tls, --tls-ca-file)?"),
        (["--tls"], f"certificate of {runner_} is signed by no CA that is trusted here (--tls-ca-file)"),
        ([ca], f"{runner_} closes the connection; does it want to see a certificate (--tls-cert-file)?"),
        ([ca, *own], "the call has no token"),
    ):
        failed = run(*flags)
        assert (failed.returncode, message in failed.stderr) == (1, True), failed.stderr
        assert "ssl_transport_security" not in failed.stderr
    elsewhere = run(ca, *own, token, host="127.0.0.2")
    assert "is for another name (--tls-server-name)" in elsewhere.stderr
    plain = site.start()
    spoken = evaluate(shop, "--image", site.image, f"--address={plain.address}", ca)
    assert f"the runner at {plain.address} speaks plain text, not TLS" in spoken.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--tls"], "are for a runner; name it with --address"),
        (["--token-file=x"], "are for a runner; name it with --address"),
        (["--address=localhost:1", "--tls-cert-file=x"], "--tls-cert-file needs --tls-key-file"),
        (["--address=localhost:1", "--tls-ca-file=none"], "cannot read none"),
        (["--address=localhost:1", "--token-file=none"], "cannot read none"),
    ],
)
def test_eval_with_flags_that_make_no_sense_is_exit_code_2(tmp_path: Path, flags: list[str], message: str) -> None:
    shop = Path(shutil.copytree(SHOP, tmp_path / "shop"))
    done = evaluate(shop, "--image", "x:v1", *flags)
    assert (done.returncode, message in done.stderr) == (2, True), done.stderr
