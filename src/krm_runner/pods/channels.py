"""How pods' wrapper servers are spoken to: what all channels to them have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from krm_runner.core.held_call import HealthAsker
from krm_runner.core.pod_facts import PodFacts
from krm_runner.core.secret import Secret
from krm_runner.rpc.wrapper_channel import Target, WrapperChannel


@dataclass(frozen=True, slots=True)
class Channels:
    """Makes them."""

    message_limit: int
    token: Callable[[PodFacts], Secret | None]
    """What a pod wants to be shown."""
    asker: HealthAsker | None = None
    """Who asks pods whether they serve, if it is not this process."""

    def open(self, target: Target, *, pod: str, facts: Callable[[], PodFacts]) -> WrapperChannel:
        """To a pod of which that is known at any time."""
        return WrapperChannel(
            target,
            pod=pod,
            message_limit=self.message_limit,
            token=lambda: self.token(facts()),
            asker=self.asker,
        )
