"""The command line: `krm-runner COMMAND`, and `function-runner`, which is `krm-runner serve`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from krm_runner import __version__
from krm_runner.cli.evaluate import eval_command
from krm_runner.cli.serve import serve_command

_HELP = """\
krm-runner runs KRM functions for Porch and kpt.

Usage: krm-runner COMMAND [FLAGS]

Commands:
  eval       run one function on a package, here or by a runner
  serve      serve functions over gRPC (also installed as function-runner)
  version    print the version

`krm-runner COMMAND --help` says more about a command.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of `krm-runner`."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    _open_standard_streams()
    command = arguments[0] if arguments else ""
    if command == "eval":
        return eval_command(arguments[1:])
    if command == "serve":
        return serve_command(arguments[1:], program="krm-runner serve")
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
    _open_standard_streams()
    return serve_command(list(sys.argv[1:] if argv is None else argv), program="function-runner")


def _open_standard_streams() -> None:
    """A process started without 0, 1 or 2 would give those numbers to its next files, and hand them to functions."""
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
