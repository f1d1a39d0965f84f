"""A table for a terminal or for Markdown, from the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Column:
    """A heading; `group` stands above the headings of neighbours that share it."""

    group: str
    name: str
    left: bool = False

    @property
    def heading(self) -> str:
        """Group and name on one line."""
        return f"{self.group} {self.name}".strip()


def text(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """Aligned, with the groups in a line of their own."""
    widths = [
        max(len(column.group), len(column.name), *(len(row[index]) for row in rows), 0)
        for index, column in enumerate(columns)
    ]
    groups = [
        column.group if index == 0 or columns[index - 1].group != column.group else ""
        for index, column in enumerate(columns)
    ]
    lines = [groups, [column.name for column in columns], *rows]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column.left else cell.rjust(width)
            for cell, width, column in zip(line, widths, columns, strict=True)
        ).rstrip()
        for line in lines
    )


def markdown(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> str:
    """As docs/performance.md has it."""
    lines = [
        [column.heading for column in columns],
        ["---" if column.left else "---:" for column in columns],
        *rows,
    ]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
