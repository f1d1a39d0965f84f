"""How a benchmark is asked for and how it reports: the options that all have, the table, and where it goes."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from bench import programs, table
from bench.measure import BenchmarkError, update
from bench.table import Column


def parser(module: str, description: str | None, *, quick: str) -> argparse.ArgumentParser:
    """With the options of all benchmarks; `quick` says what the short form measures."""
    found = argparse.ArgumentParser(prog=f"python -m bench.{module}", description=description)
    found.add_argument("--quick", action="store_true", help=quick)
    found.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    found.add_argument("--update", type=Path, metavar="FILE", help="put the table into this document, at its marks")
    return found


def machine() -> str:
    """What was measured on."""
    return f"{os.cpu_count()} CPUs, Linux {platform.release().partition('-')[0]}"


def publish(
    arguments: argparse.Namespace, mark: str, about: str, columns: Sequence[Column], rows: Sequence[Sequence[str]]
) -> None:
    """Print the table, and put it between the marks of a document if that was asked for."""
    render = table.markdown if arguments.markdown or arguments.update else table.text
    rendered = f"{about}\n\n{render(columns, rows)}"
    print(rendered)
    if arguments.update:
        update(arguments.update, mark, rendered)


def run(main: Callable[[], None]) -> None:
    """A benchmark as a program: what makes its figures worthless is one line."""
    try:
        main()
    except (BenchmarkError, programs.MissingToolError) as error:
        sys.exit(f"bench: {error}")
