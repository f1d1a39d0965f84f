"""A function put into a template, and read back from the pod."""

from __future__ import annotations

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krm_runner.core import image_ref
from krm_runner.core.function_container import as_it_is
from krm_runner.core.image_metadata import ImageMetadata
from krm_runner.core.json_object import JsonObject, as_list, as_object
from krm_runner.core.kept_object import deletion, extension
from krm_runner.core.pod_facts import facts_of
from krm_runner.core.pod_manifest import FunctionPod, reclaim_time, render
from krm_runner.core.pod_template import PodTemplate, built_in_template, template_of
from krm_runner.core.resources import Resources
from krm_runner.core.wrapper_delivery import InitContainer
from unit.test_pod_template import MINIMAL, config_map, seed_template

DIGEST = "sha256:" + "a1" * 32
NAME = "ghcr.io/kptdev/krm-functions-catalog/set-namespace"
IMAGE = ImageMetadata(image_ref.parse(f"{NAME}:v0.4.1"), DIGEST, DIGEST, None, ("function",), ("--flag",))
POD_ID = "set-namespace-v041-1-a1a1a1a1"
BUILT_IN = built_in_template(delivery=InitContainer("example.com/wrapper:v1"), max_message_bytes=6291456)
RECLAIM_AFTER = 1_800_000_000


def function(image: ImageMetadata = IMAGE, *, resources: Resources | None = None, pull_secret: str = "") -> FunctionPod:
    return FunctionPod(POD_ID, "fns", image, 6291456, RECLAIM_AFTER, resources or Resources(), pull_secret)


def container(pod: JsonObject, name: str = "function") -> JsonObject:
    spec = as_object(pod["spec"])
    everyone = map(as_object, [*as_list(spec.get("initContainers")), *as_list(spec["containers"])])
    return next(found for found in everyone if found["name"] == name)


TEMPLATES = pytest.mark.parametrize("template", [BUILT_IN, seed_template()], ids=["built-in", "seed"])


@TEMPLATES
def test_names_labels_and_annotations_of_the_contract(template: PodTemplate) -> None:
    manifests = render(template, function())
    for manifest in (manifests.pod, manifests.service):
        metadata = as_object(manifest["metadata"])
        assert (metadata["name"], metadata["namespace"]) == (POD_ID, "fns")
        assert as_object(metadata["labels"])["fn.kpt.dev/image"] == POD_ID
    assert as_object(manifests.pod["metadata"])["annotations"] == {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "true",
        "fn.kpt.dev/reclaim-after": "1800000000",
        "fn.kpt.dev/template-version": template.version,
        "krm-runner/image": f"{NAME}:v0.4.1",
    }


@TEMPLATES
def test_the_function_container_runs_the_digest_behind_the_wrapper(template: PodTemplate) -> None:
    found = container(render(template, function()).pod)
    assert found["image"] == f"{NAME}@{DIGEST}"
    assert found["command"] == ["/wrapper-server-tools/wrapper-server"]
    assert found["args"] == ["--port", "9446", "--max-request-body-size", "6291456", "--", "function", "--flag"]
    assert "resources" not in found


@TEMPLATES
def test_the_service_selects_the_pod(template: PodTemplate) -> None:
    spec = as_object(render(template, function()).service["spec"])
    assert spec["selector"] == {"fn.kpt.dev/image": POD_ID}
    assert (spec["type"], as_object(as_list(spec["ports"])[0])["port"]) == ("ClusterIP", 9446)


def test_the_templates_own_init_image_stays() -> None:
    pod = render(seed_template(), function()).pod
    assert container(pod, "copy-wrapper-server")["image"] == "docker.io/nephio/porch-wrapper-server:latest"


def test_what_the_template_says_stays() -> None:
    text = (
        "apiVersion: v1\nkind: Pod\n"
        "metadata: {labels: {team: a}, annotations: {cluster-autoscaler.kubernetes.io/safe-to-evict: 'false', x: y}}\n"
        "spec:\n"
        "  nodeSelector: {disk: fast}\n"
        "  containers:\n"
        "  - {name: mesh, image: mesh:v1, args: [a]}\n"
        "  - {name: function, command: [/w], args: [--verbosity, '5'], terminationMessagePolicy: File,\n"
        "     resources: {requests: {cpu: 1, memory: 1Mi}}, env: [{name: A, value: b}]}\n"
    )
    template = template_of(config_map(text))
    pod = render(template, function(resources=Resources({"cpu": "2"}, {"cpu": "3"}))).pod
    metadata = as_object(pod["metadata"])
    assert as_object(metadata["labels"])["team"] == "a"
    assert as_object(metadata["annotations"])["cluster-autoscaler.kubernetes.io/safe-to-evict"] == "false"
    assert as_object(pod["spec"])["nodeSelector"] == {"disk": "fast"}
    mesh, found = container(pod, "mesh"), container(pod)
    assert (mesh["image"], mesh["args"]) == ("mesh:v1", ["a"])
    assert as_list(found["args"])[:4] == ["--verbosity", "5", "--port", "9446"]
    assert found["resources"] == {"requests": {"cpu": "2", "memory": "1Mi"}, "limits": {"cpu": "3"}}
    assert found["env"] == [{"name": "A", "value": "b"}]
    assert found["terminationMessagePolicy"] == "File"


def test_a_selector_that_the_template_adds_stays() -> None:
    service = "apiVersion: v1\nkind: Service\nspec: {ports: [{port: 9446}], selector: {team: a}}"
    template = template_of(config_map(MINIMAL, service))
    assert as_object(render(template, function()).service["spec"])["selector"] == {
        "team": "a",
        "fn.kpt.dev/image": POD_ID,
    }


@TEMPLATES
def test_the_log_of_a_container_that_fails_is_in_its_status(template: PodTemplate) -> None:
    pod = render(template, function()).pod
    for name in ("copy-wrapper-server", "function"):
        assert container(pod, name)["terminationMessagePolicy"] == "FallbackToLogsOnError"


def test_the_pull_secret_is_attached() -> None:
    assert as_object(render(BUILT_IN, function(pull_secret="auth")).pod["spec"])["imagePullSecrets"] == [
        {"name": "auth"}
    ]
    assert "imagePullSecrets" not in as_object(render(BUILT_IN, function()).pod["spec"])


@TEMPLATES
def test_a_template_can_be_used_again(template: PodTemplate) -> None:
    before = copy.deepcopy(template)
    once = render(template, function(resources=Resources({"cpu": "1"}), pull_secret="auth"))
    assert template == before
    assert render(template, function(resources=Resources({"cpu": "1"}), pull_secret="auth")) == once


def test_the_time_to_live_is_never_cut_short() -> None:
    assert reclaim_time(unix_now=100.2, ttl=1800.0) == 1901
    assert reclaim_time(unix_now=100.0, ttl=1800.0) == 1900


def expanded(text: str, variables: dict[str, str]) -> str:
    """What Kubernetes makes of an argument (third_party/forked/golang/expansion)."""
    result, position = "", 0
    while position < len(text):
        following = text[position + 1 : position + 2]
        if text[position] != "$" or not following:
            result, position = result + text[position], position + 1
        elif following == "$":
            result, position = result + "$", position + 2
        elif following == "(" and ")" in text[position:]:
            end = text.index(")", position)
            name = text[position + 2 : end]
            result, position = result + variables.get(name, f"$({name})"), end + 1
        else:
            result, position = result + "$" + following, position + 2
    return result


@given(st.text("$()AB "), st.dictionaries(st.sampled_from(["A", "B", "AB"]), st.text()))
def test_kubernetes_changes_nothing_of_an_entrypoint(word: str, variables: dict[str, str]) -> None:
    assert expanded(as_it_is(word), variables) == word


def created(pod: JsonObject, **metadata: object) -> JsonObject:
    """As the API server would have it."""
    return {**pod, "metadata": {**as_object(pod["metadata"]), "uid": "u-1", "resourceVersion": "9", **metadata}}


@TEMPLATES
def test_what_is_put_in_is_read_back(template: PodTemplate) -> None:
    facts = facts_of(created(render(template, function()).pod))
    assert facts is not None
    assert (facts.name, facts.uid, facts.resource_version, facts.pod_id) == (POD_ID, "u-1", "9", POD_ID)
    assert (facts.asked_for, facts.pinned, facts.digest) == (f"{NAME}:v0.4.1", f"{NAME}@{DIGEST}", DIGEST)
    assert (facts.template_version, facts.reclaim_after) == (template.version, RECLAIM_AFTER)
    assert facts.serves(IMAGE, template_version=template.version)


def test_a_pod_serves_one_reference_of_one_digest_and_template() -> None:
    facts = facts_of(created(render(BUILT_IN, function()).pod))
    assert facts is not None
    moved = "sha256:" + "b2" * 32
    others = [
        ImageMetadata(IMAGE.reference, moved, moved, None, ("function",)),
        ImageMetadata(image_ref.parse("gcr.io/kpt-fn/set-namespace:v0.4.1"), DIGEST, DIGEST, None, ("function",)),
        ImageMetadata(image_ref.parse(f"{NAME}:v041"), DIGEST, DIGEST, None, ("function",)),
        ImageMetadata(image_ref.parse(f"{NAME}@{DIGEST}"), DIGEST, DIGEST, None, ("function",)),
    ]
    assert not any(facts.serves(other, template_version=BUILT_IN.version) for other in others)
    assert not facts.serves(IMAGE, template_version="other")


def test_a_pod_without_our_label_has_no_facts() -> None:
    assert facts_of({}) is None
    assert facts_of({"metadata": {"name": POD_ID, "labels": {"app": "x"}}}) is None
    assert facts_of({"metadata": {"labels": {"fn.kpt.dev/image": 7}}}) is None


def test_a_pod_that_another_program_made_serves_nothing() -> None:
    facts = facts_of({"metadata": {"name": "p", "labels": {"fn.kpt.dev/image": "p"}}})
    assert facts is not None
    assert (facts.asked_for, facts.pinned, facts.digest, facts.reclaim_after) == ("", "", "", None)
    assert not facts.serves(IMAGE, template_version="")


@pytest.mark.parametrize("text", ["", "soon", "-1", "1.5", " 1", "1" * 13, "١٢", 1_800_000_000, None])
def test_a_reclaim_time_that_cannot_be_read(text: object) -> None:
    pod = {"metadata": {"labels": {"fn.kpt.dev/image": "p"}, "annotations": {"fn.kpt.dev/reclaim-after": text}}}
    facts = facts_of({**pod})
    assert facts is not None
    assert facts.reclaim_after is None


def test_writes_hit_the_pod_that_was_seen() -> None:
    facts = facts_of(created(render(BUILT_IN, function()).pod))
    assert facts is not None
    assert extension(facts, 7) == {"metadata": {"uid": "u-1", "annotations": {"fn.kpt.dev/reclaim-after": "7"}}}
    assert deletion(facts)["preconditions"] == {"uid": "u-1", "resourceVersion": "9"}


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["metadata", "labels", "annotations", "spec", "containers", "name"]), inner)
    ),
)


@given(_json)
def test_no_object_breaks_the_reading(value: object) -> None:
    pod = as_object(value)
    metadata = {**as_object(pod.get("metadata")), "labels": {"fn.kpt.dev/image": "p"}}
    assert facts_of({**pod, "metadata": metadata}) is not None
