"""Images from every registry of the cluster, with and without TLS, with and without the right password."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from cluster import registries
from cluster.full import FullCluster
from cluster.layout import MIRRORED_REGISTRIES, OPEN, OPEN_TLS, PRIVATE, PRIVATE_TLS, Registry
from images.oci import Image
from support import function_images
from support.in_cluster import InCluster
from support.namespace import Namespace, waiting_reasons
from support.push import Push

FETCH = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=30).read().decode())"
# The kubelet says the one at first and the other after a while.
PULL_FAILURES = {"ErrImagePull", "ImagePullBackOff"}


@pytest.fixture(scope="module")
def greeting() -> Image:
    return function_images.shell("echo hello")


def create_pull_secret(namespace: Namespace, registry: Registry, password: str | None = None) -> None:
    config = registries.pull_secret(registry, *([password] if password else []))
    encoded = base64.b64encode(config.encode()).decode()
    secret = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/dockerconfigjson"}
    namespace.create({**secret, "data": {".dockerconfigjson": encoded}}, "pull")


def run(namespace: Namespace, image: str, *, has_secret: bool = False) -> None:
    """Always pulled: an image that the node has already needs no credentials."""
    secrets = {"imagePullSecrets": [{"name": "pull"}]} if has_secret else {}
    namespace.run("greets", image, imagePullPolicy="Always", pod=secrets)


def failure_to_pull(namespace: Namespace) -> str:
    """What the kubelet says of it."""
    failed = namespace.wait_for_pod(
        "greets", lambda pod: bool(waiting_reasons(pod) & PULL_FAILURES), what="fails to pull"
    )
    messages = [event["message"] for event in namespace.events(reason="Failed")]
    assert failed["status"]["phase"] == "Pending"
    return "\n".join(messages)


@pytest.mark.usefixtures("sealed")
@pytest.mark.parametrize("registry", [OPEN, OPEN_TLS], ids=lambda registry: registry.name)
def test_an_open_registry(namespace: Namespace, push: Push, greeting: Image, registry: Registry) -> None:
    run(namespace, push("greets", greeting, registry))
    assert namespace.wait_for_success("greets") == "hello\n"


@pytest.mark.usefixtures("sealed")
@pytest.mark.parametrize("registry", [PRIVATE, PRIVATE_TLS], ids=lambda registry: registry.name)
def test_a_private_registry_with_a_pull_secret(
    namespace: Namespace, push: Push, greeting: Image, registry: Registry
) -> None:
    create_pull_secret(namespace, registry)
    run(namespace, push("greets", greeting, registry), has_secret=True)
    assert namespace.wait_for_success("greets") == "hello\n"


@pytest.mark.usefixtures("sealed")
def test_a_private_registry_without_a_pull_secret(namespace: Namespace, push: Push, greeting: Image) -> None:
    run(namespace, push("greets", greeting, PRIVATE))
    assert "401 Unauthorized" in failure_to_pull(namespace)


@pytest.mark.usefixtures("sealed")
def test_a_private_registry_with_a_wrong_password(namespace: Namespace, push: Push, greeting: Image) -> None:
    create_pull_secret(namespace, PRIVATE, "a wrong one")
    run(namespace, push("greets", greeting, PRIVATE), has_secret=True)
    assert "401 Unauthorized" in failure_to_pull(namespace)


def test_an_image_that_does_not_exist(namespace: Namespace, push: Push, greeting: Image) -> None:
    image = push("greets", greeting)
    run(namespace, image.replace(":v1", ":v2"))
    assert "not found" in failure_to_pull(namespace)


@pytest.mark.usefixtures("sealed")
@pytest.mark.parametrize("host", MIRRORED_REGISTRIES)
def test_images_of_public_registries_come_from_the_open_one(
    namespace: Namespace, push: Push, greeting: Image, host: str
) -> None:
    run(namespace, push.mirrored("greets", greeting, host))
    assert namespace.wait_for_success("greets") == "hello\n"


def test_a_pushed_image_keeps_its_digest(namespace: Namespace, push: Push, greeting: Image) -> None:
    reference = push("greets", greeting).removesuffix(":v1")
    run(namespace, f"{reference}@{greeting.digest}")
    assert namespace.wait_for_success("greets") == "hello\n"


def test_a_tag_can_move(namespace: Namespace, push: Push, greeting: Image) -> None:
    push("greets", greeting)
    run(namespace, push("greets", function_images.shell("echo good bye")))
    assert namespace.wait_for_success("greets") == "good bye\n"


def test_a_process_in_the_place_of_a_pod_asks_the_open_one_by_public_names(
    namespace: Namespace, push: Push, greeting: Image, in_cluster: Callable[..., InCluster], sealed: FullCluster
) -> None:
    """Over TLS, by the project's own authority: so the runner resolves images that the kubelet pulls by those names."""
    push("greets", greeting)
    place: InCluster = in_cluster(namespace)
    for host in ("ghcr.io", "registry-1.docker.io"):
        done = subprocess.run(
            [*place.prefix, sys.executable, "-c", FETCH, f"https://{host}/v2/{push.prefix}/greets/tags/list"],
            env=os.environ | {"SSL_CERT_FILE": str(sealed.layout.certificate("registry-ca"))},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert json.loads(done.stdout) == {"name": f"{push.prefix}/greets", "tags": ["v1"]}, done.stderr
