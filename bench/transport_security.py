"""What TLS and tokens cost a call: the same function behind servers that differ in that alone.

They take turns in short rounds within one run, so that the machine's noise hits all of them; the figures to trust are
the ratios. Client and server share the machine, so both ends of the encryption are counted. See docs/security.md.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import grpc

from krm_runner.core import image_ref
from krm_runner.core.evaluation import EvaluationRequest
from krm_runner.core.secret import Secret
from krm_runner.rpc.wrapper_channel import Target, WrapperChannel
from support.certificates import Authority
from support.client import Client
from support.runner import RunnerProcess, write_config, write_function
from support.wrapper import WrapperProcess

IMAGE = "example.com/copy:v1"
UNKNOWN = "example.com/unknown:v1"
"""Calls to the runner are for a function that it does not know: a process would take ten times what is looked at."""
TOKEN = "dG9rZW4gZm9yIGEgYmVuY2htYXJrLCBubyBzZWNyZXQ"
HEAD = b"apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
SIZES = {"2 KB": 2048, "1 MB": 1024 * 1024}

Call = Callable[[bytes], Awaitable[object]]


class Servers:
    """Started once, by name."""

    def __init__(self, directory: Path, stack: AsyncExitStack) -> None:
        self._directory, self._stack = directory, stack
        self._function = write_function(directory, "copy", "#!/bin/sh\nexec cat\n")
        self._config = write_config(directory / "config.yaml", {"copy": [IMAGE]})

    async def runner(self, *flags: str, credentials: grpc.ChannelCredentials | None = None, token: str = "") -> Call:
        """A runner with the exec runtime, and a client of it."""
        process = RunnerProcess(
            f"--functions={self._directory}", f"--config={self._config}", "--log-level=0", "--shutdown-delay=0s", *flags
        )
        self._stack.enter_context(process)
        client = await self._stack.enter_async_context(Client(process.address, credentials=credentials, token=token))

        async def call(resource_list: bytes) -> None:
            answer = await client.evaluate(UNKNOWN, resource_list)
            assert answer.code == "NOT_FOUND", answer.message

        return call

    async def wrapper(self, *, token: Secret | None) -> Call:
        """A wrapper server, and the runner's channel to it."""
        environment = {"KRM_RUNNER_TOKEN": token.reveal()} if token else {}
        process = WrapperProcess("--verbosity=0", "--", str(self._function), environment=environment)
        self._stack.enter_context(process)
        channel = WrapperChannel(Target(process.address), pod="pod", message_limit=6291456, token=lambda: token)
        self._stack.push_async_callback(channel.close, "the benchmark is over")

        async def call(resource_list: bytes) -> None:
            deadline = asyncio.get_running_loop().time() + 60
            await channel.evaluate(EvaluationRequest(IMAGE, image_ref.parse(IMAGE), resource_list, deadline))

        return call


async def seconds_per_call(call: Call, resource_list: bytes, *, calls: int) -> float:
    """One after the other."""
    started = time.perf_counter()
    for _ in range(calls):
        await call(resource_list)
    return (time.perf_counter() - started) / calls


async def compare(servers: dict[str, Call], resource_list: bytes, *, rounds: int, calls: int) -> dict[str, list[float]]:
    """Of each round, by server."""
    found: dict[str, list[float]] = {name: [] for name in servers}
    for number in range(rounds + 1):
        for name, call in servers.items():
            taken = await seconds_per_call(call, resource_list, calls=calls)
            if number:  # the first one warms up
                found[name].append(taken)
    return found


async def main(*, rounds: int) -> None:
    """All of it."""
    async with AsyncExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        authority = Authority(directory / "ca")
        (certificate, key), (own, own_key) = authority.sign("runner"), authority.sign("caller", usage="clientAuth")
        ca = authority.certificate.read_bytes()
        tls = (f"--tls-cert-file={certificate}", f"--tls-key-file={key}")
        mutual = grpc.ssl_channel_credentials(ca, own_key.read_bytes(), own.read_bytes())
        (directory / "tokens").write_text(TOKEN)
        servers = Servers(directory, stack)
        to_runners = {
            "plain text": await servers.runner(),
            "a token": await servers.runner(f"--auth-token-file={directory / 'tokens'}", token=TOKEN),
            "TLS": await servers.runner(*tls, credentials=grpc.ssl_channel_credentials(ca)),
            "mutual TLS": await servers.runner(
                *tls, f"--tls-client-ca-file={authority.certificate}", credentials=mutual
            ),
        }
        to_pods = {
            "plain text": await servers.wrapper(token=None),
            "a token": await servers.wrapper(token=Secret(TOKEN)),
        }
        for size, length in SIZES.items():
            resource_list = HEAD + b"# padding\n" * ((length - len(HEAD)) // 10)
            calls = 10 if length < 100_000 else 2
            for where, group in (("caller to runner", to_runners), ("runner to pod", to_pods)):
                found = await compare(group, resource_list, rounds=rounds, calls=calls)
                base = found["plain text"]
                for name, taken in found.items():
                    median = statistics.median(taken)
                    ratio = median / statistics.median(base)
                    sys.stdout.write(f"{where:17} {size}  {name:11} {median * 1e3:7.2f} ms  {ratio:.2f}\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=200)
    asyncio.run(main(rounds=parser.parse_args().rounds))
