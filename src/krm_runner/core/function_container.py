"""The container in which a function runs behind the wrapper server: its name, its port, its arguments."""

from __future__ import annotations

from collections.abc import Sequence

FUNCTION_CONTAINER = "function"
WRAPPER_PORT = 9446
TOOLS = "/wrapper-server-tools"


def wrapper_arguments(*, max_message_bytes: int, command: Sequence[str]) -> list[str]:
    """What the wrapper server is started with, after whatever the template has for it."""
    flags = ["--port", str(WRAPPER_PORT), "--max-request-body-size", str(max_message_bytes)]
    return [*flags, "--", *(as_it_is(word) for word in command)]


def as_it_is(word: str) -> str:
    """A word that is the same after Kubernetes has replaced `$(NAME)` and `$$` in it."""
    return word.replace("$", "$$")
