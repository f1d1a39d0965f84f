"""What functions and requests may take of this container, where flags do not say it."""

from __future__ import annotations

from krm_runner.process.cpus import usable_cpus
from krm_runner.process.memory_limit import usable_memory

_PARALLEL_PER_CPU = 2
"""With one alone a CPU idles whenever a function ends and the next is on its way (docs/performance.md)."""
_SHARE_OF_REQUESTS = 4
"""An answer takes as much again as its request, and whoever has both may need a third copy for a moment."""
_SHARE_OF_FUNCTIONS = 2


def parallel_functions(asked_for: int = 0) -> int:
    """Processes at once."""
    return asked_for or _PARALLEL_PER_CPU * usable_cpus()


def function_memory(asked_for: int = 0) -> int:
    """Bytes that functions at once are expected to take together."""
    return asked_for or usable_memory() // _SHARE_OF_FUNCTIONS


def request_memory(asked_for: int = 0) -> int:
    """Bytes of all requests under way."""
    return asked_for or usable_memory() // _SHARE_OF_REQUESTS
