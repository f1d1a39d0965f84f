"""Flags and environment into settings."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from krm_runner.core.duration import duration
from krm_runner.core.errors import ConfigurationError
from krm_runner.settings import SERVE_FLAGS, Settings, StandbySettings, parse_settings
from krm_runner.settings.go_flags import render_help
from krm_runner.telemetry.exporters import Sampler

POD_ENVIRONMENT = {"WRAPPER_SERVER_IMAGE": "example.com/wrapper:v1"}
ROOT = Path(__file__).parent.parent.parent

CONTRACT_DEFAULTS = {
    "port": "9445",
    "disable-runtimes": "",
    "log-level": "2",
    "functions": "./functions",
    "config": "./config.yaml",
    "pod-cache-config": "/pod-cache-config/pod-cache-config.yaml",
    "warm-up-pod-cache": "true",
    "pod-namespace": "porch-fn-system",
    "pod-ttl": "30m",
    "scan-interval": "1m",
    "function-pod-template": "",
    "max-request-body-size": "6291456",
    "max-waitlist-length": "2",
    "max-parallel-pods-per-function": "1",
    "enable-private-registries": "false",
    "registry-auth-secret-path": "/var/tmp/config-secret/.dockerconfigjson",
    "registry-auth-secret-name": "auth-secret",
    "enable-private-registries-tls": "false",
    "tls-secret-path": "/var/tmp/tls-secret/",
    "default-image-prefix": "ghcr.io/kptdev/krm-functions-catalog",
}


def settings(*argv: str, **environment: str) -> Settings:
    return parse_settings(argv, POD_ENVIRONMENT | environment)


def test_every_flag_of_porch_is_there_with_its_default() -> None:
    ours = {flag.name: flag.default for flag in SERVE_FLAGS}
    assert {name: ours.get(name) for name in CONTRACT_DEFAULTS} == CONTRACT_DEFAULTS


def test_defaults() -> None:
    found = settings()
    assert (found.server.port, found.server.max_message_bytes) == (9445, 6291456)
    assert found.exec is not None
    assert (found.exec.config_is_required, found.exec.max_waiting) == (False, 1000)
    assert found.exec.standby == StandbySettings(default=0, max_age=300.0, idle=600.0)
    assert found.pod is not None
    assert (found.pod.ttl, found.pod.scan_interval, found.pod.warm_up) == (1800.0, 60.0, True)
    assert not found.registries.enabled
    assert (found.exporters.metrics, found.exporters.traces) == ("none", "none")


def test_go_syntax() -> None:
    found = settings(
        "--port", "1", "--log-level=5", "--enable-private-registries", "--warm-up-pod-cache=false", "--pod-ttl=1h30m",
        "--scan-interval", "90s", "--config=x", "--port=2", "--enable-private-registries-tls=T",
    )  # fmt: skip
    assert (found.server.port, found.log.level) == (2, 5)
    assert (found.registries.enabled, found.registries.tls_enabled) == (True, True)
    assert found.pod is not None
    assert (found.pod.warm_up, found.pod.ttl, found.pod.scan_interval) == (False, 5400.0, 90.0)
    assert found.exec is not None
    assert found.exec.config_is_required


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0), ("30m", 1800), ("1h30m", 5400), ("1.5s", 1.5), ("100ms", 0.1), ("1h0m1s", 3601), (".5m", 30)],
)
def test_durations(text: str, seconds: float) -> None:
    assert duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("disabled", ["exec", "pod", "exec,pod", "pod, exec", ""])
def test_runtimes_can_be_disabled(disabled: str) -> None:
    found = settings(f"--disable-runtimes={disabled}")
    assert (found.exec is None) == ("exec" in disabled)
    assert (found.pod is None) == ("pod" in disabled)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--prot=1"], "unknown flag --prot; did you mean --port?"),
        (["--xyzzy"], "unknown flag --xyzzy; --help lists them all"),
        (["serve"], 'unexpected argument "serve"'),
        (["-port=1"], 'unexpected argument "-port=1"'),
        (["--"], 'unexpected argument "--"'),
        (["--port"], "--port needs a value"),
        (["--port=x"], 'invalid value "x" for --port: it takes a whole number from 0 to 65535'),
        (["--port=70000"], 'invalid value "70000" for --port'),
        (["--port="], 'invalid value "" for --port'),
        (["--pod-ttl=30"], 'invalid value "30" for --pod-ttl: it takes a duration such as 30m'),
        (["--pod-ttl=-5m"], 'invalid value "-5m" for --pod-ttl'),
        (["--pod-ttl=0"], "it takes a duration longer than zero"),
        (["--warm-up-pod-cache=maybe"], "it takes true or false"),
        (["--warm-up-pod-cache", "false"], 'unexpected argument "false"'),
        (["--standby=9"], 'invalid value "9" for --standby: it takes a whole number from 0 to 8'),
        (["--standby-max-age=0s"], 'invalid value "0s" for --standby-max-age: it takes a duration longer than zero'),
        (["--front="], 'invalid value "" for --front: it takes auto, off or the path of krm-front'),
        (
            ["--front=off", "--tls-cert-file=a", "--tls-key-file=b"],
            "--front=off cannot be used with --tls-cert-file: only krm-front serves that",
        ),
        (["--front=off", "--auth-token-file=t"], "--front=off cannot be used with --auth-token-file"),
        (["--front=off", "--health-port=1"], "--front=off cannot be used with --health-port"),
        (["--log-level=6"], "it takes a whole number from 0 to 5"),
        (["--log-format=xml"], "it takes one of text, json"),
        (["--disable-runtimes=docker"], "it takes runtimes separated by commas, of exec, pod"),
        (["--max-request-body-size=5"], "it takes a whole number from 1024"),
        (["--shutdown-delay=30s"], "--shutdown-delay must not be longer than --shutdown-timeout"),
        (["--pod-start-timeout=0"], "it takes a duration longer than zero"),
        (["--pod-address=dns"], "it takes one of service-name, cluster-ip, pod-ip"),
        (["--retry-lost-calls=twice"], "it takes true or false"),
        (["--pod-namespace="], 'invalid value "" for --pod-namespace: it takes a Kubernetes name'),
        (["--pod-namespace=a.b"], "it takes a Kubernetes name: lower-case letters, digits and -, at most 63 of them"),
        (["--pod-namespace=-a"], 'invalid value "-a" for --pod-namespace'),
        (["--pod-namespace=" + "a" * 64], "at most 63 of them"),
        (["--pod-namespace=a\n"], r'invalid value "a\n" for --pod-namespace'),
        (["--function-pod-template=A"], "lower-case letters, digits, dots and -, at most 253 of them"),
        (["--function-pod-template=ns/name"], 'invalid value "ns/name" for --function-pod-template'),
        (["--function-pod-template=a..b"], 'invalid value "a..b" for --function-pod-template'),
        (["--wrapper-delivery=by-hand"], "it takes one of init-container, image-volume"),
        (["--wrapper-delivery=image-volume", "--function-pod-template=a"], "--wrapper-delivery=image-volume is for"),
        (["--image-tag-ttl=soon"], 'invalid value "soon" for --image-tag-ttl'),
        (["--image-platform=Linux"], "it takes a platform such as linux/amd64 or linux/arm/v7"),
        (["--image-platform=a/b/c/d"], "it takes a platform such as"),
        (["--registry-timeout=0"], "it takes a duration longer than zero"),
        (["--plain-http-registries=http://registry.lan"], "it takes hosts separated by commas"),
        (["--default-image-prefix=Not A Prefix"], 'invalid value "Not A Prefix" for --default-image-prefix'),
    ],
)
def test_what_is_wrong_is_one_clear_line(argv: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        settings(*argv)
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_pod_runtime_needs_the_wrapper_image() -> None:
    with pytest.raises(ConfigurationError, match="WRAPPER_SERVER_IMAGE"):
        parse_settings([], {})
    assert parse_settings(["--disable-runtimes=pod"], {}).pod is None


@pytest.mark.parametrize("image", ["Wrapper:v1", "wrapper v1", "http://x/wrapper", "x/wrapper@sha256:12", "\n"])
def test_the_wrapper_image_is_an_image(image: str) -> None:
    with pytest.raises(ConfigurationError, match="for WRAPPER_SERVER_IMAGE: ") as refusal:
        settings(WRAPPER_SERVER_IMAGE=image)
    assert json.dumps(image) in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_the_pod_runtime() -> None:
    found = settings().pod
    assert found is not None
    assert (found.start_timeout, found.address, found.max_calls) == (60.0, "service-name", 1000)
    assert (found.retry_lost_calls, found.wait_for_warm_up, found.template_config_map) == (True, False, "")
    assert found.wrapper_delivery == "init-container"
    found = settings(
        "--pod-start-timeout=2m", "--pod-address=pod-ip", "--retry-lost-calls=false", "--wait-for-warm-up",
        "--max-queue-length=7", "--pod-namespace=0-a", "--function-pod-template=a.b-c.1",
    ).pod  # fmt: skip
    assert found is not None
    assert (found.start_timeout, found.address, found.max_calls) == (120.0, "pod-ip", 7)
    assert (found.retry_lost_calls, found.wait_for_warm_up) == (False, True)
    assert (found.namespace, found.template_config_map) == ("0-a", "a.b-c.1")


@pytest.mark.parametrize(
    "flag", ["--announce-address=10.0.0.7:9448", "--wrapper-file=/packed", "--wrapper-delivery=config-map"]
)
def test_a_retired_flag_is_accepted_with_what_to_use_instead(flag: str) -> None:
    found = settings(flag, "--function-pod-template=a")
    assert found.pod is not None
    assert found.pod.wrapper_delivery == "init-container"
    ((name, instead),) = found.retired.items()
    assert flag.startswith(f"--{name}")
    assert "--spare-pods" in instead


def test_without_a_warm_up_nobody_waits_for_it() -> None:
    found = settings("--wait-for-warm-up", "--warm-up-pod-cache=false").pod
    assert found is not None
    assert not found.wait_for_warm_up


def test_the_front() -> None:
    assert settings().server.front == "auto"
    assert settings("--front=off").server.front == "off"
    assert settings("--front", "/opt/krm-front").server.front == Path("/opt/krm-front")
    assert settings("--log-level=5").needs_front == ""
    assert settings("--tls-cert-file=a", "--tls-key-file=b").needs_front == "--tls-cert-file"
    assert settings("--auth-token-file=t").needs_front == "--auth-token-file"
    assert settings("--health-port=1").needs_front == "--health-port"


def test_images_and_registries() -> None:
    found = settings().registries
    assert (found.tag_ttl, found.timeout, found.platform, found.image_map) == (600.0, 30.0, None, None)
    assert found.plain_http == frozenset()
    found = settings(
        "--image-tag-ttl=0", "--image-platform=arm64", "--image-map=map.yaml",
        "--plain-http-registries=Registry.lan:5000, 10.0.0.7,[fd00::1]:80",
    ).registries  # fmt: skip
    assert (found.tag_ttl, str(found.platform), found.image_map) == (0.0, "linux/arm64", Path("map.yaml"))
    assert found.plain_http == {"registry.lan:5000", "10.0.0.7", "fd00::1:80"}


def test_exporters() -> None:
    found = settings(
        OTEL_METRICS_EXPORTER="prometheus",
        OTEL_EXPORTER_PROMETHEUS_HOST="0.0.0.0",
        OTEL_EXPORTER_PROMETHEUS_PORT="9999",
        OTEL_TRACES_EXPORTER="otlp",
    ).exporters
    assert (found.metrics, found.prometheus_host, found.prometheus_port) == ("prometheus", "0.0.0.0", 9999)
    assert found.traces == "otlp"
    for name, argument, expected in (
        ("", "", Sampler(follows_caller=True, share=1)),
        ("always_off", "0.5", Sampler(follows_caller=False, share=0)),
        ("traceidratio", "0.5", Sampler(follows_caller=False, share=0.5)),
        ("parentbased_traceidratio", "", Sampler(follows_caller=True, share=1)),
    ):
        traced = settings(OTEL_TRACES_EXPORTER="otlp", OTEL_TRACES_SAMPLER=name, OTEL_TRACES_SAMPLER_ARG=argument)
        assert traced.exporters.sampler == expected
    assert settings(OTEL_TRACES_SAMPLER="unknown").exporters.traces == "none", "it is not read without traces"
    assert settings(OTEL_SDK_DISABLED="true", OTEL_TRACES_EXPORTER="otlp").exporters.traces == "none"
    for name, value in (
        ("OTEL_METRICS_EXPORTER", "statsd"),
        ("OTEL_TRACES_EXPORTER", "zipkin"),
        ("OTEL_EXPORTER_PROMETHEUS_PORT", "http"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "smoke"),
        ("OTEL_TRACES_SAMPLER", "dice"),
        ("OTEL_TRACES_SAMPLER_ARG", "nan"),
    ):
        with pytest.raises(ConfigurationError, match=f'invalid value "{value}" for {name}'):
            settings(**({"OTEL_TRACES_EXPORTER": "otlp", "OTEL_TRACES_SAMPLER": "traceidratio"} | {name: value}))


def test_help_has_every_flag_on_one_line_in_the_groups_of_the_specification() -> None:
    text = render_help(SERVE_FLAGS)
    assert re.findall(r"^(\S.*):$", text, re.MULTILINE) == [
        "Generic", "Exec runtime", "Pod runtime", "Private registries", "Images",
        "Transport security",
    ]  # fmt: skip
    for flag in SERVE_FLAGS:
        assert len(re.findall(rf"^  --{flag.name} .*\S", text, re.MULTILINE)) == 1
    assert max(map(len, text.splitlines())) <= 120


def test_the_documentation_has_every_flag_with_its_default() -> None:
    documented = dict(re.findall(r"^\| `--([a-z-]+)` \| (.*?) \|", (ROOT / "docs/configuration.md").read_text(), re.M))
    assert documented == {flag.name: f"`{flag.default}`" if flag.default else "empty" for flag in SERVE_FLAGS}
