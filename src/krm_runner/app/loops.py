"""The loops that must run for as long as the service does, in one TaskGroup: if one ends, the service ends.

A service whose watch has died would look healthy and send calls to pods that are gone. An API server, a registry or a
file that is away does not end a loop: each loop waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType

import structlog

from krm_runner.core.errors import ServeError

_log = structlog.get_logger("krm_runner")


class Loops:
    """An asynchronous context manager: if a loop ends, its body is cancelled, and it raises ServeError at its end.

    The other loops go on until the body has ended, which may need them to finish calls.
    """

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []
        self._is_stopping = False
        self._failure: ServeError | None = None
        self._body: asyncio.Task[object] | None = None

    async def __aenter__(self) -> Loops:
        self._body = asyncio.current_task()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._cancel()
        if self._failure is not None and self._body is not None:
            self._body.uncancel()
        # No loop raises, and an error of the body goes on by itself: the group has nothing to report.
        await self._group.__aexit__(None, None, None)
        if self._failure is not None:
            raise self._failure from error

    def start(self, loop: Coroutine[object, object, object], *, name: str) -> None:
        """Run a coroutine that never returns; `name` is for the log."""
        task = self._group.create_task(self._run(loop, name), name=name)
        # One that is cancelled before it begins would never be awaited.
        task.add_done_callback(lambda _: loop.close())
        self._tasks.append(task)

    async def stop(self) -> None:
        """Cancel all loops, and wait until they have ended."""
        self._cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _cancel(self) -> None:
        self._is_stopping = True
        for task in self._tasks:
            task.cancel()

    async def _run(self, loop: Coroutine[object, object, object], name: str) -> None:
        why = "without an error"
        failure: Exception | None = None
        try:
            await loop
        except asyncio.CancelledError:
            if self._is_stopping:
                raise
            why = "it was cancelled"
        except Exception as error:
            failure, why = error, f"{type(error).__name__}: {error}"
        if self._is_stopping:
            return
        if not isinstance(failure, ServeError):  # that one was logged where it was found
            _log.error("loop ended unexpectedly: the service ends", loop=name, exc_info=failure)
            failure = ServeError(f'the loop "{name}" ended unexpectedly ({why}); its log has more')
        if self._failure is None and self._body is not None:
            self._failure = failure
            self._body.cancel()
