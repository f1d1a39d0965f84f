"""Running a function: stdin to stdout, failures as results, and the exit code that says so."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

import yaml

from krm_function.package import Package


class FunctionError(Exception):
    """The function cannot do its work. The message becomes a result of severity error, and the exit code is 1."""


def run(function: Callable[[Package], None]) -> NoReturn:
    """Read a ResourceList from stdin, let `function` change it, write it to stdout, and exit.

    The exit code is 1 when the function raised FunctionError or reported an error, else 0.
    """
    try:
        package = Package(sys.stdin.buffer.read().decode())
    except (ValueError, yaml.YAMLError) as error:
        sys.exit(f"the input is no ResourceList: {error}")
    try:
        function(package)
    except FunctionError as error:
        package.report(str(error), severity="error")
        sys.stderr.write(f"{error}\n")
    sys.stdout.buffer.write(package.render().encode())
    sys.stdout.buffer.flush()
    sys.exit(1 if package.has_errors else 0)
