"""What the function of `function_images.obliging` is asked for, and what its answers say."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass

from support.client import Answer, Client

_HEAD = "apiVersion: config.kubernetes.io/v1\nkind: ResourceList\nitems: []\n"
_SERVED = re.compile(r"^pod=(\S+) version=(\S*) call=(\S*) began=(\d+) ended=(\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Served:
    """Who did it, and when by its own clock, in whole seconds."""

    pod: str
    version: str
    call: str
    began: int
    ended: int


def wish(**wishes: object) -> bytes:
    """A resource list that asks for: `call` (a name to be noted), `seconds` (of sleep), `exit`, `memory`, `report`."""
    if not wishes:
        return _HEAD.encode()
    data = "".join(f"    {name}: {value}\n" for name, value in wishes.items())
    head = "functionConfig:\n  apiVersion: v1\n  kind: ConfigMap\n  metadata: {name: wishes}\n  data:\n"
    return f"{_HEAD}{head}{data}".encode()


def served(answer: Answer) -> Served:
    """Of an answer that is one."""
    assert answer.code == "OK", f"{answer.code} {answer.reason}: {answer.message}"
    found = _SERVED.search(answer.log.decode())
    assert found, answer.log
    pod, version, call, began, ended = found.groups()
    return Served(pod, version, call, int(began), int(ended))


def reported(answer: Answer) -> list[str]:
    """The calls that a pod has noted, in their order."""
    served(answer)
    return re.findall(r"^did: (.*)$", answer.log.decode(), re.MULTILINE)


async def until_ok(client: Client, image: str, *, seconds: float = 60) -> Answer:
    """The first good answer, for what is to go well sooner or later."""
    last = Answer("")
    try:
        async with asyncio.timeout(seconds):
            while last.code != "OK":
                last = await client.evaluate(image, wish())
                await asyncio.sleep(0.2)
    except TimeoutError:
        raise AssertionError(f"no good answer in {seconds:.0f} s: {last.code} {last.message}") from None
    return last
