"""Pods without a function: how they are made, what is changed when they get one, and how their status reads then."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krm_runner.core import image_ref
from krm_runner.core.built_in_template import built_in_pod
from krm_runner.core.image_metadata import ImageMetadata
from krm_runner.core.json_object import JsonObject, as_list, as_object
from krm_runner.core.naming import is_pod_id
from krm_runner.core.pod_conversion import conversion
from krm_runner.core.pod_facts import PodFacts, facts_of
from krm_runner.core.pod_failure import Failed
from krm_runner.core.pod_manifest import FunctionPod, render
from krm_runner.core.pod_status import Ready, SilentEnd, Starting, pod_status, silent_end
from krm_runner.core.pod_template import PodTemplate
from krm_runner.core.spare import SPARE, Spare, as_annotation, spare_id, why_no_spares
from krm_runner.core.wrapper_delivery import ImageVolume, InitContainer
from unit.test_pod_manifest import BUILT_IN, IMAGE, TEMPLATES, container
from unit.test_pod_status import COPIED, RUNNING, condition, ended, function, pod, waiting

WRAPPER = Spare("example.com/wrapper:v1")


def spare(template: PodTemplate = BUILT_IN) -> JsonObject:
    """As the API server has it."""
    made = render(template, FunctionPod("krm-spare-1", "fns", WRAPPER, 6291456, 1_800_000_000)).pod
    return {**made, "metadata": {**as_object(made["metadata"]), "uid": "u-1", "resourceVersion": "7"}}


def facts(found: JsonObject) -> PodFacts:
    known = facts_of(found)
    assert known is not None
    return known


def merged(found: JsonObject, patch: JsonObject) -> JsonObject:
    """What a merge patch makes of it."""
    result = dict(found)
    for key, value in patch.items():
        inner = as_object(value)
        result[key] = merged(as_object(result.get(key)), inner) if inner is value else value
    return result


def converted(image: ImageMetadata = IMAGE, template: PodTemplate = BUILT_IN) -> JsonObject:
    made = spare(template)
    patch = conversion(made, facts(made), image, reclaim_after=1_900_000_000)
    assert patch is not None
    return merged(made, patch)


@TEMPLATES
def test_a_spare_is_all_of_a_pod_but_the_function(template: PodTemplate) -> None:
    made = spare(template)
    own = container(made)
    assert own["image"] == WRAPPER.image
    assert "--" not in as_list(own["args"])
    (variable,) = [each for each in map(as_object, as_list(own["env"])) if each["name"] == "KRM_RUNNER_COMMAND"]
    assert variable["valueFrom"] == {"fieldRef": {"fieldPath": "metadata.annotations['krm-runner/command']"}}
    assert not [key for key in own if key.endswith("Probe")], "there is nothing yet that could be found"
    assert own["imagePullPolicy"] == "IfNotPresent", "whatever the tag of the spare's image"
    assert (facts(made).asked_for, facts(made).is_converted) == (SPARE, False)
    assert facts(made).serves(WRAPPER, template_version=template.version)
    assert not facts(made).serves(IMAGE, template_version=template.version)


@pytest.mark.parametrize("delivery", [InitContainer, ImageVolume])
def test_a_template_has_spares_if_it_delivers_our_wrapper_server(
    delivery: type[InitContainer] | type[ImageVolume],
) -> None:
    assert why_no_spares(built_in_pod(delivery(WRAPPER.image)), WRAPPER.image) == ""
    why = why_no_spares(built_in_pod(delivery("example.com/other:v1")), WRAPPER.image)
    assert "does not deliver the wrapper server of example.com/wrapper:v1 (WRAPPER_SERVER_IMAGE), but" in why
    assert why.endswith("example.com/other:v1")


def test_a_template_that_delivers_nothing_has_no_spares() -> None:
    assert why_no_spares({"spec": {"containers": [{"image": WRAPPER.image}]}}, WRAPPER.image).endswith("_IMAGE)")


@TEMPLATES
def test_nothing_of_it_is_changed_but_what_kubernetes_lets_one_change(template: PodTemplate) -> None:
    before, after = spare(template), converted(template=template)
    assert facts(after).serves(IMAGE, template_version=template.version)
    assert facts(after).is_converted
    assert facts(after).reclaim_after == 1_900_000_000
    annotations = as_object(as_object(after["metadata"])["annotations"])
    assert annotations["krm-runner/command"] == "function\n--flag"
    container(after)["image"] = WRAPPER.image
    assert after["spec"] == before["spec"]


def test_a_conversion_hits_a_spare_only_as_it_was_seen() -> None:
    patch = conversion(spare(), facts(spare()), IMAGE, reclaim_after=1)
    assert patch is not None
    metadata = as_object(patch["metadata"])
    assert (metadata["uid"], metadata["resourceVersion"]) == ("u-1", "7")


def test_an_image_without_a_command_is_not_put_into_a_spare() -> None:
    unfit = ImageMetadata(IMAGE.reference, IMAGE.digest, IMAGE.digest, None, ())
    assert conversion(spare(), facts(spare()), unfit, reclaim_after=1) is None


@given(st.lists(st.text(st.characters(exclude_characters="\0", codec="utf-8"))))
def test_every_word_of_a_command_comes_back(command: list[str]) -> None:
    def word(line: str) -> str:
        return line.replace("\\\\", "\0").replace("\\n", "\n").replace("\0", "\\")

    text = as_annotation(command)
    if text:
        assert [word(line) for line in text.split("\n")] == command


@given(st.text(min_size=1), st.integers(1, 10_000))
def test_names_of_spares_are_names(version: str, number: int) -> None:
    assert is_pod_id(spare_id(version, number))


@pytest.mark.parametrize("text", ["spare", "spare:v1", "example.com/spare", "spare@sha256:" + "0" * 64])
def test_no_image_is_taken_for_a_spare(text: str) -> None:
    assert image_ref.parse(text).canonical != SPARE


def with_status(
    state: JsonObject, *, restarts: int, last: JsonObject | None = None, phase: str = "Running"
) -> JsonObject:
    ready = condition("Ready", "True" if "running" in state else "False")
    status = function(state, restartCount=restarts, lastState=last or {})
    shown = pod(phase, podIP="10.0.0.7", conditions=[ready], initContainerStatuses=[COPIED], containerStatuses=[status])
    return {**converted(), "status": shown["status"]}


@pytest.mark.parametrize("state", [RUNNING, ended(0, "Completed"), ended(137)])
def test_what_becomes_of_the_container_before_is_nothing_to_the_function(state: JsonObject) -> None:
    shown = with_status(state, restarts=0)
    assert pod_status(shown) == Starting("ContainerCreating")
    assert silent_end(shown) is None


def test_its_own_container_is_waited_for_and_seen() -> None:
    before = ended(0, "Completed")
    assert pod_status(with_status(RUNNING, restarts=1, last=before)) == Ready("10.0.0.7")
    shown = with_status(waiting("PodInitializing"), restarts=0, last=before)
    assert isinstance(pod_status(shown), Starting)
    assert "exit code" not in str(pod_status(shown)), "the spare's end is no reason to wait"


def test_its_own_end_is_a_failure() -> None:
    status = pod_status(with_status(ended(1, message="no such file"), restarts=1, last=ended(0, "Completed")))
    assert isinstance(status, Failed)
    assert "exit code 1: no such file" in status.message
    assert silent_end(with_status(ended(1), restarts=1, last=ended(0))) == SilentEnd("function", is_previous=False)


def test_an_image_that_is_not_to_be_had_is_a_failure_whatever_the_phase_says() -> None:
    """All containers have ended, for Kubernetes: the one before has, and there is no other."""
    shown = with_status(waiting("ErrImagePull", "401 Unauthorized"), restarts=0, last=ended(0), phase="Succeeded")
    status = pod_status(shown)
    assert isinstance(status, Failed)
    assert status.reason == "ErrImagePull"


def test_a_spare_that_was_started_again_counts_from_there() -> None:
    made = {**spare(), "status": {"containerStatuses": [function(RUNNING, restartCount=2)]}}
    patch = conversion(made, facts(made), IMAGE, reclaim_after=1)
    assert patch is not None
    changed = merged(made, patch)

    def status(state: JsonObject, restarts: int) -> JsonObject:
        return {**changed, "status": with_status(state, restarts=restarts)["status"]}

    assert pod_status(status(ended(0), 2)) == Starting("ContainerCreating")
    assert isinstance(pod_status(status(RUNNING, 3)), Ready)
    assert isinstance(pod_status(status(ended(1), 3)), Failed)


def test_a_pod_that_ended_with_its_spare_says_what_is_missing() -> None:
    status = pod_status(with_status(ended(0, "Completed"), restarts=0, phase="Succeeded"))
    assert isinstance(status, Failed)
    assert (status.reason, status.may_pass) == ("NotStarted", True)
    assert "the image could not be pulled" in status.message


def test_an_eviction_is_told_though_the_kubelet_removed_the_functions_container() -> None:
    evicted: JsonObject = {
        "type": "Warning",
        "reason": "Evicted",
        "message": "usage exceeds the limit",
        "involvedObject": {"uid": "u-1"},
    }
    status = pod_status(with_status(ended(0, "Completed"), restarts=0, phase="Succeeded"), [evicted])
    assert isinstance(status, Failed)
    assert (status.reason, status.message, status.may_pass) == ("Evicted", "usage exceeds the limit", True)


def test_a_function_that_ends_again_and_again_has_its_own_last_words() -> None:
    shown = with_status(waiting("CrashLoopBackOff", "back-off"), restarts=1, last=ended(1, message="no such file"))
    status = pod_status(shown)
    assert isinstance(status, Failed)
    assert "exit code 1: no such file" in status.message


@pytest.mark.parametrize("text", ["x", "-1", "9" * 5000, ""])
def test_an_annotation_that_is_no_number_harms_nobody(text: str) -> None:
    shown = with_status(RUNNING, restarts=1)
    as_object(as_object(shown["metadata"])["annotations"])["krm-runner/restarts-as-spare"] = text
    assert pod_status(shown) == Ready("10.0.0.7")


def test_what_was_said_of_the_spares_image_is_not_of_the_functions() -> None:
    def failed(image: str) -> JsonObject:
        message = f'Failed to pull image "{image}": 401 Unauthorized'
        about: JsonObject = {"uid": "u-1", "fieldPath": "spec.containers{function}"}
        return {"type": "Warning", "reason": "Failed", "message": message, "involvedObject": about}

    shown = with_status(waiting("ContainerCreating"), restarts=0)
    assert isinstance(pod_status(shown, [failed(WRAPPER.image)]), Starting)
    assert isinstance(pod_status(shown, [failed(IMAGE.pinned)]), Failed)
    shown = with_status(ended(0, "Completed"), restarts=0, phase="Succeeded")
    status = pod_status(shown, [failed(IMAGE.pinned)])
    assert isinstance(status, Failed)
    assert (status.reason, status.may_pass) == ("ErrImagePull", False)


def test_how_admission_writes_a_spares_image_does_not_matter() -> None:
    made = spare()
    container(made)["image"] = f"{WRAPPER.image}@sha256:{'0' * 64}"
    assert facts(made).digest == WRAPPER.digest == ""
    assert facts(made).serves(WRAPPER, template_version=BUILT_IN.version)
