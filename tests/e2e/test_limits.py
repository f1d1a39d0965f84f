"""The runner at its limits: in a container's memory, and stopped under load."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import cast

import grpc
import pytest

from integration.conftest import Installation
from support.certificates import Authority
from support.client import Answer, Client
from support.machine import missing
from support.runner import RunnerProcess

LIST = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
TOKEN = "dG9rZW4gb2YgYSBjYWxsZXI="
GIB = 1024**3
CGROUPS = Path("/sys/fs/cgroup")
pytestmark = pytest.mark.alone


class MemoryCgroup:
    """A cgroup of version 1 or 2 with a memory limit and no swap."""

    def __init__(self, limit: int) -> None:
        self._is_v1 = (CGROUPS / "memory").is_dir()
        self.path = (CGROUPS / "memory" if self._is_v1 else CGROUPS) / f"krm-runner-e2e-{os.getpid()}"
        self.path.mkdir()
        self._set("memory.limit_in_bytes" if self._is_v1 else "memory.max", limit)
        with suppress(OSError):
            self._set("memory.memsw.limit_in_bytes" if self._is_v1 else "memory.swap.max", limit if self._is_v1 else 0)

    @property
    def peak(self) -> int:
        return int((self.path / ("memory.max_usage_in_bytes" if self._is_v1 else "memory.peak")).read_text())

    @property
    def kills(self) -> int:
        events = (self.path / ("memory.oom_control" if self._is_v1 else "memory.events")).read_text().split()
        return int(events[events.index("oom_kill") + 1])

    def remove(self) -> None:
        """As soon as its last process is gone: those of a runner that was killed end a moment after it."""
        end = time.monotonic() + 20
        while (self.path / "cgroup.procs").read_text() and time.monotonic() < end:
            time.sleep(0.05)
        self.path.rmdir()

    def _set(self, name: str, value: int) -> None:
        (self.path / name).write_text(str(value))


@pytest.fixture
def cgroup() -> Iterator[MemoryCgroup]:
    try:
        created = MemoryCgroup(GIB)
    except OSError as error:
        missing(f"no memory cgroup can be made here ({error.strerror}): not root?")
    yield created
    created.remove()


ITEM = b"- apiVersion: v1\n  kind: ConfigMap\n  data:\n    text: some text that is not short\n"
NO_LIMITS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


def with_items(size: int) -> bytes:
    return LIST.replace(b" []\n", b"\n") + ITEM * (size // len(ITEM))


def runner_in(cgroup: MemoryCgroup, installation: Installation, *flags: str) -> RunnerProcess:
    enter = f'echo $$ >{cgroup.path}/cgroup.procs; exec "$@"'
    return RunnerProcess(*installation.flags, *flags, prefix=["sh", "-c", enter, "sh"])


async def test_32_callers_with_5_mb_each_fit_into_the_containers_gibibyte(
    installation: Installation, cgroup: MemoryCgroup
) -> None:
    image = installation.add("copy", "#!/bin/sh\nexec cat\n")
    large = with_items(5_000_000)
    with runner_in(cgroup, installation) as runner:
        async with Client(runner.address, NO_LIMITS) as client:

            async def caller() -> list[Answer]:
                return [await client.evaluate(image, large, timeout=120) for _ in range(5)]

            answers = [answer for each in await asyncio.gather(*(caller() for _ in range(32))) for answer in each]
        assert Counter(answer.code for answer in answers) == {"OK": 160}
        assert all(answer.resource_list == large for answer in answers)
    print(f"peak of the runner and its functions: {cgroup.peak / 1024**2:.0f} MiB")
    assert cgroup.kills == 0
    assert cgroup.peak < GIB


@pytest.fixture
def secured(tmp_path: Path) -> Secured:
    """TLS and tokens are on."""
    return Secured(tmp_path)


class Secured:
    """TLS and a token: flags of a runner, and clients of it."""

    def __init__(self, directory: Path) -> None:
        authority = Authority(directory / "ca")
        certificate, key = authority.sign("runner")
        tokens = directory / "tokens"
        tokens.write_text(TOKEN)
        self.flags = (f"--tls-cert-file={certificate}", f"--tls-key-file={key}", f"--auth-token-file={tokens}")
        self._credentials = grpc.ssl_channel_credentials(authority.certificate.read_bytes())

    def client(self, runner: RunnerProcess, *, token: str = TOKEN) -> Client:
        return Client(runner.address, NO_LIMITS, credentials=self._credentials, token=token)


async def test_a_stranger_cannot_fill_the_memory_by_health(
    fronted: Installation, cgroup: MemoryCgroup, secured: Secured
) -> None:
    image = fronted.add("copy", "#!/bin/sh\nexec cat\n")
    body = b"\x0a" + b"x" * 60_000_000
    with runner_in(cgroup, fronted, *secured.flags) as runner:

        async def stranger() -> str:
            async with secured.client(runner, token="") as client:
                watch = cast(
                    "grpc.aio.UnaryStreamMultiCallable[bytes, bytes]",
                    client.channel.unary_stream("/grpc.health.v1.Health/Watch"),
                )
                try:
                    await watch(body, timeout=60).read()
                except grpc.aio.AioRpcError as error:
                    return error.code().name
                return "answered"

        async with secured.client(runner) as client:
            strangers = [asyncio.create_task(stranger()) for _ in range(16)]
            while not all(task.done() for task in strangers):
                assert (await client.evaluate(image, LIST)).code == "OK"
            assert (await client.evaluate(image, LIST)).code == "OK"
        assert {await task for task in strangers} == {"OUT_OF_RANGE"}
    assert cgroup.kills == 0


async def test_more_large_calls_than_fit_are_refused_and_may_be_tried_again(
    fronted: Installation, cgroup: MemoryCgroup, secured: Secured
) -> None:
    image = fronted.add("copy", "#!/bin/sh\nexec cat\n")
    large = with_items(5_000_000)
    with runner_in(cgroup, fronted, *secured.flags) as runner:
        async with secured.client(runner) as client:
            answers = await asyncio.gather(*(client.evaluate(image, large, timeout=120) for _ in range(96)))
            assert (await client.evaluate(image, large)).code == "OK", "it serves on"
    refused = [answer for answer in answers if answer.code != "OK"]
    assert len(refused) < len(answers)
    assert {answer.code for answer in refused} <= {"RESOURCE_EXHAUSTED"}
    assert all(answer.retry_delay for answer in refused)
    print(f"peak of the runner and its functions: {cgroup.peak / 1024**2:.0f} MiB, {len(refused)} calls refused")
    assert cgroup.kills == 0


async def test_of_a_burst_every_call_is_served_or_told_when_to_try_again(
    fronted: Installation, cgroup: MemoryCgroup, secured: Secured
) -> None:
    image = fronted.add("copy", "#!/bin/sh\nexec cat\n")
    with runner_in(cgroup, fronted, *secured.flags) as runner:
        async with secured.client(runner) as one, secured.client(runner) as other:
            calls = [client.evaluate(image, LIST, timeout=120) for _ in range(2500) for client in (one, other)]
            answers = await asyncio.gather(*calls)
            assert (await one.evaluate(image, LIST)).code == "OK", "it serves on"
    refused = [answer for answer in answers if answer.code != "OK"]
    assert 0 < len(refused) < len(answers)
    assert {answer.code for answer in refused} == {"RESOURCE_EXHAUSTED"}
    assert all(answer.retry_delay for answer in refused)
    assert cgroup.kills == 0


async def test_functions_that_take_much_memory_take_turns(installation: Installation, cgroup: MemoryCgroup) -> None:
    """Four at once would be 1.4 GB, and the end of some of them or of the runner."""
    image = installation.add(
        "holds",
        f"#!{sys.executable} -IS\nimport sys, time\ndata = sys.stdin.buffer.read()\n"
        "held = bytearray(b'x') * 350_000_000\ntime.sleep(0.3)\nsys.stdout.buffer.write(data)\n",
    )
    large = with_items(2_000_000)
    flags = ("--max-parallel-executions=4", f"--max-function-memory={GIB // 2}")
    with runner_in(cgroup, installation, *flags) as runner:
        async with Client(runner.address, NO_LIMITS) as client:
            answers = await asyncio.gather(*(client.evaluate(image, large, timeout=120) for _ in range(12)))
    assert Counter(answer.code for answer in answers) == {"OK": 12}
    print(f"peak of the runner and its functions: {cgroup.peak / 1024**2:.0f} MiB")
    assert cgroup.kills == 0


async def test_sigterm_under_load_loses_no_call_that_had_started(installation: Installation) -> None:
    image = installation.add("copy", "#!/bin/sh\nexec cat\n")
    slow = installation.add("slow", "#!/bin/sh\nsleep 2\nexec cat\n")
    runner = installation.start("--shutdown-delay=1s", "--max-parallel-executions=4")
    stopped = asyncio.Event()
    answers: list[Answer] = []
    async with Client(runner.address) as client:

        async def caller(which: str) -> None:
            while not stopped.is_set():
                answer = await client.evaluate(which, LIST)
                answers.append(answer)
                if answer.code != "OK":
                    return

        callers = [asyncio.create_task(caller(image)) for _ in range(16)]
        callers += [asyncio.create_task(caller(slow)) for _ in range(2)]
        await asyncio.sleep(1)
        runner.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(runner.wait) == 0
        stopped.set()
        await asyncio.gather(*callers)
    started = Counter(line.split(" code=")[1].split()[0] for line in runner.lines if "event=evaluated" in line)
    codes = Counter(answer.code for answer in answers)
    assert started.keys() == {"OK"}, "every call that had started was answered"
    assert codes["OK"] == started["OK"] > 50, "and every answer arrived"
    # What reaches the connection in the moment of GOAWAY never starts: gRPC's core answers it with CANCELLED
    # (grpc/grpc#41785); what comes later finds nobody.
    assert codes.keys() <= {"OK", "UNAVAILABLE", "CANCELLED"}
