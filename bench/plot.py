"""The picture of docs/performance.md: ratios to the floor of the same run, drawn from the page's own tables.

    python -m bench.plot docs/performance.md     # writes docs/performance.svg

It has no figures of its own: what is drawn is what the tables between the marks say.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.measure import BenchmarkError

# What is drawn of which table: its mark, a heading, and the columns of ratio and rounds.
_PARTS = (
    ("measured", "exec runtime: calls/s against a bare loop", "runner/bare ratio", "runner/bare rounds"),
    ("wrapper", "wrapper server: calls/s against a minimal one in Go", "wrapper/Go ratio", "wrapper/Go rounds"),
    ("warm", "runner and pod: calls/s against the wrapper server alone", "throughput ratio", "throughput rounds"),
    ("cluster", "the same with real pods, on a cluster", "throughput ratio", "throughput rounds"),
)
_LABELS = {"function": "", "size": "", "pods": " pods", "callers": ""}
"""The columns that say what a row is of, and what stands behind them."""
_WIDTH, _LEFT, _ROW, _TOP = 760, 250, 18, 34
_FULL = 1.8
"""The ratio at the right edge."""


@dataclass(frozen=True, slots=True)
class Bar:
    """A ratio, and the lowest and highest of the rounds."""

    label: str
    ratio: float
    lowest: float
    highest: float


def tables(page: str) -> Iterator[tuple[str, list[Bar]]]:
    """Headings and bars, of all tables that have been measured."""
    for mark, heading, ratio, rounds in _PARTS:
        found = re.search(rf"<!-- {mark} -->\n(.*?)<!-- /{mark} -->", page, re.DOTALL)
        lines = [line for line in found[1].splitlines() if line.startswith("|")] if found else []
        if not lines:
            continue
        names, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
        bars: list[Bar] = []
        for row in rows:
            cells = dict(zip(names, row, strict=True))
            lowest, highest = cells[rounds].split("-")
            label = " · ".join(cells[name] + unit for name, unit in _LABELS.items() if name in cells)
            bars.append(Bar(label, float(cells[ratio]), float(lowest), float(highest)))
        yield heading, bars


def drawn(page: str) -> str:
    """The picture; BenchmarkError when there is nothing to draw."""
    content: list[str] = []
    y = 0
    for heading, bars in tables(page):
        content.append(f'<text x="8" y="{y + 22}" class="heading">{heading}</text>')
        for index, bar in enumerate(bars):
            content += _bar(bar, y + _TOP + index * _ROW)
        bottom = y + _TOP + len(bars) * _ROW
        content.append(f'<line x1="{_x(1):.1f}" x2="{_x(1):.1f}" y1="{y + _TOP - 4}" y2="{bottom}" class="floor"/>')
        y = bottom + 16
    if not content:
        raise BenchmarkError("the page has no table with ratios")
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {y}" role="img"'
            ' aria-label="ratios of throughput to the floor of the same run">',
            "<style>",
            "  rect.page { fill: #ffffff } text { font: 12px sans-serif; fill: #222222 }",
            "  .heading { font-weight: bold } .label { text-anchor: end } rect.bar { fill: #4878a8 }",
            "  line.rounds { stroke: #222222 } line.floor { stroke: #b03030; stroke-dasharray: 4 3 }",
            "</style>",
            f'<rect class="page" width="{_WIDTH}" height="{y}"/>',
            *content,
            "</svg>\n",
        ]
    )


def _bar(bar: Bar, y: int) -> list[str]:
    middle = y + _ROW / 2 - 2
    return [
        f'<text x="{_LEFT - 8}" y="{y + 11}" class="label">{bar.label}</text>',
        f'<rect x="{_LEFT}" y="{y}" width="{_x(bar.ratio) - _LEFT:.1f}" height="{_ROW - 4}" class="bar"/>',
        f'<line x1="{_x(bar.lowest):.1f}" x2="{_x(bar.highest):.1f}" y1="{middle}" y2="{middle}" class="rounds"/>',
        f'<text x="{max(_x(bar.ratio), _x(bar.highest)) + 6:.1f}" y="{y + 11}">{bar.ratio:.2f}</text>',
    ]


def _x(ratio: float) -> float:
    return _LEFT + (_WIDTH - _LEFT - 50) * min(ratio, _FULL) / _FULL


if __name__ == "__main__":
    document = Path(sys.argv[1])
    document.with_suffix(".svg").write_text(drawn(document.read_text()))
