"""The runner from its image, by the manifests of deploy/, with RBAC on: it serves, is updated, and holds functions."""

from __future__ import annotations

import asyncio
import base64
import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from cluster.full import FullCluster
from cluster.layout import FIRST_SERVICE_ADDRESS, full
from e2e.cluster.conftest import Bed
from images.__main__ import wrapper_server_image
from images.oci import Image, single_layer
from support import function_images
from support.calls import wish
from support.certificates import Authority
from support.client import Answer, Client
from support.deployed import Deployed, runner_image
from support.go_tools import GRPCURL, go_tool
from support.load import Load
from support.machine import ROOT
from support.manifests import DEPLOY, FUNCTIONS, SYSTEM, charted, documents, kubectl, kustomized
from support.namespace import Namespace
from support.push import Push
from support.wrapper import built_wrapper

EMBEDDED = "ghcr.io/kptdev/krm-functions-catalog/set-namespace:v0.4.1"
LIST = (ROOT / "examples" / "resource-list.yaml").read_bytes()


# On one worker, so that the image is built and pushed once.
pytestmark = pytest.mark.xdist_group("deployment")


@pytest.fixture(scope="module")
def images(bed: Bed) -> tuple[str, str]:
    """References of the runner's image and of the wrapper's."""
    if bed.own is None:
        pytest.skip("it needs the registries of the project's own cluster")
    push = Push(f"test-{uuid.uuid4().hex[:10]}", bed.own.layout)
    runner = push("function-runner", runner_image(bed.own.layout))
    return runner, push("wrapper-server", wrapper_server_image(built_wrapper()))


@pytest.fixture
def deployed(sealed: FullCluster, new_namespace: Callable[..., Namespace], images: tuple[str, str]) -> Deployed:
    """Nothing is installed yet."""
    runner, wrapper = images
    return Deployed(sealed.layout, new_namespace(), new_namespace(), runner_image=runner, wrapper_image=wrapper)


@pytest.fixture
def base(deployed: Deployed, sealed: FullCluster) -> Deployed:
    deployed.install(kustomized(kubectl(sealed.layout), DEPLOY / "base"))
    return deployed


@pytest.fixture
def image(push: Push) -> str:
    """A function whose image the runner and the nodes both find, under a public name."""
    return push.mirrored("obliging", function_images.obliging(), "ghcr.io")


def stock_client(namespace: Namespace, push: Push, address: str, image: str, resource_list: bytes) -> str:
    """The answer's resource list, as a pod of another namespace gets it with grpcurl."""
    request = json.dumps({"image": image, "resource_list": base64.b64encode(resource_list).decode()})
    client = push("client", Image((single_layer({"/grpcurl": go_tool(GRPCURL)}),), entrypoint=("/grpcurl",)))
    call = ["/grpcurl", "-plaintext", "-max-time=90", "-d", request, address]
    name = f"client-{abs(hash(image)) % 10_000}"
    namespace.run(name, client, [*call, "evaluator.FunctionEvaluator/EvaluateFunction"])
    answer = json.loads(namespace.wait_for_success(name))
    return base64.b64decode(answer["resource_list"]).decode()


@pytest.mark.parametrize("source", ["kustomize", "helm"])
def test_functions_are_evaluated_through_its_service_by_another_pod(
    deployed: Deployed, namespace: Namespace, push: Push, image: str, source: str
) -> None:
    manifests = kustomized(kubectl(full()), DEPLOY / "base") if source == "kustomize" else charted()
    deployed.install(manifests)
    assert "kind: ResourceList" in stock_client(namespace, push, deployed.name, image, wish())
    (pod,) = deployed.pods()
    assert pod["metadata"]["annotations"]["krm-runner/image"] == image


async def test_an_embedded_function_serves_an_image_only_where_it_is_mapped(
    deployed: Deployed, sealed: FullCluster
) -> None:
    manifests = kustomized(kubectl(sealed.layout), DEPLOY / "base")
    deployed.install(manifests)
    async with Client(deployed.address) as client:
        assert (await client.evaluate(EMBEDDED, LIST)).code != "OK", "no registry of this cluster has the image"
    (config,) = (manifest for manifest in manifests if manifest["metadata"]["name"] == "functions-config")
    config["data"]["functions-config.yaml"] = (ROOT / "config.yaml").read_text()
    deployed.apply(*deployed.adapted([config]))
    deployed.restart()
    await asyncio.to_thread(deployed.wait_for_rollout)

    async def is_served() -> bool:
        async with Client(deployed.address) as client:
            return (await client.evaluate(EMBEDDED, LIST)).code == "OK"

    # For a moment the Service may still lead to the old pod, which takes calls for its --shutdown-delay.
    async with asyncio.timeout(60):
        while not await is_served():
            await asyncio.sleep(0.5)
    assert deployed.pods() == [], "the exec runtime did it"


def test_the_doctor_finds_it_in_order_from_inside(base: Deployed, image: str) -> None:
    said = base.execute("krm-runner", "doctor", "--address=localhost:9445", f"--image={image}")
    # One to look at: the nodes know a registry at their own loopback address, which is not the pod's.
    assert said.splitlines()[-1].startswith("0 broken, 1 to look at"), said
    assert "the cluster's DNS answers" in said
    assert f"{image} was evaluated by localhost:9445" in said


async def test_a_rolling_update_under_load_fails_no_call(base: Deployed, image: str) -> None:
    async with Client(base.address) as client:
        assert (await client.evaluate(image, wish())).code == "OK"
        async with Load(client, image) as load:
            await load.more(20)
            base.restart()
            await asyncio.to_thread(base.wait_for_rollout)
            await load.more(50)
    assert not load.failures, "\n".join(load.failures)


@pytest.mark.alone
async def test_the_specifications_complete_example_works_with_its_two_images_changed(
    deployed: Deployed, sealed: FullCluster, image: str
) -> None:
    """In the namespaces that it names, as the default account, once the base's rights are bound to that one."""
    program = kubectl(sealed.layout)
    rights = [
        manifest
        for manifest in kustomized(program, DEPLOY / "overlays" / "default-service-account")
        if manifest["kind"] in ("Namespace", "Role", "RoleBinding", "ServiceAccount", "LimitRange", "Service")
    ]
    text = (DEPLOY / "examples" / "complete-example.yaml").read_text()
    names = dict(zip(("function-runner:latest", "wrapper-server:latest"), deployed.images, strict=True))
    for name, own in names.items():
        text = text.replace(f"image: {name}", f"image: {own}").replace(f'"{name}"', f'"{own}"')
    deployed.apply(*rights)
    try:
        deployed.apply(*documents(text))
        deployed.kubectl("rollout", "status", "deployment/function-runner", "--timeout=120s", f"--namespace={SYSTEM}")
        service = deployed.system.kube.read(f"/api/v1/namespaces/{SYSTEM}/services/function-runner")
        async with Client(f"{service['spec']['clusterIP']}:9445") as client:
            async with asyncio.timeout(30):
                # Ready a moment ago: the address of its Service leads to it when the node's proxy has heard of it.
                while (embedded := await client.evaluate(EMBEDDED, LIST)).code == "UNAVAILABLE":
                    await asyncio.sleep(0.2)
            assert embedded.code == "OK", embedded.message
            answer = await client.evaluate(image, wish())
        assert answer.code == "OK", answer.message
    finally:
        deployed.kubectl("delete", "namespace", SYSTEM, FUNCTIONS, "--wait=true", "--timeout=120s")


# --- who may call ----------------------------------------------------------------------------------------------------


async def test_certificates_and_tokens_from_secrets(deployed: Deployed, image: str, tmp_path: Path) -> None:
    """The chart with all of it switched on: probes, callers and pods find their way, and nobody else does."""
    authority = Authority(tmp_path)
    certificate, key = authority.sign("runner", subject_names="DNS:runner")
    own_certificate, own_key = (path.read_bytes() for path in authority.sign("caller", usage="clientAuth"))
    trusted = authority.certificate.read_bytes()
    for name, files in {
        "function-runner-tls": {"tls.crt": certificate.read_bytes(), "tls.key": key.read_bytes(), "ca.crt": trusted},
        "function-runner-token": {"tokens": b"0123456789abcdef-caller\n"},
        "function-runner-pod-key": {"keys": b"0123456789abcdef0123456789abcdef\n"},
    }.items():
        data = {file: base64.b64encode(content).decode() for file, content in files.items()}
        deployed.system.create({"apiVersion": "v1", "kind": "Secret", "data": data}, name)
    deployed.install(
        charted(("tls.enabled=true", "tls.clientCa=true", "callerTokens.enabled=true", "podTokens.enabled=true"))
    )
    options: Any = (("grpc.ssl_target_name_override", "runner"),)
    known = grpc.ssl_channel_credentials(trusted, own_key, own_certificate)
    token = "0123456789abcdef-caller"
    async with Client(deployed.address, options, credentials=known, token=token) as client:
        assert (await client.evaluate(image, wish())).code == "OK"
    (pod,) = deployed.pods()
    async with Client(deployed.address, options, credentials=known) as client:
        assert (await client.evaluate(image, wish())).code == "UNAUTHENTICATED", "without the token"
    strange = grpc.ssl_channel_credentials(trusted)
    for nobody in (
        Client(deployed.address, options, credentials=strange, token=token),
        Client(deployed.address, token=token),
    ):
        async with nobody as client:
            assert (await client.evaluate(image, wish(), timeout=5)).code in ("UNAVAILABLE", "DEADLINE_EXCEEDED")
    async with Client(f"{pod['status']['podIP']}:9446") as client:
        assert (await client.evaluate(image, wish())).code == "UNAUTHENTICATED", "a neighbour of the pod"


# --- functions that try to get out ------------------------------------------------------------------------------------

TRIES = f"""
cat >/tmp/input
{{
echo token: $(ls /var/run/secrets/kubernetes.io/serviceaccount 2>&1)
echo links: $(env | grep _SERVICE_HOST= | grep -vc ^KUBERNETES_)
echo user: $(id -u)
for place in / /etc /usr/bin /wrapper-server-tools; do touch $place/x 2>/dev/null && echo wrote: $place; done
grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status
mount -t tmpfs none /tmp 2>&1 | head -n 1
echo api: $(wget -q -T 5 -O - --no-check-certificate https://{FIRST_SERVICE_ADDRESS}/api/v1/secrets 2>&1 | head -c 300)
}} >&2
cat /tmp/input
"""


async def test_a_function_that_tries_to_get_out_gets_nothing(base: Deployed, push: Push) -> None:
    image = push.mirrored("tries", function_images.shell(TRIES), "ghcr.io")
    async with Client(base.address) as client:
        answer = await client.evaluate(image, wish())
    assert answer.code == "OK", answer.message
    said = answer.log.decode()
    facts = dict(line.split(":", 1) for line in said.splitlines() if ":" in line)
    assert "No such file" in facts["token"]
    assert (facts["links"].strip(), facts["user"].strip()) == ("0", "65532")
    assert "wrote" not in facts
    assert {int(facts[name], 16) for name in ("CapEff", "CapBnd")} == {0}
    assert (facts["NoNewPrivs"].strip(), facts["Seccomp"].strip()) == ("1", "2")
    assert '"kind": "SecretList"' not in said


HOGS = {
    "memory": "exec tail /dev/zero",
    "processes": "i=0; while [ $i -lt 2000 ]; do sleep 60 & i=$((i+1)); done; exit 9",
}


@pytest.mark.parametrize("kind", HOGS)
async def test_a_function_that_takes_too_much_hurts_only_itself(
    base: Deployed, push: Push, image: str, kind: str
) -> None:
    hog = push.mirrored(f"hog-{kind}", function_images.shell(HOGS[kind]), "ghcr.io")
    async with Client(base.address) as client:
        assert (await client.evaluate(image, wish())).code == "OK"
        answer: Answer = await client.evaluate(hog, wish(), timeout=90)
        assert answer.code != "OK"
        assert (await client.evaluate(image, wish())).code == "OK", "its neighbour goes on"


FILLS_ITS_DISK = "dd if=/dev/zero of=/tmp/zeros bs=1M count=64 2>/dev/null; exec sleep 3600"


async def test_a_function_that_fills_its_disk_is_evicted_and_its_neighbour_goes_on(
    deployed: Deployed, sealed: FullCluster, push: Push, image: str
) -> None:
    """The base's limit is a gigabyte: here it is less, for the machine's sake. A spare has the limit that was set when
    it was created."""
    limits = [{"type": "Container", "default": {"memory": "1Gi", "ephemeral-storage": "24Mi"}}]
    deployed.functions.kube.patch(deployed.functions.path("limitranges/storage"), {"spec": {"limits": limits}})
    manifests = kustomized(kubectl(sealed.layout), DEPLOY / "base")
    (limit_range,) = (manifest for manifest in manifests if manifest["kind"] == "LimitRange")
    limit_range["spec"]["limits"] = limits
    deployed.install(manifests)
    hog = push.mirrored("hog-disk", function_images.shell(FILLS_ITS_DISK), "ghcr.io")
    async with Client(deployed.address) as client:
        assert (await client.evaluate(image, wish())).code == "OK"
        answer = await client.evaluate(hog, wish(), timeout=180)
        assert (answer.code, answer.reason) == ("UNAVAILABLE", "POD_LOST"), answer.message
        assert "Evicted" in answer.message
        assert (await client.evaluate(image, wish())).code == "OK", "its neighbour goes on"
