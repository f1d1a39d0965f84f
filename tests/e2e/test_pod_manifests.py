"""The manifests of function pods before a real API server, which knows every field and what "restricted" means."""

from __future__ import annotations

import json
import subprocess

import pytest

from cluster.layout import KUBERNETES_VERSION, Layout
from krm_runner.core import image_ref
from krm_runner.core.image_metadata import ImageMetadata
from krm_runner.core.json_object import JsonObject, as_list, as_object
from krm_runner.core.kept_object import deletion, extension
from krm_runner.core.naming import pod_id
from krm_runner.core.pod_facts import PodFacts, facts_of
from krm_runner.core.pod_manifest import FunctionPod, Manifests, render
from krm_runner.core.pod_status import Starting, pod_status
from krm_runner.core.pod_template import PodTemplate, built_in_template
from krm_runner.core.pod_token import TokenKeys
from krm_runner.core.resources import Resources
from krm_runner.core.wrapper_delivery import ImageVolume, InitContainer
from unit.test_pod_template import seed_template

DIGEST = "sha256:" + "a1" * 32
RESTRICTED, OPEN = "manifests-restricted", "manifests-open"
RESOURCES = Resources({"cpu": "100m", "memory": "16Mi"}, {"memory": "256Mi"})
BUILT_IN = built_in_template(delivery=InitContainer("example.com/wrapper:v1"), max_message_bytes=6291456)


class Kubectl:
    """Another client than ours, which refuses unknown fields."""

    def __init__(self, layout: Layout) -> None:
        self._command = (str(layout.kube), "kubectl", f"--kubeconfig={layout.kubeconfig()}")

    def run(self, *arguments: str, stdin: object = None) -> str:
        done = self.attempt(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def attempt(self, *arguments: str, stdin: object = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self._command, *arguments],
            input=json.dumps(stdin), check=False, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    def create(self, manifest: object) -> JsonObject:
        made = self.run("create", "--validate=strict", "-o", "json", "-f", "-", stdin=manifest)
        return as_object(json.loads(made))


@pytest.fixture(scope="module")
def kubectl(api_server: Layout) -> Kubectl:
    """With a namespace that enforces and one that does not."""
    client = Kubectl(api_server)
    for name, level in ((RESTRICTED, "restricted"), (OPEN, "privileged")):
        metadata = {"name": name, "labels": {"pod-security.kubernetes.io/enforce": level}}
        client.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        account = {"name": "default", "namespace": name}
        client.create({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
    return client


def image(text: str = "example.com/set-namespace:v0.4.1") -> ImageMetadata:
    return ImageMetadata(image_ref.parse(text), DIGEST, DIGEST, None, ("function",))


def manifests(of: ImageMetadata, *, template: PodTemplate = BUILT_IN, namespace: str = RESTRICTED) -> Manifests:
    name = pod_id(of.reference, of.digest, 1)
    return render(template, FunctionPod(name, namespace, of, 6291456, 1_800_000_000, RESOURCES, "auth-secret"))


def facts(pod: JsonObject) -> PodFacts:
    found = facts_of(pod)
    assert found is not None
    return found


@pytest.mark.parametrize(
    "text",
    [
        "example.com/set-namespace:v0.4.1",
        f"example.com/set-namespace@{DIGEST}",
        "example.com/3scale:V1.0_x",
        "example.com/" + "n" * 150 + ":" + "t" * 128,
    ],
)
def test_the_built_in_pod_and_its_service_are_taken_where_restricted_is_enforced(kubectl: Kubectl, text: str) -> None:
    asked = image(text)
    made = manifests(asked)
    pod, service = kubectl.create(made.pod), kubectl.create(made.service)
    assert facts(pod).serves(asked, template_version=BUILT_IN.version)
    assert facts(pod).reclaim_after == 1_800_000_000
    assert isinstance(pod_status(pod), Starting)
    assert as_object(as_object(service["spec"])["selector"]) == {"fn.kpt.dev/image": facts(pod).pod_id}
    selected = kubectl.run("get", "pods", "-n", RESTRICTED, "-l", f"fn.kpt.dev/image={facts(pod).pod_id}", "-o", "name")
    assert selected.split() == [f"pod/{facts(pod).name}"]


def test_a_pod_without_an_init_container_is_taken_where_restricted_is_enforced(kubectl: Kubectl) -> None:
    template = built_in_template(delivery=ImageVolume("example.com/w:v1"), max_message_bytes=6291456)
    made = manifests(image("example.com/delivered:v1"), template=template)
    done = kubectl.attempt("create", "--dry-run=server", "-o", "json", "-f", "-", stdin=made.pod)
    assert done.returncode == 0, done.stderr
    taken = as_list(as_object(as_object(json.loads(done.stdout))["spec"])["volumes"])
    asked = as_list(as_object(made.pod["spec"])["volumes"])
    if KUBERNETES_VERSION < "v1.35":
        # Off by default: what the API server does not know it leaves out. The doctor says so.
        assert [as_object(volume)["name"] for volume in taken] == ["tmp"]
    else:
        assert taken == asked


def test_a_pod_with_a_token_is_taken_where_restricted_is_enforced(kubectl: Kubectl) -> None:
    keys = TokenKeys.parse(b"k" * 40, source="keys")
    template = BUILT_IN.with_tokens(keys.first)
    asked = image("example.com/with-token:v1")
    name = pod_id(asked.reference, asked.digest, 1)
    made = render(template, FunctionPod(name, RESTRICTED, asked, 6291456, 1_800_000_000, token_nonce="bm9uY2U"))
    seen = facts(kubectl.create(made.pod))
    assert seen.serves(asked, template_version=template.version)
    assert not seen.serves(asked, template_version=BUILT_IN.version)
    token = keys.token(version=seen.template_version, pod_id=seen.pod_id, nonce=seen.token_nonce)
    assert token is not None
    assert token.reveal() in str(made.pod)


def test_the_specifications_example_is_taken_where_nothing_is_enforced(kubectl: Kubectl) -> None:
    template = seed_template()
    made = manifests(image(), template=template, namespace=OPEN)
    kubectl.create(made.service)
    assert facts(kubectl.create(made.pod)).serves(image(), template_version=template.version)
    refused = kubectl.attempt("create", "-f", "-", stdin=manifests(image(), template=template).pod)
    assert "violates PodSecurity" in refused.stderr


def test_a_pod_that_was_extended_meanwhile_is_not_deleted(kubectl: Kubectl) -> None:
    seen = facts(kubectl.create(manifests(image("example.com/extended:v1")).pod))
    change = json.dumps(extension(seen, 1_900_000_000))
    kubectl.run("patch", "pod", seen.name, "-n", RESTRICTED, "--type=merge", "-p", change)
    path = f"/api/v1/namespaces/{RESTRICTED}/pods/{seen.name}"
    late = kubectl.attempt("delete", "--raw", path, "-f", "-", stdin=deletion(seen))
    assert "Conflict" in late.stderr + late.stdout
    now = facts(as_object(json.loads(kubectl.run("get", "--raw", path))))
    assert now.reclaim_after == 1_900_000_000
    kubectl.run("delete", "--raw", path, "-f", "-", stdin=deletion(now))


def test_an_extension_does_not_reach_another_pod_of_the_name(kubectl: Kubectl) -> None:
    made = manifests(image("example.com/replaced:v1")).pod
    first = facts(kubectl.create(made))
    kubectl.run("delete", "pod", first.name, "-n", RESTRICTED, "--wait=true")
    kubectl.create(made)
    change = json.dumps(extension(first, 1_900_000_000))
    late = kubectl.attempt("patch", "pod", first.name, "-n", RESTRICTED, "--type=merge", "-p", change)
    assert "metadata.uid" in late.stderr
    assert "immutable" in late.stderr
