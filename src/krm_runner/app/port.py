"""What the service needs of whoever has its port: this process itself (`own_port`), or a front (`front_port`)."""

from __future__ import annotations

from typing import Protocol

from krm_runner.app.loops import Loops


class Port(Protocol):
    """Listens from when it is made, and serves from when it is started."""

    @property
    def number(self) -> int:
        """The port that it is, in the end."""
        ...

    @property
    def front(self) -> str:
        """The program that has it, for the log."""
        ...

    @property
    def calls_arrived(self) -> int:
        """How many calls there were, since the start."""
        ...

    @property
    def calls_under_way(self) -> int:
        """How many calls have arrived and are not answered."""
        ...

    async def start(self, loops: Loops) -> None:
        """Accept connections, and start the loops that serving needs. ServeError if it cannot."""
        ...

    def set_serving(self, serving: bool) -> None:
        """What health answers; NOT_SERVING until then."""
        ...

    async def stop(self, *, lame_duck: float, total: float) -> None:
        """Stop without losing a call: see docs/architecture.md, "The end"."""
        ...
