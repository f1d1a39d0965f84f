"""`krm-runner doctor`: looks at an installation, and says line by line what works and what to mend."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from krm_runner.app.doctor import examine
from krm_runner.cli.terminal import Terminal
from krm_runner.core.errors import ConfigurationError
from krm_runner.core.finding import Finding, State
from krm_runner.core.verdict import printable
from krm_runner.settings.doctor import SHOWN_FLAGS, DoctorSettings, parse_doctor_settings
from krm_runner.settings.go_flags import render_help
from krm_runner.telemetry import logs

_HELP = """\
krm-runner doctor looks at an installation of the runner and says what works and what to mend. It changes nothing.

Usage: krm-runner doctor [FLAGS]

It asks the API server for every right that the runner needs, looks at the namespace and the template of function pods,
sends a function pod as a dry run, asks the cluster's DNS and the registries, and lets a runner evaluate a function.
Every line is one of these:

  [ OK ]  it works
  [WARN]  it works, but something is missing or open; what to do stands below
  [FAIL]  calls will fail; what to do stands below
  [SKIP]  it could not be looked at from here

Inside the runner's container it knows the runner's flags and has its rights. Elsewhere it uses KUBECONFIG, and takes
the runner's flags (all of `krm-runner serve`; those that matter most are listed here):

{flags}

Examples:
  kubectl -n porch-system exec deploy/function-runner -- krm-runner doctor --address=localhost:9445
  krm-runner doctor --account=porch-system/porch-fn-runner --function-pod-template=kpt-function-eval-pod-template
  krm-runner doctor --address=localhost:9445 --image=registry.example.com/team/fn:v1

Exit codes: 0 nothing is broken, 1 something is, 2 the command makes no sense.
"""
_TAGS = {State.OK: "[ OK ]", State.WARN: "[WARN]", State.FAIL: "[FAIL]", State.SKIP: "[SKIP]"}
_COLORS = {State.OK: "32", State.WARN: "33", State.FAIL: "31", State.SKIP: "90"}
_RUNNERS = ("function-runner", "server")
_INTERRUPTED = 130


def doctor_command(argv: Sequence[str], *, first_process: Path = Path("/proc/1/cmdline")) -> int:
    """Look; returns the exit code."""
    if any(argument in ("-h", "--help") for argument in argv):
        sys.stdout.write(_HELP.format(flags=render_help(SHOWN_FLAGS)))
        return 0
    terminal = Terminal()
    logs.configure(level=0, log_format="text")
    try:
        settings = parse_doctor_settings(argv, os.environ, runner_arguments(first_process))
        return asyncio.run(_look(settings, terminal))
    except ConfigurationError as error:
        terminal.line(f"krm-runner doctor: {error}")
        return 2
    except KeyboardInterrupt:
        return _INTERRUPTED


async def _look(settings: DoctorSettings, terminal: Terminal) -> int:
    counts = dict.fromkeys(State, 0)
    async with terminal.waiting("looking"):
        async for finding in examine(settings):
            counts[finding.state] += 1
            _show(finding, has_colors=_has_colors(os.environ))
    broken, warned = counts[State.FAIL], counts[State.WARN]
    sys.stdout.write(f"{broken} broken, {warned} to look at, {counts[State.OK]} fine, {counts[State.SKIP]} not seen\n")
    return 1 if broken else 0


def _show(finding: Finding, *, has_colors: bool) -> None:
    tag = _TAGS[finding.state]
    if has_colors:
        tag = f"\x1b[{_COLORS[finding.state]}m{tag}\x1b[0m"
    sys.stdout.write(f"{tag}  {printable(' '.join(finding.what.split()).encode())}\n")
    if finding.fix:
        sys.stdout.write(f"        fix: {finding.fix}\n")
    sys.stdout.flush()


def _has_colors(environment: Mapping[str, str]) -> bool:
    return sys.stdout.isatty() and environment.get("TERM", "dumb") != "dumb" and not environment.get("NO_COLOR")


def runner_arguments(first_process: Path) -> list[str]:
    """The flags of the runner in this container: its first process, if that is one."""
    try:
        words = first_process.read_bytes().rstrip(b"\0").decode(errors="replace").split("\0")
    except OSError:
        return []
    for position, word in enumerate(words[:4]):
        name = word.rpartition("/")[2]
        if name in _RUNNERS:
            return words[position + 1 :]
        if name == "krm-runner" and words[position + 1 : position + 2] == ["serve"]:
            return words[position + 2 :]
    return []
