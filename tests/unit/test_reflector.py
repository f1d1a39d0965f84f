"""When a reflector asks again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from krm_runner.core.errors import KubernetesError
from krm_runner.core.json_object import JsonObject
from krm_runner.kube.client import KubeClient
from krm_runner.kube.reflector import ChangeKind, Reflector


class ForgetfulApi:
    """Lists, and has forgotten the history of every list when it is to be watched."""

    def __init__(self) -> None:
        self.lists = 0

    async def get(self, *_: object, **__: object) -> JsonObject:
        self.lists += 1
        return {"metadata": {"resourceVersion": str(self.lists)}, "items": []}

    @asynccontextmanager
    async def stream(self, *_: object, **__: object) -> AsyncGenerator[None]:
        if self.lists:
            raise KubernetesError("too old resource version", status=410)
        yield


class Copy:
    def replaced(self, objects: list[JsonObject]) -> None:
        assert objects == []

    def changed(self, kind: ChangeKind, found: JsonObject) -> None:
        raise AssertionError((kind, found))


async def test_history_that_is_gone_again_and_again_is_listed_with_a_delay_that_grows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    delays: list[float] = []

    async def sleep(seconds: float) -> None:
        delays.append(seconds)
        if len(delays) == 8:
            raise asyncio.CancelledError

    api = ForgetfulApi()
    monkeypatch.setattr("krm_runner.kube.reflector.asyncio.sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        await Reflector(cast(KubeClient, api), "/api/v1/pods", Copy()).run()
    assert api.lists == len(delays)
    # Each is in the upper half of 0.2 s, 0.4 s, 0.8 s ... 5 s.
    least = [0.1, 0.2, 0.4, 0.8, 1.6, 2.5, 2.5, 2.5]
    assert all(low <= delay <= 2 * low for low, delay in zip(least, delays, strict=True)), delays
