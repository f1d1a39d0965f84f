"""The command line: `krm-runner COMMAND`, and `function-runner`, which is `krm-runner serve`."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import signal
import sys
from collections.abc import Sequence
from typing import cast

from krm_runner import __version__

_HELP = """\
krm-runner runs KRM functions for Porch and kpt.

Usage: krm-runner COMMAND [FLAGS]

Commands:
  doctor     look at an installation: what works, and what to mend
  eval       run one function on a package, here or by a runner
  image      look an image up in its registry, as the pod runtime does
  serve      serve functions over gRPC (also installed as function-runner)
  version    print the version

`krm-runner COMMAND --help` says more about a command.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of `krm-runner`."""
    _prepare_process()
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments[0] if arguments else ""
    if command == "doctor":
        return _run("krm_runner.cli.doctor", "doctor_command", arguments[1:])
    if command == "eval":
        # The error says why a handshake failed: gRPC need not write it to stderr, too. It reads this when it is loaded.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        return _run("krm_runner.cli.evaluate", "eval_command", arguments[1:])
    if command == "image":
        return _run("krm_runner.cli.image", "image_command", arguments[1:])
    if command == "serve":
        return _run("krm_runner.cli.serve", "serve_command", arguments[1:], program="krm-runner serve")
    if command in ("version", "--version"):
        sys.stdout.write(f"krm-runner {__version__}\n")
        return 0
    if command in ("", "help", "-h", "--help"):
        sys.stdout.write(_HELP)
        return 0 if command else 2
    sys.stderr.write(f'krm-runner: unknown command "{command}"; krm-runner --help lists them\n')
    return 2


def serve_main(argv: Sequence[str] | None = None) -> int:
    """The entry point of `function-runner`: the flags of the server and nothing before them."""
    _prepare_process()
    arguments = list(sys.argv[1:] if argv is None else argv)
    return _run("krm_runner.cli.serve", "serve_command", arguments, program="function-runner")


def _run(module: str, command: str, argv: Sequence[str], **options: str) -> int:
    """Importing a command takes a moment; who interrupts that wants no traceback."""
    try:
        return cast(int, getattr(importlib.import_module(module), command)(argv, **options))
    except KeyboardInterrupt:
        return 130


def _prepare_process() -> None:
    """Signals count from the first moment on (as PID 1 they would be ignored), and 0, 1 and 2 are open.

    A process started without those would give their numbers to its next files, and hand them to functions.
    """
    signal.signal(signal.SIGTERM, lambda number, _frame: os._exit(128 + number))
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - for as long as the process lives
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
    atexit.register(_let_go_of_broken_streams)


def _let_go_of_broken_streams() -> None:
    """What cannot be written to a reader that is gone must not change the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            with contextlib.suppress(OSError, ValueError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
