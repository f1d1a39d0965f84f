"""The service's port by way of the front, from start to end: what `rpc.server` is where this process has the port.

Starts the front and tells it what there is, hands what it says to those who know what it means, and sees that neither
of the two outlives the other: a front that is gone ends the service with a reason, and nothing of the front is left
when the service ends.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import structlog

from krm_runner.core.errors import ConfigurationError, ServeError
from krm_runner.front.calls import FrontCalls
from krm_runner.front.link import Link
from krm_runner.front.load import FrontLoad
from krm_runner.front.pod_questions import PodQuestions
from krm_runner.front.program import FrontProgram, describe_end, listen
from krm_runner.rpc._generated.front_pb2 import (
    Alive,
    CancelCalls,
    Configure,
    Credentials,
    Drain,
    FromFront,
    Health,
    Ready,
    ToFront,
)
from krm_runner.telemetry import internal_errors

_log = structlog.get_logger("krm_runner.front")

_READY_SECONDS = 10.0
_LAST_GRACE = 2.0
"""For the front to answer the calls that are cancelled, and to end."""
_LAST_WORDS = 1.0
_BEAT_SECONDS = 5.0
LONGEST_SILENCE = 3 * _BEAT_SECONDS
"""After which the front takes this process for stuck."""

_Heard = asyncio.Future[int] | asyncio.Future[str] | asyncio.Future[Ready]


class FrontServer:
    """Listens from when it is made, and serves from when it is started."""

    def __init__(
        self,
        program: Path,
        link: Link,
        calls: FrontCalls,
        load: FrontLoad,
        questions: PodQuestions,
        *,
        port: int,
        health_port: int,
    ) -> None:
        """Listen on the ports; `health_port` 0 means none. Raises ServeError if one cannot be had."""
        self._path = program
        self._link = link
        self._calls = calls
        self._load = load
        self._questions = questions
        self._listener = listen(port)
        self._probed = [listen(health_port)] if health_port else []
        self.port: int = self._listener.getsockname()[1]
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._program: FrontProgram | None = None
        self._serving = False
        self._draining = False

    async def start(self, configure: Configure, environment: Mapping[bytes, bytes]) -> None:
        """Serve; ServeError when the front does not start."""
        ours, its = socket.socketpair()
        sockets = [self._listener, its, *self._probed]
        try:
            self._program = FrontProgram(self._path, sockets=sockets, environment=environment)
        except ServeError:
            ours.close()
            raise
        finally:
            for passed in sockets:
                passed.close()
        await self._link.open(ours, self._received)
        self._link.send(ToFront(configure=configure))
        self._link.send(ToFront(health=Health(serving=self._serving)))
        await self._wait_until_ready(self._program, configure.version)
        self._questions.open(self._link.send)

    def set_serving(self, serving: bool) -> None:
        """What health answers; NOT_SERVING until then."""
        self._serving = serving
        self._link.send(ToFront(health=Health(serving=serving)))

    def replace_credentials(self, credentials: Credentials) -> None:
        """Let callers in by other certificates and tokens."""
        self._link.send(ToFront(credentials=credentials))

    async def beat(self) -> NoReturn:
        """Tell the front again and again that this process is there; never returns."""
        while True:
            self._link.send(ToFront(alive=Alive()))
            await asyncio.sleep(_BEAT_SECONDS)

    async def watch(self) -> NoReturn:
        """Raise ServeError when the front ends before it is asked to. Never returns."""
        assert self._program is not None  # noqa: S101 - it was started
        await asyncio.wait(self._endings(self._program), return_when=asyncio.FIRST_COMPLETED)
        if not self._draining:
            how = await self._how_it_ended(self._program)
            _log.error("the front has ended", front=str(self._path), how=how)
            raise ServeError(f"the front has ended, and without it nothing is served: {self._path}: {how}")
        raise await asyncio.get_running_loop().create_future()

    async def stop(self, *, lame_duck: float, total: float) -> None:
        """Stop without losing a call, at the pace of `rpc.server.GrpcServer.stop`."""
        self._link.send(ToFront(health=Health(serving=False, end_standby=True)))
        if self._program is None or self._link.closed.done():
            # Nothing can be said to it any more.
            await self.close()
            return
        await asyncio.wait(self._endings(self._program), timeout=lame_duck, return_when=asyncio.FIRST_COMPLETED)
        self._draining = True
        self._link.send(ToFront(drain=Drain()))
        if not await self._is_over(within=max(0.0, total - lame_duck)):
            _log.warning("time is over: calls are cancelled", calls=self.calls_under_way)
            self._link.send(ToFront(cancel_calls=CancelCalls()))
            self._calls.stop()
            await self._is_over(within=_LAST_GRACE)
        await self.close()
        if self._program.ended.done() and self._program.ended.result() != 0:
            _log.warning(
                "the front has ended badly", front=str(self._path), how=describe_end(self._program.ended.result())
            )

    async def close(self) -> None:
        """Nothing is left: not of the front, not of the link, and not of the calls that are here."""
        self._draining = True
        self._questions.close()
        await self._calls.close()
        self._link.close()
        if self._program is not None:
            await self._end(self._program)
        for listener in (self._listener, *self._probed):
            listener.close()

    @property
    def calls_arrived(self) -> int:
        """How many calls there were, since the start."""
        return self._load.calls

    @property
    def calls_under_way(self) -> int:
        """How many calls have arrived and are not answered, as far as that is known here."""
        return self._load.unseen + self._calls.under_way

    async def _wait_until_ready(self, program: FrontProgram, version: str) -> None:
        heard: list[_Heard] = [self._ready, program.ended]
        await asyncio.wait(heard, timeout=_READY_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if not self._ready.done():
            how = f"it said nothing for {_READY_SECONDS:g} s"
            if program.ended.done():
                how = describe_end(program.ended.result())
            raise ServeError(
                f"the front does not start: {self._path}: {how}; --front=off does without it, and without TLS"
            )
        ready = self._ready.result()
        if ready.problem:
            raise ConfigurationError(f"--tls-cert-file, --tls-key-file or --tls-client-ca-file: {ready.problem}")
        if ready.version != version:
            its = ready.version or "unknown"
            raise ServeError(
                f"the front {self._path} has version {its}, and this is {version}: install both together, "
                "or start with --front=off"
            )

    def _received(self, message: FromFront) -> None:
        """Handle one message. A bug in that must not cost the other calls."""
        try:
            self._handle(message)
        except Exception as error:
            kind = message.WhichOneof("message") or ""
            about = {**self._calls.about(message), **self._questions.about(message)}
            internal_errors.report("front message", error, message=kind, **about)
            if kind == "call":
                self._calls.give_up(message.call, error)

    def _handle(self, message: FromFront) -> None:
        match message.WhichOneof("message"):
            case "ended":
                self._calls.ended(message.ended)
            case "call":
                self._calls.arrived(message.call)
            case "served":
                self._calls.served(message.served)
            case "forwarded":
                self._calls.forwarded(message.forwarded)
            case "health_answer":
                self._questions.answered(message.health_answer)
            case "gone":
                self._calls.gone(message.gone)
            case "load":
                self._load.take(message.load)
            case "unfit":
                _log.info("function not kept in standby", function=message.unfit.function, why=message.unfit.why)
            case "ready":
                if not self._ready.done():
                    self._ready.set_result(message.ready)
            case _:
                _log.error("the front says what is not known here")

    async def _is_over(self, *, within: float) -> bool:
        """Whether the front has ended by then, and everything that it said was heard."""
        assert self._program is not None  # noqa: S101 - it was started
        _, pending = await asyncio.wait(self._endings(self._program), timeout=within)
        if not pending:
            await self._calls.finish(within=_LAST_WORDS)
        return not pending

    def _endings(self, program: FrontProgram) -> list[_Heard]:
        return [program.ended, self._link.closed]

    async def _how_it_ended(self, program: FrontProgram) -> str:
        await asyncio.wait([program.ended], timeout=_LAST_WORDS)
        if self._link.closed.done() and self._link.closed.result():
            return self._link.closed.result()
        return describe_end(program.ended.result()) if program.ended.done() else "it closed its link"

    async def _end(self, program: FrontProgram) -> None:
        """It ends by itself, now that the link is closed."""
        if not (await asyncio.wait([program.ended], timeout=_LAST_GRACE))[0]:
            _log.warning("the front does not end: it is killed", front=str(self._path))
            program.kill()
            await asyncio.wait([program.ended], timeout=_LAST_GRACE)
