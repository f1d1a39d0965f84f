"""The picture of the page on performance is that of its tables."""

from __future__ import annotations

import pytest

from bench.measure import BenchmarkError
from bench.plot import Bar, drawn, tables
from support.machine import ROOT

TABLE = """
<!-- wrapper -->

| size | callers | wrapper/Go ratio | wrapper/Go rounds |
| ---: | ---: | ---: | ---: |
| 2KB | 8 | 1.25 | 1.10-1.31 |

<!-- /wrapper -->
"""


def test_the_picture_is_that_of_the_tables() -> None:
    page = ROOT / "docs" / "performance.md"
    assert page.with_suffix(".svg").read_text() == drawn(page.read_text()), "python -m bench.plot docs/performance.md"


def test_a_row_becomes_a_bar() -> None:
    assert list(tables(TABLE)) == [
        ("wrapper server: calls/s against a minimal one in Go", [Bar("2KB · 8", 1.25, 1.10, 1.31)])
    ]
    assert ">1.25<" in drawn(TABLE)


def test_a_page_without_figures_has_no_picture() -> None:
    with pytest.raises(BenchmarkError, match="no table"):
        drawn("# Performance")
