"""The file of functions to warm up, and their limits."""

from __future__ import annotations

import pytest

from krm_runner.core import image_ref
from krm_runner.core.errors import ConfigurationError
from krm_runner.core.pod_cache_config import EMPTY_CONFIG, FunctionConfig, PodCacheConfig, parse_pod_cache_config
from krm_runner.core.resources import Resources, parse_resources

PREFIX = "ghcr.io/kptdev/krm-functions-catalog"
IMAGE = f"{PREFIX}/set-namespace:v0.4.1"
EXAMPLE = f"""
- name: {IMAGE}
  timeToLive: 30m
  maxWaitlistLength: 2
  maxParallelPodsPerFunction: 2
  resources: {{requests: {{cpu: 100m}}, limits: {{memory: 256Mi}}}}   # of the function container
"""


def parsed(text: str) -> PodCacheConfig:
    return parse_pod_cache_config(text.encode(), source="cache.yaml", default_prefix=PREFIX)


def test_the_example_of_the_contract() -> None:
    reference = image_ref.parse(IMAGE)
    expected = FunctionConfig(IMAGE, reference, 1800.0, 2, 2, None, Resources({"cpu": "100m"}, {"memory": "256Mi"}))
    assert parsed(EXAMPLE) == PodCacheConfig({IMAGE: expected})
    assert parsed(EXAMPLE).find(reference) == expected
    assert parsed(EXAMPLE).find(image_ref.parse("other")) is None


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "[]"])
def test_an_empty_file_has_no_function(text: str) -> None:
    assert parsed(text) == EMPTY_CONFIG


def test_what_is_left_out_or_nothing_is_what_the_flags_say() -> None:
    for text in (
        "- name: f:v1",
        "- {name: 'f:v1', timeToLive: '', maxWaitlistLength: 0, maxParallelPodsPerFunction: 0, resources: {}}",
        "- {name: 'f:v1', timeToLive: 0s, resources: {requests: {}, limits: null}}",
    ):
        assert parsed(text).functions == {f"{PREFIX}/f:v1": FunctionConfig("f:v1", image_ref.parse(f"{PREFIX}/f:v1"))}


def test_order_is_kept_and_a_second_entry_is_a_warning() -> None:
    found = parsed("- {name: b}\n- {name: a, timeToLive: 1m}\n- {name: 'a:latest', timeToLive: 2m, colour: red}")
    assert [function.name for function in found.functions.values()] == ["b", "a"]
    assert [function.ttl for function in found.functions.values()] == [None, 60.0]
    assert found.warnings == (
        'cache.yaml: [2]: "colour" is not known and is ignored',
        'cache.yaml: [2]: "a:latest" stands twice; it keeps its first entry',
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "text",
            "cache.yaml: the file must be a list of functions, each with a name, or a mapping such as `image: 30m`",
        ),
        ("f:v1: soon", "cache.yaml: [0] (f:v1): timeToLive must be a duration"),
        ("Not An Image: 30m", "cache.yaml: [0]: name must be an image"),
        ("- x", "cache.yaml: [0] must be a mapping with a name"),
        ("- {timeToLive: 1m}", "cache.yaml: [0]: name must be an image"),
        ("- {name: 7}", "cache.yaml: [0]: name must be an image"),
        ("- {name: X/Y}", '[0]: name must be an image, and "X/Y" is none: "Y" is no valid repository name'),
        ("- {name: f, timeToLive: 30}", "cache.yaml: [0] (f): timeToLive must be a duration such as 30m"),
        ("- {name: f, timeToLive: soon}", "[0] (f): timeToLive must be a duration such as 30m"),
        ("- {name: f, timeToLive: -1m}", "[0] (f): timeToLive must be a duration such as 30m"),
        ("- {name: f, timeToLive: false}", "[0] (f): timeToLive must be a duration such as 30m"),
        ("- {name: f, maxWaitlistLength: -1}", "maxWaitlistLength must be a whole number from 1 to 1000000, or 0"),
        ("- {name: f, maxWaitlistLength: many}", "maxWaitlistLength must be a whole number"),
        ("- {name: f, maxParallelPodsPerFunction: true}", "maxParallelPodsPerFunction must be a whole number"),
        ("- {name: f, maxParallelPodsPerFunction: 10001}", "maxParallelPodsPerFunction must be a whole number"),
        ("- {name: f, minReadyPods: -1}", "minReadyPods must be a whole number from 1 to 10000, or 0 for none"),
        (
            "- {name: f, minReadyPods: 3, maxParallelPodsPerFunction: 2}",
            "[0] (f): minReadyPods is 3, and maxParallelPodsPerFunction allows 2",
        ),
        ("- {name: f, resources: lots}", "[0] (f): resources must be a mapping with requests and limits"),
        ("- {name: f, resources: {cpu: 1}}", 'resources: "cpu" is not known; it takes requests, limits'),
        ("- {name: f, resources: {limits: 1}}", "resources.limits must be a mapping such as"),
        ("- {name: f, resources: {limits: {memory: 1 GB}}}", '(f): resources.limits.memory: "1 GB" is no quantity'),
        ("- {name: f, resources: {limits: {a b: 1}}}", 'resources.limits: "a b" is no resource such as cpu or memory'),
        ("- [", "cache.yaml: not valid YAML"),
    ],
)
def test_what_is_wrong_is_one_line_with_its_place(text: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        parsed(text)
    assert why in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_everything_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigurationError) as refusal:
        parsed("- {name: ok}\n- x\n- {name: f, timeToLive: x, maxWaitlistLength: x, resources: x}")
    assert [str(refusal.value).count(part) for part in ("[0]", "[1]", "[2] (f)", "timeToLive", "resources must")] == [
        0, 1, 3, 1, 1,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "quantity", ["1", "0.5", ".5", "100m", "256Mi", "1Gi", "1e3", "1E", "12k", "+1", "5u", 1, 0.25]
)
def test_quantities(quantity: object) -> None:
    assert parse_resources({"limits": {"cpu": quantity}}).limits == {"cpu": str(quantity)}


@pytest.mark.parametrize("quantity", ["", "Mi", "1 ", "-1", "1MB", "1ki", "1.2.3", "1e", True, None, [], {}])
def test_what_is_no_quantity(quantity: object) -> None:
    with pytest.raises(ValueError, match=r"resources\.limits\.cpu: .* is no quantity such as"):
        parse_resources({"limits": {"cpu": quantity}})


def test_resources_count_over_those_of_a_template() -> None:
    ours = Resources({"cpu": "1"}, {"nvidia.com/gpu": "1"})
    template = {"requests": {"cpu": "2", "memory": "1Mi"}, "claims": [{"name": "x"}]}
    assert ours.over(template) == {
        "requests": {"cpu": "1", "memory": "1Mi"},
        "limits": {"nvidia.com/gpu": "1"},
        "claims": [{"name": "x"}],
    }
    assert template["requests"] == {"cpu": "2", "memory": "1Mi"}
    assert Resources().over(None) == {}


def test_the_map_of_earlier_versions_of_porch() -> None:
    found = parsed("example.com/a:v1: 30m\nexample.com/b:v1: 1h\nexample.com/c:v1:\n")
    assert [(each.name, each.ttl) for each in found.functions.values()] == [
        ("example.com/a:v1", 1800),
        ("example.com/b:v1", 3600),
        ("example.com/c:v1", None),
    ]
