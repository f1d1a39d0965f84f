"""What an ended function's answer is: the first four rows of the function protocol, one function each.

`quick_verdict` settles the common case in one pass over the output; `full_verdict` parses it, for everything else.
Both runtimes of local processes follow the same rules: tests/vectors/ holds them to it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass

from krm_runner.core import resource_list
from krm_runner.core.errors import FunctionFailedError, InvalidOutputError
from krm_runner.core.resource_list import Envelope, NotAResourceListError


@dataclass(frozen=True, slots=True)
class Ending:
    """How a function ended: its exit code (minus the signal's number if one killed it) and what it wrote."""

    image: str
    exit_code: int
    stdout: bytes
    stderr: bytes


def quick_verdict(ending: Ending) -> Envelope | None:
    """The envelope if the function succeeded beyond doubt; None means: ask for the full verdict."""
    return resource_list.recognise(ending.stdout) if ending.exit_code == 0 else None


def full_verdict(ending: Ending, is_cancelled: Callable[[], bool]) -> Envelope:
    """The envelope, or the EvaluationError that the function's ending stands for."""
    stderr = printable(ending.stderr)
    try:
        envelope = resource_list.parse(ending.stdout, is_cancelled=is_cancelled)
    except NotAResourceListError as error:
        if ending.exit_code == 0:
            raise InvalidOutputError(ending.image, why=str(error), stderr=stderr) from error
        envelope = Envelope(())
    if ending.exit_code == 0:
        return envelope
    raise FunctionFailedError(
        ending.image,
        ending=_describe_exit(ending.exit_code),
        results=[printable(str(result).encode(errors="replace")) for result in envelope.results],
        stderr=stderr,
        facts={"exit_code": str(ending.exit_code)}
        if ending.exit_code > 0
        else {"signal": signal_name(-ending.exit_code)},
        output=ending.stdout if envelope.results else b"",
    )


def signal_name(number: int) -> str:
    """SIGSEGV for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def printable(text: bytes) -> str:
    """Text for a person, whatever bytes a function wrote: control characters other than tab and newline go."""
    decoded = text.decode(errors="replace")
    return "".join(char for char in decoded if (char >= " " and char != "\x7f") or char in "\n\t")


def _describe_exit(exit_code: int) -> str:
    if exit_code > 0:
        return f"failed with exit code {exit_code}"
    hint = " (out of memory?)" if exit_code == -signal.SIGKILL else ""
    return f"was killed by {signal_name(-exit_code)}{hint}"
