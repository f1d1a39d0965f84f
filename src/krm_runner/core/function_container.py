"""The container in which a function runs behind the wrapper server: its name, its port, its arguments, its status."""

from __future__ import annotations

from collections.abc import Sequence

from krm_runner.core.json_object import JsonObject, as_list, as_object, as_text

FUNCTION_CONTAINER = "function"
WRAPPER_PORT = 9446
TOOLS = "/wrapper-server-tools"


def wrapper_arguments(*, max_message_bytes: int, command: Sequence[str] | None) -> list[str]:
    """What the wrapper server is started with, after whatever the template has for it; None: it has no function yet."""
    flags = ["--port", str(WRAPPER_PORT), "--max-request-body-size", str(max_message_bytes)]
    return flags if command is None else [*flags, "--", *(as_it_is(word) for word in command)]


def as_it_is(word: str) -> str:
    """A word that is the same after Kubernetes has replaced `$(NAME)` and `$$` in it."""
    return word.replace("$", "$$")


def function_status(status: JsonObject) -> JsonObject:
    """What a pod's status says of it; empty when it says nothing."""
    containers = map(as_object, as_list(status.get("containerStatuses")))
    return as_object(next((each for each in containers if each.get("name") == FUNCTION_CONTAINER), None))


def function_image(pod: JsonObject) -> str:
    """The image that it is to run; empty when the pod does not have it."""
    for container in map(as_object, as_list(as_object(pod.get("spec")).get("containers"))):
        if container.get("name") == FUNCTION_CONTAINER:
            return as_text(container.get("image"))
    return ""
