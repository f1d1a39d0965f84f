"""A real wrapper server says that it serves, to whoever its environment names."""

from __future__ import annotations

import asyncio
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from integration.test_wrapper_channel import IMAGE, LIST
from krm_runner.core.announcement import Announcement
from krm_runner.pods.announcements import hear_announcements
from support.client import Client
from support.runner import write_function
from support.server import listens
from support.wrapper import WrapperProcess

ANNOUNCEMENT = Announcement("set-namespace-v041-1-a1a1a1a1", "d29yZCBvZiBhIHN0YXJ0")


class Ear:
    """What a runner heard, and where it listens."""

    def __init__(self) -> None:
        self.address = ""
        self.heard: asyncio.Queue[tuple[Announcement, str]] = asyncio.Queue()


@pytest.fixture
async def ear() -> AsyncIterator[Ear]:
    ear = Ear()
    async with hear_announcements(
        "127.0.0.1", 0, lambda announcement, ip: ear.heard.put_nowait((announcement, ip))
    ) as ear.address:
        yield ear


@pytest.fixture
def show(tmp_path: Path) -> str:
    return str(write_function(tmp_path, "show", "#!/bin/sh\nenv >&2\nexec cat\n"))


def variable(address: str) -> dict[str, str]:
    return {"KRM_RUNNER_ANNOUNCE": ANNOUNCEMENT.variable(address)}


@pytest.mark.usefixtures("wrapper_server")
async def test_it_serves_when_it_says_so(ear: Ear, show: str) -> None:
    wrapper = await asyncio.to_thread(lambda: WrapperProcess("--", show, environment=variable(ear.address)))
    with wrapper:
        async with asyncio.timeout(10):
            assert await ear.heard.get() == (ANNOUNCEMENT, "127.0.0.1")
        assert listens(wrapper.address)
        async with Client(wrapper.address) as client:
            answer = await client.evaluate(IMAGE, LIST)
        assert answer.code == "OK"
        assert "KRM_RUNNER_ANNOUNCE" not in answer.log.decode(), "the function is not told"
        assert not [line for line in wrapper.lines if ANNOUNCEMENT.word in line], "nor is the log"


@pytest.mark.usefixtures("wrapper_server")
async def test_it_serves_when_nobody_hears_it(show: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", 0))
        nobody = f"127.0.0.1:{taken.getsockname()[1]}"
    with WrapperProcess("--", show, environment=variable(nobody)) as wrapper:
        async with Client(wrapper.address) as client:
            assert (await client.evaluate(IMAGE, LIST)).code == "OK"


@pytest.mark.parametrize("value", ["", "somewhere", "127.0.0.1:1", "runner:9448 pod/word"])
def test_a_variable_that_makes_no_sense_is_one_line_and_exit_code_2(wrapper_server: Path, value: str) -> None:
    done = subprocess.run(
        [wrapper_server, "--port=0", "--", "/bin/cat"],
        env={"KRM_RUNNER_ANNOUNCE": value}, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (
        2,
        "wrapper-server: the variable KRM_RUNNER_ANNOUNCE is set, but not to ADDRESS:PORT MESSAGE\n",
    )
