"""The page about pods shows the states and moves that the pool really has."""

from __future__ import annotations

import re
from pathlib import Path

from krm_runner.core.pool_terms import MOVES, PodState

PAGE = (Path(__file__).parents[2] / "docs" / "pods.md").read_text()


def _name(state: PodState | None) -> str:
    return "[*]" if state is None else state.name.lower()


def test_the_picture_has_every_move_and_no_other() -> None:
    shown = re.findall(r"^    (\S+) --> (\S+): (.+)$", PAGE, re.MULTILINE)
    assert shown == [(_name(before), _name(after), why) for (before, after), why in MOVES.items()]


def test_the_table_has_every_state() -> None:
    shown = re.findall(r"^\| (\w+) \|", PAGE.partition("| --- |")[2], re.MULTILINE)
    assert shown == [_name(state) for state in PodState]
