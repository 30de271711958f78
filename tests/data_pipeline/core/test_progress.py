"""Bars where a terminal is, lines where none is, and nothing from other ranks."""

import pytest

from data_pipeline.core import progress
from data_pipeline.core.progress import show_progress


@pytest.mark.parametrize(("rank", "lines"), [("0", ["things: 2 of 2 steps, 00:00 left, late"]), ("1", [])])
def test_without_a_terminal_the_first_rank_tells_lines(monkeypatch, capsys, rank, lines):
    monkeypatch.setattr(progress, "EVERY", 0.0)
    monkeypatch.setenv("RANK", rank)
    with show_progress("things", "steps", total=2) as bar:
        bar.set_postfix_str("late", refresh=False)
        bar.update(2)
    assert capsys.readouterr().err.splitlines()[-1:] == lines
