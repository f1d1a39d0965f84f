"""`krm-runner serve`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence

from krm_runner import __version__
from krm_runner.app.service import serve
from krm_runner.core.errors import ConfigurationError, ServeError
from krm_runner.settings import SERVE_FLAGS, parse_settings
from krm_runner.settings.go_flags import render_help

_HELP = """\
{program} serves KRM functions over gRPC (evaluator.FunctionEvaluator), with health and reflection.

A function is served as a local executable if the configuration file names one for its image, else in a Kubernetes pod
of that image, in the cluster that this process runs in or that KUBECONFIG names.

Usage: {program} [FLAGS]

Flags are written --flag=value or --flag value, durations as 90s, 30m or 1h30m. Defaults stand in brackets.

{flags}

Environment:
  WRAPPER_SERVER_IMAGE          image of the wrapper server; the pod runtime needs it
  KUBECONFIG                    the cluster, when this process does not run in one
  OTEL_METRICS_EXPORTER         none (default), prometheus, otlp or console
  OTEL_EXPORTER_PROMETHEUS_HOST, _PORT    where prometheus finds the metrics (localhost, 9464)
  OTEL_TRACES_EXPORTER          none (default), otlp or console; other OTEL_ variables as OpenTelemetry defines them

Signals: SIGTERM and SIGINT stop without losing calls, a second one at once; SIGHUP reads the configuration again.
Exit codes: 0 after a signal, 1 when it cannot run here (port in use), 2 when flags or files are wrong.
"""


def serve_command(argv: Sequence[str], *, program: str) -> int:
    """Run the service; returns the exit code."""
    if any(argument in ("-h", "--help") for argument in argv):
        sys.stdout.write(_HELP.format(program=program, flags=render_help(SERVE_FLAGS)))
        return 0
    if "--version" in argv:
        sys.stdout.write(f"{program} {__version__}\n")
        return 0
    try:
        settings = parse_settings(argv, os.environ)
        asyncio.run(serve(settings))
    except ConfigurationError as error:
        return _fail(program, error, 2)
    except ServeError as error:
        return _fail(program, error, 1)
    return 0


def _fail(program: str, error: Exception, code: int) -> int:
    sys.stderr.write(f"{program}: {error}\n")
    return code
