"""Credentials that change while a client lives, on a real API server: token files, logins, certificates."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import uuid
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cluster.layout import Layout
from krm_runner.core.errors import ConfigurationError, KubernetesForbiddenError, KubernetesUnavailableError
from krm_runner.core.json_object import JsonObject, as_object, as_text
from krm_runner.kube.client import KubeClient, find_cluster
from support.service_account import new_account, token_of

NAMESPACE = "default"
PLUGIN = """\
#!{python}
import json, pathlib, sys
directory = pathlib.Path({directory!r})
with (directory / "runs").open("a") as runs:
    runs.write("x")
status = (directory / "status").read_text()
if not status:
    sys.exit("who are you?")
print(json.dumps({{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
                   "status": json.loads(status)}}))
"""


async def whoami(client: KubeClient) -> str:
    review: JsonObject = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
    answer = await client.create("/apis/authentication.k8s.io/v1/selfsubjectreviews", review)
    user = as_text(as_object(as_object(answer["status"])["userInfo"])["username"])
    return user.removeprefix(f"system:serviceaccount:{NAMESPACE}:")


def put(path: Path, content: str) -> None:
    """Swapped at once, as the kubelet does it."""
    new = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    new.write_text(content)
    os.replace(new, path)


def server(layout: Layout) -> tuple[str, int]:
    found = as_object(json.loads(layout.kubeconfig().read_text())["clusters"][0]["cluster"])
    address = urlsplit(as_text(found["server"]))
    assert address.hostname is not None
    assert address.port is not None
    return address.hostname, address.port


@pytest.fixture
def service_account(api_server: Layout, client: KubeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a pod has mounted, but for the token."""
    host, port = server(api_server)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(port))
    (tmp_path / "ca.crt").write_bytes(api_server.certificate("ca").read_bytes())
    return tmp_path


async def test_a_token_that_the_kubelet_rotates_counts_at_once(client: KubeClient, service_account: Path) -> None:
    first, second = await new_account(client, NAMESPACE), await new_account(client, NAMESPACE)
    put(service_account / "token", await token_of(client, NAMESPACE, first) + "\n")
    async with KubeClient(await find_cluster(service_account)) as pod:
        assert await whoami(pod) == first
        put(service_account / "token", await token_of(client, NAMESPACE, second))
        assert await whoami(pod) == second
        # Nothing, for a moment: what was there still counts.
        put(service_account / "token", "")
        assert await whoami(pod) == second
        (service_account / "token").unlink()
        assert await whoami(pod) == second


async def test_a_token_that_is_refused_is_replaced_as_soon_as_there_is_another(
    client: KubeClient, service_account: Path
) -> None:
    name = await new_account(client, NAMESPACE)
    put(service_account / "token", "expired")
    told: list[int] = []
    async with KubeClient(
        await find_cluster(service_account), on_answer=lambda _verb, _path, status: told.append(status)
    ) as pod:
        with pytest.raises(KubernetesForbiddenError, match="Unauthorized"):
            await whoami(pod)
        put(service_account / "token", await token_of(client, NAMESPACE, name))
        assert await whoami(pod) == name
        # Another token, and nothing about the file that shows it but its content.
        status = (service_account / "token").stat()
        token = (service_account / "token").read_text()
        put(service_account / "token", "x" * len(token))
        with pytest.raises(KubernetesForbiddenError):
            await whoami(pod)
        with (service_account / "token").open("r+") as file:
            file.write(token)
        os.utime(service_account / "token", ns=(status.st_atime_ns, status.st_mtime_ns))
        assert await whoami(pod) == name
    assert told == [401, 201, 401, 201]


class Kubeconfig:
    """One that leads to the API server as some user."""

    def __init__(self, layout: Layout, directory: Path) -> None:
        self._layout = layout
        self.directory = directory
        self.path = directory / "kubeconfig"
        plugin = directory / "plugin"
        plugin.write_text(PLUGIN.format(python=sys.executable, directory=str(directory)))
        plugin.chmod(0o700)
        self.authority = directory / "ca.crt"
        put(self.authority, layout.certificate("ca").read_text())

    def write(self, **user: object) -> None:
        found = json.loads(self._layout.kubeconfig().read_text())
        found["users"][0]["user"] = user
        found["clusters"][0]["cluster"].pop("certificate-authority-data")
        found["clusters"][0]["cluster"]["certificate-authority"] = "ca.crt"
        self.path.write_text(json.dumps(found))

    def use_plugin(self) -> None:
        plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": str(self.directory / "plugin")}
        self.write(exec=plugin)

    def hand_out(self, **status: str) -> None:
        (self.directory / "status").write_text(json.dumps(status) if status else "")

    @property
    def runs(self) -> int:
        """How often the plugin was started."""
        return len((self.directory / "runs").read_text())

    def certificate(self, name: str, *, is_known: bool = True) -> tuple[str, str]:
        """A client's, and its key."""
        key, request, made = (self.directory / f"{name}.{part}" for part in ("key", "csr", "crt"))
        new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", str(key))
        subject = ("-subj", f"/CN={name}")
        if is_known:
            signed_by = ("-CA", str(self._layout.certificate("ca")), "-CAkey", str(self._layout.key("ca")))
            _openssl("req", *new_key, "-out", str(request), *subject)
            _openssl("x509", "-req", "-in", str(request), *signed_by, "-days", "1", "-out", str(made))
        else:
            _openssl("req", "-x509", *new_key, "-out", str(made), "-days", "1", *subject)
        return made.read_text(), key.read_text()


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)


@pytest.fixture
def kubeconfig(api_server: Layout, client: KubeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kubeconfig:
    made = Kubeconfig(api_server, tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(made.path))
    return made


async def test_a_token_file_of_a_kubeconfig_is_read_again(client: KubeClient, kubeconfig: Kubeconfig) -> None:
    first, second = await new_account(client, NAMESPACE), await new_account(client, NAMESPACE)
    put(kubeconfig.directory / "my-token", await token_of(client, NAMESPACE, first))
    kubeconfig.write(tokenFile="my-token")
    async with KubeClient(await find_cluster()) as user:
        assert await whoami(user) == first
        put(kubeconfig.directory / "my-token", await token_of(client, NAMESPACE, second))
        assert await whoami(user) == second


async def test_a_plugins_token_is_renewed_when_it_expires(client: KubeClient, kubeconfig: Kubeconfig) -> None:
    first, second = await new_account(client, NAMESPACE), await new_account(client, NAMESPACE)
    kubeconfig.use_plugin()
    kubeconfig.hand_out(token=await token_of(client, NAMESPACE, first), expirationTimestamp="2020-01-01T00:00:00Z")
    configuration = await find_cluster()
    kubeconfig.hand_out(token=await token_of(client, NAMESPACE, second), expirationTimestamp="2100-01-01T00:00:00Z")
    async with KubeClient(configuration) as user:
        for _ in range(3):
            assert await whoami(user) == second
    assert kubeconfig.runs == 2


async def test_a_plugins_token_is_renewed_when_it_is_refused(client: KubeClient, kubeconfig: Kubeconfig) -> None:
    name = await new_account(client, NAMESPACE)
    kubeconfig.use_plugin()
    kubeconfig.hand_out(token="revoked", expirationTimestamp="2100-01-01T00:00:00Z")
    configuration = await find_cluster()
    kubeconfig.hand_out(token=await token_of(client, NAMESPACE, name))
    async with KubeClient(configuration) as user:
        for _ in range(3):
            assert await whoami(user) == name
    assert kubeconfig.runs == 2


async def test_a_plugin_that_fails_is_named_and_not_asked_all_the_time(kubeconfig: Kubeconfig) -> None:
    kubeconfig.use_plugin()
    kubeconfig.hand_out(token="revoked")
    configuration = await find_cluster()
    kubeconfig.hand_out()
    async with KubeClient(configuration) as user:
        for _ in range(3):
            with pytest.raises(KubernetesUnavailableError, match=r"login failed: .*who are you\?"):
                await whoami(user)
    assert kubeconfig.runs == 2
    with pytest.raises(ConfigurationError, match=r"who are you\?"):
        await find_cluster()


async def test_a_plugin_may_hand_out_certificates(kubeconfig: Kubeconfig) -> None:
    kubeconfig.use_plugin()
    certificate, key = kubeconfig.certificate("mallory", is_known=False)
    kubeconfig.hand_out(clientCertificateData=certificate, clientKeyData=key)
    configuration = await find_cluster()
    certificate, key = kubeconfig.certificate("alice")
    kubeconfig.hand_out(clientCertificateData=certificate, clientKeyData=key)
    async with KubeClient(configuration) as user:
        assert await whoami(user) == "alice"


async def test_certificates_that_are_replaced_count_when_the_old_ones_are_refused(kubeconfig: Kubeconfig) -> None:
    directory = kubeconfig.directory
    kubeconfig.write(**{"client-certificate": "client.crt", "client-key": "client.key"})
    certificate, key = kubeconfig.certificate("mallory", is_known=False)
    put(directory / "client.crt", certificate)
    put(directory / "client.key", key)
    async with KubeClient(await find_cluster()) as user:
        with pytest.raises(KubernetesForbiddenError, match="Unauthorized"):
            await whoami(user)
        certificate, key = kubeconfig.certificate("alice")
        put(directory / "client.crt", certificate)
        # Half of the pair is of no use.
        with pytest.raises(KubernetesForbiddenError, match="Unauthorized"):
            await whoami(user)
        put(directory / "client.key", key)
        assert await whoami(user) == "alice"


async def test_an_authority_that_is_replaced_counts_when_the_old_one_is_no_good(
    api_server: Layout, kubeconfig: Kubeconfig
) -> None:
    known = kubeconfig.authority.read_text()
    certificate, _ = kubeconfig.certificate("somebody-else", is_known=False)
    put(kubeconfig.authority, certificate)
    admin = json.loads(api_server.kubeconfig().read_text())["users"][0]["user"]
    kubeconfig.write(**admin)
    async with KubeClient(await find_cluster()) as user:
        with pytest.raises(KubernetesUnavailableError, match="certificate"):
            await whoami(user)
        put(kubeconfig.authority, known)
        assert await whoami(user) == "admin"


async def test_data_in_the_kubeconfig_itself(kubeconfig: Kubeconfig) -> None:
    certificate, key = (base64.b64encode(part.encode()).decode() for part in kubeconfig.certificate("alice"))
    kubeconfig.write(**{"client-certificate-data": certificate, "client-key-data": key})
    async with KubeClient(await find_cluster()) as user:
        assert await whoami(user) == "alice"


@pytest.mark.parametrize("content", [None, "", "a: [", "null", "{}", "current-context: x", "[1]"])
async def test_a_kubeconfig_that_is_none(content: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    monkeypatch.setenv("KUBECONFIG", str(path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    why = f"kubeconfig {path}: ." if content is not None else f"KUBECONFIG is {path}, and there is no such file"
    with pytest.raises(ConfigurationError, match=f"no Kubernetes cluster is known: {why}"):
        await find_cluster()


async def test_certificates_that_are_none(kubeconfig: Kubeconfig) -> None:
    kubeconfig.write(token="x")
    put(kubeconfig.authority, "no certificate")
    with pytest.raises(ConfigurationError, match="certificates for the Kubernetes cluster cannot be read"):
        async with KubeClient(await find_cluster()):
            pass


async def test_a_pod_without_a_service_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    with pytest.raises(ConfigurationError, match="Service token file does not exist"):
        await find_cluster(tmp_path)
