"""The images of functions that the tests have: those that work do, and those that misbehave do it as promised."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from images.oci import Image
from support import function_images
from support.function_images import CATALOG_FUNCTIONS, PYTHON_FUNCTIONS
from support.namespace import Namespace, phase, termination, waiting_reasons
from support.push import Push

HEAD = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems:\n"
CONFIG_MAP = "- {apiVersion: v1, kind: ConfigMap, metadata: {name: map}, data: {k: v}}\n"
DATA = "functionConfig: {{apiVersion: v1, kind: ConfigMap, metadata: {{name: config}}, data: {{{data}}}}}\n"
STARLARK = """functionConfig:
  apiVersion: fn.kpt.dev/v1alpha1
  kind: StarlarkRun
  metadata: {name: config}
  source: |
    for resource in ctx.resource_list["items"]:
      resource["metadata"]["namespace"] = "staging"
"""
REPLACEMENTS = """functionConfig:
  apiVersion: fn.kpt.dev/v1alpha1
  kind: ApplyReplacements
  metadata: {name: config}
  replacements:
  - source: {kind: ConfigMap, name: map, fieldPath: data.k}
    targets: [{select: {kind: ConfigMap, name: map}, fieldPaths: [metadata.name]}]
"""
INPUTS = {
    "set-namespace": (CONFIG_MAP + DATA.format(data="namespace: staging"), "namespace: staging"),
    "starlark": (CONFIG_MAP + STARLARK, "namespace: staging"),
    "apply-replacements": (CONFIG_MAP + REPLACEMENTS, "name: v"),
    "apply-setters": (
        "- apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: map}\n  data:\n    k: v # kpt-set: ${k}\n"
        + DATA.format(data="k: staging"),
        "k: staging",
    ),
    "set-labels": (CONFIG_MAP + DATA.format(data="team: blue"), "team: blue"),
    "set-annotations": (CONFIG_MAP + DATA.format(data="team: blue"), "team: blue"),
}


def evaluate(namespace: Namespace, image: str, resource_list: str) -> str:
    """What a function writes when it is its pod's only process: kubectl passes its input on."""
    namespace.run("function", image, stdin=True, stdinOnce=True)
    namespace.wait_until_running("function")
    subprocess.run(
        ["kubectl", "attach", "--stdin", "--quiet", f"--namespace={namespace.name}", "function"],
        input=resource_list.encode(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    return namespace.wait_for_success("function")


@pytest.mark.parametrize("root", ["alpine", "distroless", "scratch"])
@pytest.mark.parametrize("function", CATALOG_FUNCTIONS)
def test_a_function_of_the_catalog(namespace: Namespace, push: Push, function: str, root: str) -> None:
    resource_list, expected = INPUTS[function]
    image = push(f"{function}-{root}", function_images.catalog(function, root))
    assert expected in evaluate(namespace, image, HEAD + resource_list)


@pytest.mark.parametrize("function", PYTHON_FUNCTIONS)
def test_a_function_of_ours(namespace: Namespace, push: Push, function: str) -> None:
    resource_list, expected = INPUTS[function.partition("-v")[0]]
    image = push(function.partition("-v")[0], function_images.python(function))
    assert expected in evaluate(namespace, image, HEAD + resource_list)


def test_an_alpine_root_has_musl_and_no_glibc(namespace: Namespace, push: Push) -> None:
    namespace.run("lists", push("shell", function_images.shell("ls /lib /lib64 2>/dev/null; ls /bin")))
    listed = namespace.wait_for_success("lists").split()
    assert any(name.startswith("ld-musl-") for name in listed)
    assert not any(name.startswith(("ld-linux", "libc.so")) for name in listed)
    assert {"sh", "cat", "wget"} <= set(listed)


def test_one_crashes(namespace: Namespace, push: Push) -> None:
    namespace.run("function", push("crashes", function_images.crashes()))
    failed = namespace.wait_for_pod("function", lambda pod: phase(pod) == "Failed", what="fails")
    assert termination(failed)["exitCode"] == 3


def test_one_sleeps(namespace: Namespace, push: Push) -> None:
    namespace.run("function", push("sleeps", function_images.sleeps()))
    assert phase(namespace.wait_until_running("function")) == "Running"


def test_one_has_no_entrypoint(namespace: Namespace, push: Push) -> None:
    namespace.run("function", push("no-entrypoint", function_images.no_entrypoint()))
    failed = namespace.wait_for_pod(
        "function", lambda pod: "CreateContainerError" in waiting_reasons(pod), what="cannot be created"
    )
    assert "no command specified" in str(failed["status"])


@pytest.mark.parametrize("make", [function_images.command_only, function_images.entrypoint_and_command])
def test_ones_with_a_command(namespace: Namespace, push: Push, make: Callable[[], Image]) -> None:
    assert evaluate(namespace, push("copies", make()), HEAD) == HEAD


def test_one_is_for_another_processor(namespace: Namespace, push: Push) -> None:
    namespace.run("function", push("wrong-architecture", function_images.wrong_architecture()))
    namespace.wait_for_pod("function", lambda pod: phase(pod) == "Failed", what="fails")
    assert "exec format error" in namespace.logs("function")


def test_images_are_the_same_every_time() -> None:
    for make in (function_images.crashes, lambda: function_images.python("set-labels")):
        assert make().digest == make().digest
