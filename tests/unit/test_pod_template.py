"""Templates: the specification's example, letter by letter, the contract's refusals, and what is built in."""

from __future__ import annotations

import copy

import pytest

from krm_runner.core.errors import ConfigurationError
from krm_runner.core.json_object import JsonObject, as_list, as_object
from krm_runner.core.pod_template import PodTemplate, built_in_template, template_of
from krm_runner.core.wrapper_delivery import ImageVolume, InitContainer, WrapperDelivery

SEED_POD = """\
apiVersion: v1
kind: Pod
annotations:
  cluster-autoscaler.kubernetes.io/safe-to-evict: true
spec:
  initContainers:
    - name: copy-wrapper-server
      image: docker.io/nephio/porch-wrapper-server:latest
      command: 
        - cp
        - -a
        - /wrapper-server/.
        - /wrapper-server-tools
      volumeMounts:
        - name: wrapper-server-tools
          mountPath: /wrapper-server-tools
  containers:
    - name: function
      image: image-replaced-by-kpt-func-image
      command: 
        - /wrapper-server-tools/wrapper-server
      volumeMounts:
        - name: wrapper-server-tools
          mountPath: /wrapper-server-tools
  volumes:
    - name: wrapper-server-tools
      emptyDir: {}
"""  # noqa: W291 - letter by letter
SEED_SERVICE = """\
apiVersion: v1
kind: Service
spec:
  ports:
  - port: 9446
    protocol: TCP
    targetPort: 9446
  selector:
    fn.kpt.dev/image: to-be-replaced
  type: ClusterIP
"""
MINIMAL = "apiVersion: v1\nkind: Pod\nspec: {containers: [{name: function, command: [/w/wrapper-server]}]}\n"


def config_map(pod: str = SEED_POD, service: str | None = SEED_SERVICE) -> JsonObject:
    data = {"template": pod} | ({} if service is None else {"serviceTemplate": service})
    return {"metadata": {"name": "kpt-function-eval-pod-template", "resourceVersion": "4711"}, "data": data}


def seed_template() -> PodTemplate:
    return template_of(config_map())


def test_the_specifications_example_is_taken_as_it_is() -> None:
    template = seed_template()
    mount = {"name": "wrapper-server-tools", "mountPath": "/wrapper-server-tools"}
    assert template.version == "4711"
    assert template.pod == {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"labels": {}, "annotations": {"cluster-autoscaler.kubernetes.io/safe-to-evict": "true"}},
        "spec": {
            "initContainers": [
                {
                    "name": "copy-wrapper-server",
                    "image": "docker.io/nephio/porch-wrapper-server:latest",
                    "command": ["cp", "-a", "/wrapper-server/.", "/wrapper-server-tools"],
                    "volumeMounts": [mount],
                }
            ],
            "containers": [
                {
                    "name": "function",
                    "image": "image-replaced-by-kpt-func-image",
                    "command": ["/wrapper-server-tools/wrapper-server"],
                    "volumeMounts": [mount],
                }
            ],
            "volumes": [{"name": "wrapper-server-tools", "emptyDir": {}}],
        },
    }
    assert template.service["spec"] == {
        "ports": [{"port": 9446, "protocol": "TCP", "targetPort": 9446}],
        "selector": {"fn.kpt.dev/image": "to-be-replaced"},
        "type": "ClusterIP",
    }
    assert template.warnings == (
        'ConfigMap "kpt-function-eval-pod-template", template: annotations belong into metadata; '
        "they are taken as if they were there",
    )


def test_labels_and_annotations_become_text_and_what_a_server_sets_goes() -> None:
    metadata = (
        "metadata: {name: x, namespace: y, uid: z, resourceVersion: 7, finalizers: [a.b/c], "
        "labels: {n: 1, b: false, e: }, annotations: {x: 1.5, a: mine}}\n"
    )
    template = template_of(
        config_map(MINIMAL + metadata + "annotations: {a: theirs, o: on}\nstatus: {phase: Running}\n")
    )
    assert template.pod["metadata"] == {
        "finalizers": ["a.b/c"],
        "labels": {"n": "1", "b": "false", "e": ""},
        "annotations": {"a": "mine", "o": "true", "x": "1.5"},
    }
    assert "status" not in template.pod


def test_an_unknown_field_is_a_warning() -> None:
    template = template_of(config_map(MINIMAL + "spce: {}\n"))
    assert template.warnings == (
        'ConfigMap "kpt-function-eval-pod-template", template: "spce" is no field of a Pod and is ignored',
    )


def test_a_template_from_before_there_were_services_gets_the_built_in_one() -> None:
    built_in = built_in_template(delivery=InitContainer("w"), max_message_bytes=1)
    assert template_of(config_map(service=None)).service == built_in.service
    assert template_of(config_map(service="\n")).service == built_in.service


@pytest.mark.parametrize(
    ("pod", "why"),
    [
        ("", 'it has no key "template" with a Pod'),
        ("a: [", "template: not valid YAML"),
        ("just text", "the Pod must say apiVersion: v1 and kind: Pod"),
        (MINIMAL.replace("Pod", "PodTemplate"), "the Pod must say apiVersion: v1 and kind: Pod"),
        (MINIMAL.replace("name: function", "name: fn"), 'must have one container named "function"; it has fn'),
        (MINIMAL.replace("name: function, ", ""), 'named "function"; it has one without a name'),
        ("apiVersion: v1\nkind: Pod\nspec: {}", 'must have one container named "function"; it has no containers'),
        ("apiVersion: v1\nkind: Pod\nspec: {containers: x}", "it has no containers"),
        (MINIMAL.replace("[{", "[{name: function, command: [x]}, {"), 'the Pod has 2 containers named "function"'),
        (MINIMAL.replace("[/w/wrapper-server]", "[]"), 'container "function" must have a command that starts'),
        (MINIMAL.replace("[/w/wrapper-server]", "/w/wrapper-server"), 'container "function" must have a command'),
        (MINIMAL.replace(", command: [/w/wrapper-server]", ""), 'container "function" must have a command'),
        (MINIMAL.replace("server]}", "server], args: [1]}"), 'container "function": args must be a list of texts'),
        (MINIMAL.replace("server]}", "server], args: ['--', x]}"), 'args must not have "--"'),
        (MINIMAL + "metadata: {labels: [x]}", "the Pod's metadata.labels must be a mapping"),
        (MINIMAL + "metadata: {labels: {x: []}}", "the Pod's metadata.labels: x must be text"),
        (MINIMAL + "annotations: text", "the Pod's annotations must be a mapping"),
    ],
)
def test_a_pod_that_breaks_the_contract_is_refused_with_the_reason(pod: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        template_of(config_map(pod))
    assert why in str(refusal.value)
    assert str(refusal.value).startswith('ConfigMap "kpt-function-eval-pod-template"')
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("service", "why"),
    [
        (SEED_SERVICE.replace("Service", "Pod"), "the Service must say apiVersion: v1 and kind: Service"),
        (SEED_SERVICE.replace("port: 9446", "port: 80"), "the Service must have the port 9446"),
        (SEED_SERVICE.replace("TCP", "UDP"), "the Service must have the port 9446"),
        (SEED_SERVICE.replace("ClusterIP", "ExternalName"), "the Service must be of type ClusterIP"),
        (SEED_SERVICE.replace("\n    fn.kpt.dev/image: to-be-replaced", " x"), "selector must be a mapping"),
        ("x: [", "serviceTemplate: not valid YAML"),
    ],
)
def test_a_service_that_breaks_the_contract_is_refused_with_the_reason(service: str, why: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        template_of(config_map(service=service))
    assert why in str(refusal.value)


def test_all_that_is_wrong_is_said_at_once() -> None:
    with pytest.raises(ConfigurationError, match=r"containers.*; the Service must have the port"):
        template_of(config_map("apiVersion: v1\nkind: Pod", "apiVersion: v1\nkind: Service"))


@pytest.mark.parametrize("broken", [{}, {"metadata": {"name": "x"}}, {"metadata": {"resourceVersion": "1"}, "data": 1}])
def test_no_template_at_all(broken: JsonObject) -> None:
    with pytest.raises(ConfigurationError, match="it has no"):
        template_of(broken)


def built_in(wrapper_image: str = "example.com/wrapper:v1", max_message_bytes: int = 6291456) -> PodTemplate:
    return built_in_template(delivery=InitContainer(wrapper_image), max_message_bytes=max_message_bytes)


DELIVERIES: tuple[WrapperDelivery, ...] = (
    InitContainer("example.com/wrapper:v1"),
    ImageVolume("example.com/wrapper:v1"),
)


def delivered(delivery: WrapperDelivery) -> PodTemplate:
    return built_in_template(delivery=delivery, max_message_bytes=6291456)


def test_the_built_in_version_changes_with_what_goes_into_a_pod_and_with_nothing_else() -> None:
    versions = {
        built_in("example.com/wrapper:v2").version,
        built_in(max_message_bytes=1024).version,
        *(delivered(delivery).version for delivery in DELIVERIES),
        delivered(ImageVolume("example.com/wrapper:v2")).version,
    }
    assert len(versions) == 5
    assert built_in() == built_in() == delivered(DELIVERIES[0])


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_the_built_in_template_is_valid_by_its_own_contract(delivery: WrapperDelivery) -> None:
    template = delivered(delivery)
    manifests = {"template": template.pod, "serviceTemplate": template.service}
    as_yaml = {key: repr(value).replace("True", "true").replace("False", "false") for key, value in manifests.items()}
    read = template_of({"metadata": {"name": "x", "resourceVersion": "1"}, "data": as_yaml})
    assert (read.pod, read.service, read.warnings) == (template.pod, template.service, ())


@pytest.mark.parametrize("delivery", DELIVERIES)
def test_the_built_in_template_meets_pod_security_restricted(delivery: WrapperDelivery) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/, every control of "restricted"."""
    spec = as_object(delivered(delivery).pod["spec"])
    pod_security = as_object(spec["securityContext"])
    assert pod_security["runAsNonRoot"] is True
    assert (pod_security["runAsUser"], pod_security["seccompProfile"]) == (65532, {"type": "RuntimeDefault"})
    assert not {"hostNetwork", "hostPID", "hostIPC"} & spec.keys()
    assert all(as_object(volume).keys() & {"emptyDir", "projected", "image"} for volume in as_list(spec["volumes"]))
    for container in map(as_object, [*as_list(spec["initContainers"]), *as_list(spec["containers"])]):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert not any("hostPort" in as_object(port) for port in as_list(container.get("ports")))


def test_the_built_in_pod_gets_nothing_that_a_function_does_not_need() -> None:
    spec = as_object(built_in().pod["spec"])
    assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
    function = as_object(as_list(spec["containers"])[0])
    writable = [mount for mount in map(as_object, as_list(function["volumeMounts"])) if not mount.get("readOnly")]
    assert writable == [{"name": "tmp", "mountPath": "/tmp"}]
    assert "env" not in function
    assert function["readinessProbe"] == {
        "exec": {"command": ["/wrapper-server-tools/grpc-health-probe", "-addr", "localhost:9446"]},
        "periodSeconds": 10,
        "timeoutSeconds": 5,
    }
    init = as_object(as_list(spec["initContainers"])[0])
    assert (init["name"], init["image"]) == ("copy-wrapper-server", "example.com/wrapper:v1")
    assert init["command"] == ["cp", "-a", "/wrapper-server/.", "/wrapper-server-tools"]


def tools_of(delivery: WrapperDelivery) -> tuple[JsonObject, JsonObject, JsonObject]:
    """The function's container, and how the wrapper's volume is made and mounted."""
    spec = as_object(delivered(delivery).pod["spec"])
    function = as_object(as_list(spec["containers"])[0])
    named = {"name": "wrapper-server-tools"}.items()
    (volume,) = [found for found in map(as_object, as_list(spec["volumes"])) if named <= found.items()]
    (mount,) = [found for found in map(as_object, as_list(function["volumeMounts"])) if named <= found.items()]
    assert function["command"] == ["/wrapper-server-tools/wrapper-server"]
    return function, volume, mount


@pytest.mark.parametrize("delivery", DELIVERIES[1:])
def test_without_an_init_container_the_kubelet_asks_the_wrapper_itself(delivery: WrapperDelivery) -> None:
    assert as_object(delivered(delivery).pod["spec"])["initContainers"] == []
    function, _, mount = tools_of(delivery)
    assert function["readinessProbe"] == {"grpc": {"port": 9446}, "periodSeconds": 10, "timeoutSeconds": 5}
    assert (mount["mountPath"], mount["readOnly"]) == ("/wrapper-server-tools", True)


def test_the_image_is_mounted_by_its_folder() -> None:
    _, volume, mount = tools_of(DELIVERIES[1])
    assert volume["image"] == {"reference": "example.com/wrapper:v1", "pullPolicy": "IfNotPresent"}
    assert mount["subPath"] == "wrapper-server"


def test_the_built_in_service_leads_to_pods_that_are_not_ready_yet() -> None:
    spec = as_object(built_in().service["spec"])
    assert (spec["type"], spec["publishNotReadyAddresses"]) == ("ClusterIP", True)
    assert spec["ports"] == [{"name": "grpc", "port": 9446, "targetPort": 9446, "protocol": "TCP"}]


def test_built_in_templates_share_nothing() -> None:
    one, other = built_in(), built_in()
    untouched = copy.deepcopy(other)
    as_object(one.pod["spec"]).clear()
    as_object(one.service["metadata"]).clear()
    assert other == untouched
