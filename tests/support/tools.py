"""Programs that tests need of the machine."""

from __future__ import annotations

import shutil

from support.machine import missing


def need(*programs: str) -> None:
    """Skip the test, or fail it in CI, unless all programs are installed."""
    absent = [program for program in programs if shutil.which(program) is None]
    if absent:
        missing(f"{', '.join(absent)} not installed (tests/integration/ensure-tools.sh says what to install)")
