"""Callers that go on calling while a test does something to the cluster, and what they got."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from types import TracebackType

from support.calls import Served, served, wish
from support.client import Answer, Client


class Load:
    """So many callers, each with one call at a time; every call has a name of its own."""

    def __init__(
        self, client: Client, image: str, *, callers: int = 4, pause: float = 0.02, seconds: float = 0
    ) -> None:
        self.answers: dict[str, Answer] = {}
        self._client = client
        self._image = image
        self._callers = callers
        self._pause = pause
        self._seconds = seconds
        self._names = (f"call-{number}" for number in itertools.count())
        self._is_over = False
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def failures(self) -> list[str]:
        """What went wrong, in words."""
        return [
            f"{name}: {answer.code} {answer.reason}: {answer.message}"
            for name, answer in self.answers.items()
            if answer.code != "OK"
        ]

    @property
    def served(self) -> dict[str, Served]:
        """By the call's name; all of them must have been answered."""
        assert not self.failures, "\n".join(self.failures)
        return {name: served(answer) for name, answer in self.answers.items()}

    async def until(self, condition: Callable[[Served], bool], *, what: str, seconds: float = 60) -> None:
        """Waits for an answer of which it holds."""
        seen = 0
        try:
            async with asyncio.timeout(seconds):
                while True:
                    found = list(self.answers.values())
                    if any(condition(served(answer)) for answer in found[seen:] if answer.code == "OK"):
                        return
                    seen = len(found)
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"no answer in {seconds:.0f} s: {what}\n" + "\n".join(self.failures)) from None

    async def more(self, calls: int = 20, *, seconds: float = 60) -> None:
        """Waits for that many further answers."""
        wanted = len(self.answers) + calls
        try:
            async with asyncio.timeout(seconds):
                while len(self.answers) < wanted:
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise AssertionError(f"only {len(self.answers)} answers of {wanted} in {seconds:.0f} s") from None

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.create_task(self._call()) for _ in range(self._callers)]
        return self

    async def __aexit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        self._is_over = True
        await asyncio.gather(*self._tasks)

    async def _call(self) -> None:
        while not self._is_over:
            name = next(self._names)
            wishes = {"call": name} | ({"seconds": self._seconds} if self._seconds else {})
            self.answers[name] = await self._client.evaluate(self._image, wish(**wishes))
            await asyncio.sleep(self._pause)
