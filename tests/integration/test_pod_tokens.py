"""Tokens of pods with real wrapper servers: what a pod is told, what it wants to be shown, what its function sees."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckResponse

from integration.test_wrapper_channel import COPY, IMAGE, LIMIT, LIST, POD, request
from krm_runner.core import image_ref
from krm_runner.core.errors import PodLostError
from krm_runner.core.image_metadata import ImageMetadata
from krm_runner.core.json_object import as_list, as_object, as_text
from krm_runner.core.pod_facts import PodFacts, facts_of
from krm_runner.core.pod_manifest import FunctionPod, render
from krm_runner.core.pod_template import built_in_template
from krm_runner.core.secret import Secret
from krm_runner.core.wrapper_delivery import InitContainer
from krm_runner.pods.pod_tokens import PodTokens
from krm_runner.rpc.wrapper_channel import Target, WrapperChannel
from support.client import Client, check_health
from support.runner import write_function
from support.wrapper import WrapperProcess

DIGEST = "sha256:" + "a1" * 32
SHOW = "#!/bin/sh\nenv >&2\nexec cat\n"
KEY, OTHER = "k" * 40, "o" * 40

Token = Callable[[PodFacts], Secret | None]


class Pod:
    """As a runner with that key would make it, and as the kubelet would start it."""

    def __init__(self, directory: Path, key: str = KEY) -> None:
        template = built_in_template(delivery=InitContainer("example.com/wrapper:v1"), max_message_bytes=LIMIT)
        template = template.with_tokens(keyring(directory, key).keys.first)
        image = ImageMetadata(image_ref.parse(IMAGE), DIGEST, DIGEST, None, ("function",))
        function = FunctionPod(POD, "fns", image, LIMIT, 1_800_000_000, token_nonce="bm9uY2U")
        made = render(template, function).pod
        facts = facts_of(made)
        assert facts is not None
        self.facts = facts
        entries = map(as_object, as_list(as_object(as_list(as_object(made["spec"])["containers"])[0])["env"]))
        self.environment = {as_text(entry["name"]): as_text(entry["value"]) for entry in entries}


def keyring(directory: Path, *keys: str) -> PodTokens:
    path = directory / "keys"
    path.write_text("\n".join(keys))
    return PodTokens(path)


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


@pytest.fixture
def start(tmp_path: Path, wrapper_server: Path, pod: Pod) -> Iterator[Callable[[str], WrapperProcess]]:
    with ExitStack() as stack:

        def start(script: str) -> WrapperProcess:
            function = write_function(tmp_path, "function", script)
            environment = {**pod.environment, "OTEL_TRACES_EXPORTER": "otlp"}
            wrapper = WrapperProcess("--", str(function), program=str(wrapper_server), environment=environment)
            return stack.enter_context(wrapper)

        yield start


@pytest.fixture
async def dial() -> AsyncIterator[Callable[..., WrapperChannel]]:
    channels: list[WrapperChannel] = []

    def dial(address: str, pod: Pod, token: Token) -> WrapperChannel:
        facts = pod.facts
        channels.append(WrapperChannel(Target(address), pod=POD, message_limit=LIMIT, token=lambda: token(facts)))
        return channels[-1]

    yield dial
    for channel in channels:
        await channel.close("the test is over")


Start = Callable[[str], WrapperProcess]
Dial = Callable[[str, Pod, Token], WrapperChannel]


@pytest.mark.parametrize("keys", [[KEY], [OTHER, KEY]], ids=["the same key", "an older key"])
async def test_a_runner_with_the_key_is_served(
    tmp_path: Path, pod: Pod, start: Start, dial: Dial, keys: list[str]
) -> None:
    channel = dial(start(COPY).address, pod, keyring(tmp_path, *keys).token_of)
    assert await channel.ask_health(timeout=30) == ""
    assert bytes((await channel.evaluate(request())).resource_list) == LIST


async def test_without_the_key_a_pod_is_no_pod_of_ours(tmp_path: Path, pod: Pod, start: Start, dial: Dial) -> None:
    wrapper = start(COPY)
    stranger = dial(wrapper.address, pod, PodTokens().token_of)
    assert await stranger.ask_health(timeout=30) == "", "health is open"
    with pytest.raises(PodLostError, match="it does not accept this runner's token") as raised:
        await stranger.evaluate(request())
    assert not raised.value.reached
    # A token that is wrong is known before the first call: annotations that somebody changed, say.
    changed = Pod(tmp_path)
    changed.facts = replace(changed.facts, token_nonce="another")
    wrong = dial(wrapper.address, changed, keyring(tmp_path, KEY).token_of)
    assert await wrong.ask_health(timeout=30) == "it answers UNAUTHENTICATED: this pod has another token"
    with pytest.raises(PodLostError):
        await wrong.evaluate(request())


async def test_the_channel_asks_for_the_token_every_time(tmp_path: Path, pod: Pod, start: Start, dial: Dial) -> None:
    runner = PodTokens()
    channel = dial(start(COPY).address, pod, lambda facts: runner.token_of(facts))  # noqa: PLW0108 - asked each time
    with pytest.raises(PodLostError):
        await channel.evaluate(request())
    runner = keyring(tmp_path, OTHER, KEY)
    assert bytes((await channel.evaluate(request())).resource_list) == LIST


async def test_other_clients_need_the_token_and_are_told_so(pod: Pod, start: Start) -> None:
    wrapper = start(COPY)
    token = pod.environment["KRM_RUNNER_TOKEN"]
    for shown, message in (
        ("", "the call has no token (this pod has a token)"),
        (token[:-1], "the call's token is not that of this pod"),
    ):
        async with Client(wrapper.address, token=shown) as client:
            answer = await client.evaluate(IMAGE, LIST)
            assert (answer.code, answer.reason) == ("UNAUTHENTICATED", "UNAUTHENTICATED")
            assert message in answer.message
    async with Client(wrapper.address, token=token) as client:
        assert (await client.evaluate(IMAGE, LIST)).code == "OK"
        assert (await check_health(client.channel)).status == HealthCheckResponse.SERVING
    wrapper.wait_for_line("token=wanted")
    wrapper.wait_for_line("event=evaluated.*code=UNAUTHENTICATED")
    assert not [line for line in wrapper.lines if token in line]


async def test_a_request_without_a_token_is_not_read(start: Start) -> None:
    wrapper = start(COPY)
    async with Client(wrapper.address, (("grpc.max_send_message_length", -1),)) as client:
        assert (await client.evaluate(IMAGE, b"x" * 80_000_000)).code == "UNAUTHENTICATED"
    line = wrapper.wait_for_line("event=evaluated.*UNAUTHENTICATED").string
    assert "request_bytes=0" in line


async def test_the_function_is_not_started_with_it(tmp_path: Path, pod: Pod, start: Start) -> None:
    wrapper = start(SHOW)
    async with Client(wrapper.address, token=pod.environment["KRM_RUNNER_TOKEN"]) as client:
        # With a trace the environment is made anew.
        for trace in ((), (("traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"),)):
            client.metadata += trace
            seen = (await client.evaluate(IMAGE, LIST)).log.decode()
            assert "OTEL_TRACES_EXPORTER=otlp" in seen
            assert "KRM_RUNNER_TOKEN" not in seen
    assert ("TRACEPARENT" in seen) is True


@pytest.mark.parametrize("value", ["", "with space", "line\nline"])
def test_a_variable_that_is_no_token_is_one_line_and_exit_code_2(wrapper_server: Path, value: str) -> None:
    done = subprocess.run(
        [wrapper_server, "--port=0", "--", "/bin/cat"],
        env={"KRM_RUNNER_TOKEN": value}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        2,
        "wrapper-server: the variable KRM_RUNNER_TOKEN is set, but to no token\n",
    )


async def test_the_probe_of_templates_needs_no_token(wrapper_server: Path, start: Start) -> None:
    wrapper = start(COPY)
    probe = ["-addr", f"localhost:{wrapper.port}"]
    done = subprocess.run(["grpc-health-probe", *probe], executable=wrapper_server, timeout=60, check=False)
    assert done.returncode == 0
    async with grpc.aio.insecure_channel(wrapper.address) as channel:
        assert (await check_health(channel)).status == HealthCheckResponse.SERVING
