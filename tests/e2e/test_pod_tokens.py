"""Tokens of pods from end to end: runners, a real API server, real wrapper servers; the test is the kubelet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest
import yaml

from e2e.test_launcher import Place, new_place
from krm_runner.core.json_object import JsonObject, as_list, as_object, as_text
from krm_runner.core.pod_token import TOKEN_VARIABLE
from krm_runner.kube.client import KubeClient
from support.client import Answer, Client
from support.relay import Relay
from support.runner import RunnerProcess, write_function
from support.wrapper import WrapperProcess, built_wrapper

IMAGE = "example.com/copy:v1"
DIGEST = "sha256:" + "a1" * 32
LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
WRAPPER_PORT = 9446
A, B = "a" * 40, "b" * 40


class Kubelet:
    """Runs the function container of each new pod, here; one pod at a time, since all have the same port."""

    def __init__(self, place: Place, function: Path) -> None:
        self._place = place
        self._function = function
        self._running: dict[str, WrapperProcess] = {}
        self.started: list[JsonObject] = []
        """Pods as they were created."""

    @asynccontextmanager
    async def at_work(self) -> AsyncGenerator[Kubelet]:
        task = asyncio.create_task(self._work())
        try:
            yield self
        finally:
            task.cancel()
            for wrapper in self._running.values():
                await asyncio.to_thread(wrapper.__exit__, None, None, None)

    async def _work(self) -> None:
        while True:
            found = as_list((await self._place.client.get(self._place.path("pods"))).get("items"))
            pods = {as_text(as_object(as_object(pod)["metadata"])["uid"]): as_object(pod) for pod in found}
            new = [uid for uid in pods if uid not in self._running]
            if new:
                for uid, wrapper in list(self._running.items()):
                    await asyncio.to_thread(wrapper.__exit__, None, None, None)
                    if uid in pods:
                        await self._end(pods[uid])
                await self._start(new[0], pods[new[0]])
            await asyncio.sleep(0.05)

    async def _start(self, uid: str, pod: JsonObject) -> None:
        container = as_object(as_list(as_object(pod["spec"])["containers"])[0])
        environment = {
            as_text(as_object(entry)["name"]): as_text(as_object(entry)["value"])
            for entry in as_list(container.get("env"))
        }
        self._running[uid] = await asyncio.to_thread(
            WrapperProcess, "--", str(self._function), environment=environment, port=WRAPPER_PORT
        )
        self.started.append(pod)
        name = as_text(as_object(pod["metadata"])["name"])
        status = {
            "phase": "Running",
            "podIP": "127.0.0.1",
            "podIPs": [{"ip": "127.0.0.1"}],
            "conditions": [{"type": kind, "status": "True"} for kind in ("PodScheduled", "Initialized")],
        }
        await self._place.client.patch(self._place.path("pods", name) + "/status", {"status": status})

    async def _end(self, pod: JsonObject) -> None:
        name = as_text(as_object(pod["metadata"])["name"])
        options: JsonObject = {"apiVersion": "v1", "kind": "DeleteOptions", "gracePeriodSeconds": 0}
        await self._place.client.delete(self._place.path("pods", name), options)


@pytest.fixture
async def place(client: KubeClient) -> Place:
    return await new_place(client)


class Runners:
    """Of one place, all with the same image map."""

    def __init__(self, place: Place, directory: Path, stack: AsyncExitStack) -> None:
        self._place, self._directory, self._stack = place, directory, stack
        self._image_map = directory / "images.yaml"
        entry = {"image": IMAGE, "digest": DIGEST, "entrypoint": ["/function"]}
        self._image_map.write_text(yaml.safe_dump({"images": [entry]}))

    def start(self, *flags: str) -> RunnerProcess:
        runner = RunnerProcess(
            f"--pod-namespace={self._place.namespace}", f"--image-map={self._image_map}", "--pod-address=pod-ip",
            "--warm-up-pod-cache=false", "--shutdown-delay=0s", *flags, without="exec",
            environment={"WRAPPER_SERVER_IMAGE": "example.com/wrapper:v1"},
        )  # fmt: skip
        return self._stack.enter_context(runner)

    def keys(self, *keys: str) -> str:
        path = self._directory / "keys"
        path.write_text("\n".join(keys))
        return f"--pod-token-key-file={path}"


async def call(runner: RunnerProcess) -> Answer:
    async with Client(runner.address) as client:
        return await client.evaluate(IMAGE, LIST)


def uid(pod: JsonObject) -> str:
    return as_text(as_object(pod["metadata"])["uid"])


def token(pod: JsonObject) -> str:
    container = as_object(as_list(as_object(pod["spec"])["containers"])[0])
    entries = [as_object(entry) for entry in as_list(container.get("env"))]
    return next((as_text(entry["value"]) for entry in entries if entry["name"] == TOKEN_VARIABLE), "")


async def test_runners_with_the_key_share_a_pod_and_those_without_make_their_own(
    relay: Relay, place: Place, tmp_path: Path
) -> None:
    built_wrapper()
    function = write_function(tmp_path, "function", "#!/bin/sh\nexec cat\n")
    async with AsyncExitStack() as stack:
        kubelet = await stack.enter_async_context(Kubelet(place, function).at_work())
        runners = Runners(place, tmp_path, stack)
        first = await asyncio.to_thread(runners.start, runners.keys(A))
        assert (await call(first)).resource_list == LIST
        (pod,) = kubelet.started
        assert len(token(pod)) == 43
        assert "krm-runner/token-nonce" in str(pod)

        # A port that anybody can reach, and a token that not everybody knows.
        async with Client(f"127.0.0.1:{WRAPPER_PORT}") as neighbour:
            assert (await neighbour.evaluate(IMAGE, LIST)).code == "UNAUTHENTICATED"

        # A second one adopts it, and so does one that has another key first.
        second = await asyncio.to_thread(runners.start, runners.keys(B, A))
        assert (await call(second)).resource_list == LIST
        assert list(map(uid, kubelet.started)) == [uid(pod)]

        # The first one follows its file, and goes on with the pod.
        first.wait_for_line("files read again")
        assert (await call(first)).resource_list == LIST
        assert list(map(uid, kubelet.started)) == [uid(pod)]

        # When the key is gone the pod is of no use any more; another one is made with the new key.
        runners.keys(B)
        second.wait_for_line("(files read again.*\n?)")
        async with asyncio.timeout(60):
            while len(kubelet.started) < 2:
                assert (await call(first)).code == "OK"
                await asyncio.sleep(0.1)
        assert token(kubelet.started[1]) not in ("", token(pod))
        assert (await call(second)).resource_list == LIST

        # Without a key: a pod of its own, with no token.
        plain = await asyncio.to_thread(runners.start)
        assert (await call(plain)).resource_list == LIST
        assert token(kubelet.started[2]) == ""
        assert TOKEN_VARIABLE not in str(kubelet.started[2])
        shown = [line for runner in (first, second, plain) for line in runner.lines]
        assert not [line for line in shown for pod in kubelet.started[:2] if token(pod) in line]
        assert not [line for line in shown if A in line or B in line]
