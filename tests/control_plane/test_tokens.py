"""Tokens of pods from end to end: who has the key uses a pod, who has not makes one of its own."""

from __future__ import annotations

import asyncio
from pathlib import Path

from control_plane import local_images
from control_plane.site import PlayedSite
from krm_runner.core.pod_token import TOKEN_VARIABLE
from support.calls import served, wish
from support.client import Client
from support.kube import Json
from support.push import Push
from support.runner import RunnerProcess
from support.site import WRAPPER_PORT

A, B = "a" * 40, "b" * 40


def token(pod: Json) -> str:
    variables: list[Json] = pod["spec"]["containers"][0].get("env", [])
    return next((str(each["value"]) for each in variables if each["name"] == TOKEN_VARIABLE), "")


async def pod_of(runner: RunnerProcess, image: str) -> str:
    """The name of the pod that serves a call of this runner."""
    async with Client(runner.address) as client:
        return served(await client.evaluate(image, wish())).pod


async def test_runners_with_the_key_share_a_pod_and_those_without_make_their_own(
    site: PlayedSite, push: Push, tmp_path: Path
) -> None:
    image = push("obliging", local_images.obliging())
    keys = tmp_path / "keys"
    flag = f"--pod-token-key-file={keys}"
    keys.write_text(A)
    first = site.runner(flag)
    made = await pod_of(first, image)
    pod = site.only_pod()
    assert len(token(pod)) == 43
    assert "krm-runner/token-nonce" in pod["metadata"]["annotations"]

    # A port that anybody can reach, and a token that not everybody knows.
    async with Client(f"{pod['status']['podIP']}:{WRAPPER_PORT}") as neighbor:
        assert (await neighbor.evaluate(image, wish())).code == "UNAUTHENTICATED"

    # A second runner adopts it, also one that has another key first; the first follows its file, and keeps the pod.
    keys.write_text(f"{B}\n{A}")
    second = site.runner(flag)
    assert await pod_of(second, image) == made
    first.wait_for_line("files read again")
    assert await pod_of(first, image) == made
    assert len(site.pods()) == 1

    # When the key is gone the pod is of no use any more: another one is made with the new key.
    keys.write_text(B)
    async with asyncio.timeout(60):
        while (renewed := await pod_of(first, image)) == made:
            await asyncio.sleep(0.1)
        # The second one reads the file in its own time.
        while await pod_of(second, image) != renewed:
            await asyncio.sleep(0.1)
    assert token(site.functions.pod(renewed)) not in ("", token(pod))

    # Without a key: a pod of its own, with no token.
    plain = await pod_of(site.runner(), image)
    assert plain not in (made, renewed)
    assert token(site.functions.pod(plain)) == ""
    lines = [line for runner in site.runners for line in runner.lines]
    secrets = (A, B, token(pod), token(site.functions.pod(renewed)))
    assert not [line for line in lines for secret in secrets if secret in line]
