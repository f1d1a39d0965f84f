"""The wrapper server where it belongs: injected by an init container into images that know nothing of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from e2e.cluster.test_function_images import HEAD, INPUTS
from images.__main__ import wrapper_server_image
from images.oci import Image
from support import function_images
from support.client import Client
from support.kube import Json
from support.namespace import Namespace, termination
from support.push import Push
from support.wrapper import built_wrapper

PORT = 9446
TOOLS = "/wrapper-server-tools"
RESTRICTED = {
    "runAsUser": 65532,
    "runAsNonRoot": True,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}


@pytest.fixture
def restricted(new_namespace: Callable[..., Namespace]) -> Namespace:
    return new_namespace({"pod-security.kubernetes.io/enforce": "restricted"})


@pytest.fixture
def wrapper_image(push: Push) -> str:
    return push("wrapper-server", wrapper_server_image(built_wrapper()))


def start(
    namespace: Namespace,
    wrapper_image: str,
    image: str,
    *command: str,
    source: str = "/wrapper-server/.",
    resources: Json | None = None,
) -> None:
    """A function pod as templates make it."""
    mount = {"name": "tools", "mountPath": TOOLS}
    probe = {"exec": {"command": [f"{TOOLS}/grpc-health-probe", "-addr", f"localhost:{PORT}"]}, "periodSeconds": 1}
    init: Json = {
        "name": "copy-wrapper-server",
        "image": wrapper_image,
        "command": ["cp", "-a", source, TOOLS],
        "volumeMounts": [mount],
        "securityContext": RESTRICTED,
    }
    namespace.run(
        "function",
        image,
        [f"{TOOLS}/wrapper-server"],
        args=["--port", str(PORT), "--max-request-body-size", "6291456", "--", *command],
        volumeMounts=[mount],
        readinessProbe=probe,
        securityContext=RESTRICTED,
        resources=resources or {},
        pod={
            "initContainers": [init],
            "volumes": [{"name": "tools", "emptyDir": {}}],
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 5,
        },
    )


async def evaluate(namespace: Namespace, resource_list: str) -> str:
    address = namespace.wait_until_running("function")["status"]["podIP"]
    async with Client(f"{address}:{PORT}") as client:
        answer = await client.evaluate("example.com/function:v1", resource_list.encode())
    assert answer.code == "OK", answer
    return answer.resource_list.decode()


@pytest.mark.parametrize("source", ["/wrapper-server/.", "/home/nonroot/wrapper-server/."], ids=["old", "new"])
@pytest.mark.parametrize("root", ["alpine", "distroless", "scratch"])
async def test_it_serves_a_function_of_the_catalog_on_every_root(
    restricted: Namespace, wrapper_image: str, push: Push, root: str, source: str
) -> None:
    resource_list, expected = INPUTS["set-namespace"]
    image = push(f"set-namespace-{root}", function_images.catalog("set-namespace", root))
    start(restricted, wrapper_image, image, "function", source=source)
    assert expected in await evaluate(restricted, HEAD + resource_list)


async def test_it_serves_a_function_of_ours(restricted: Namespace, wrapper_image: str, push: Push) -> None:
    resource_list, expected = INPUTS["set-labels"]
    function: Image = function_images.python("set-labels")
    start(restricted, wrapper_image, push("set-labels", function), *(function.entrypoint or ()))
    assert expected in await evaluate(restricted, HEAD + resource_list)


async def test_its_functions_share_three_quarters_of_the_pods_memory(
    restricted: Namespace, wrapper_image: str, push: Push
) -> None:
    image = push("copies", function_images.command_only())
    start(restricted, wrapper_image, image, "cat", resources={"limits": {"memory": "200Mi"}})
    assert await evaluate(restricted, HEAD) == HEAD
    assert f" max_function_memory={150 * 1024**2} " in restricted.logs("function")


def test_an_entrypoint_that_is_not_there_is_what_kubernetes_shows(
    restricted: Namespace, wrapper_image: str, push: Push
) -> None:
    start(restricted, wrapper_image, push("shell", function_images.shell("")), "/usr/bin/no-such-function")
    failed = restricted.wait_for_pod("function", lambda pod: bool(_ended(pod)), what="ends")
    ended = termination(failed)
    assert ended["exitCode"] == 1
    assert ended["message"] == (
        "wrapper-server: the entrypoint /usr/bin/no-such-function cannot be executed: there is no such file\n"
    )


def _ended(pod: Json) -> Json:
    return termination(pod) if pod["status"].get("containerStatuses") else {}


async def test_a_pod_that_is_deleted_ends_at_once_and_well(
    restricted: Namespace, wrapper_image: str, push: Push
) -> None:
    image = push("copies", function_images.command_only())
    start(restricted, wrapper_image, image, "cat")
    assert await evaluate(restricted, HEAD) == HEAD
    restricted.kube.patch(restricted.path("pods/function"), {"metadata": {"finalizers": ["example.com/look"]}})
    restricted.kube.delete(restricted.path("pods/function"))
    try:
        ended = restricted.wait_for_pod("function", lambda pod: bool(_ended(pod)), what="ends")
        assert termination(ended)["exitCode"] == 0
    finally:
        restricted.kube.patch(restricted.path("pods/function"), {"metadata": {"finalizers": None}})
