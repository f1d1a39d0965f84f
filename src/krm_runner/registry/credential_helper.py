"""Credential helpers: programs named `docker-credential-X` that know the credentials of a registry.

A helper is asked `get` with the registry's address on stdin, and has a few seconds. What it writes to stderr is not
shown: nobody knows what is in it.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
from typing import cast

from krm_runner.core.registry_auth import Credentials, from_helper

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NOT_FOUND = ("credentials not found", "no credentials server URL", "no credentials username")
_SECONDS = 10.0


class CredentialHelperError(Exception):
    """The helper could not be asked, or did not answer sensibly."""


async def ask_helper(name: str, address: str, *, seconds: float = _SECONDS) -> Credentials | None:
    """The credentials that a helper has for an address; None when it has none."""
    if not _NAME.fullmatch(name):
        raise CredentialHelperError(f'"{name}" is no name of a credential helper')
    program = f"docker-credential-{name}"
    output, has_failed = await asyncio.to_thread(_run, program, address, seconds)
    if has_failed and any(text.encode() in output for text in _NOT_FOUND):
        return None
    try:
        answer = cast("dict[str, object]", json.loads(output))
        username, secret = answer["Username"], answer["Secret"]
    except (ValueError, KeyError, TypeError, RecursionError):
        ending = "failed" if has_failed else "did not answer with Username and Secret"
        raise CredentialHelperError(f"{program} {ending}") from None
    if not isinstance(username, str) or not isinstance(secret, str):
        raise CredentialHelperError(f"{program} did not answer with Username and Secret")
    return from_helper(username, secret)


def _run(program: str, address: str, seconds: float) -> tuple[bytes, bool]:
    """In a thread and not by asyncio: whoever else reaps children of this process must not confuse us."""
    try:
        process = subprocess.Popen(
            [program, "get"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        raise CredentialHelperError(f"{program} cannot be started: {error.strerror}") from error
    with process:
        try:
            output, _ = process.communicate(address.encode(), timeout=seconds)
        except subprocess.TimeoutExpired:
            raise CredentialHelperError(f"{program} did not answer within {seconds:g}s") from None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
    return output, process.returncode != 0
