"""What becomes of the service's loops when one of them ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from krm_runner.app.loops import Loops
from krm_runner.core.errors import ConfigurationError, ServeError


async def forever(*_: object) -> None:
    await asyncio.Event().wait()


async def returns() -> None:
    await asyncio.sleep(0)


async def raises() -> None:
    await asyncio.sleep(0)
    raise ValueError("a defect")


async def is_cancelled() -> None:
    await asyncio.sleep(0)
    raise asyncio.CancelledError


async def has_its_own_words() -> None:
    raise ServeError("the front has ended")


@pytest.mark.parametrize(
    ("loop", "words"),
    [
        (returns, 'the loop "watch of pods" ended unexpectedly (without an error); its log has more'),
        (raises, 'the loop "watch of pods" ended unexpectedly (ValueError: a defect); its log has more'),
        (is_cancelled, 'the loop "watch of pods" ended unexpectedly (it was cancelled); its log has more'),
        (has_its_own_words, "the front has ended"),
    ],
)
async def test_a_loop_that_ends_cancels_the_service_which_may_finish_its_calls(
    loop: Callable[[], Coroutine[object, object, None]], words: str
) -> None:
    other: asyncio.Task[None] | None = None
    steps: list[str] = []

    async def another() -> None:
        nonlocal other
        other = asyncio.current_task()
        await forever()

    async def serve() -> None:
        async with Loops() as loops:
            loops.start(another(), name="another")
            await asyncio.sleep(0)
            loops.start(loop(), name="watch of pods")
            try:
                await forever()
            finally:
                async with asyncio.timeout(10), asyncio.TaskGroup() as group:
                    group.create_task(returns())
                steps.append("calls finished")

    with pytest.raises(ServeError) as ended:
        await serve()
    assert str(ended.value) == words
    assert steps == ["calls finished"]
    assert other is not None
    assert other.cancelled()


async def test_loops_end_with_the_service_and_none_of_that_is_an_error() -> None:
    async with Loops() as loops:
        loops.start(forever(), name="a")
        await asyncio.sleep(0)
        await loops.stop()
        await loops.stop()


async def test_an_error_of_the_service_itself_goes_on_as_it_is() -> None:
    async def serve() -> None:
        async with Loops() as loops:
            loops.start(forever(), name="a")
            raise ConfigurationError("no cluster")

    with pytest.raises(ConfigurationError, match="no cluster"):
        await serve()
