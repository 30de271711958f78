"""What a stage measures of itself, and shows."""

import multiprocessing
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.prepare.engine import stage as module
from data_pipeline.prepare.engine.stage import Stage, measure_peak, show_progress


def _hold(count: int) -> tuple[int, int]:
    """The peak of a new process before and after it holds so many numbers: what ran before it has set none."""
    before = measure_peak()
    held = np.ones(count)
    assert held[-1]
    return before, measure_peak()


def test_peak_is_of_the_process_and_not_of_the_one_that_started_it() -> None:
    held = np.ones(2**26)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        before, after = pool.apply(_hold, (2**25,))
    assert before < held.nbytes
    assert after >= before + 8 * 2**25 * 0.9


@pytest.mark.parametrize("terminal", [True, False])
def test_a_bar_fills_no_log(terminal: bool, tmp_path: Path, monkeypatch, capsys) -> None:
    """A job of a day would otherwise leave megabytes of the same line in its output."""
    monkeypatch.setattr(module, "NOTE_SECONDS", 0.01)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    (tmp_path / "progress").mkdir()
    with show_progress(Stage("s", "counting", print, [1], ["one"], tmp_path), quiet=False):
        for count in range(1, 51):
            (tmp_path / "progress/00000").write_text(str(count))
            time.sleep(0.02)
    shown = [line for line in capsys.readouterr().err.replace("\n", "\r").split("\r") if line.strip()]
    assert shown[0].startswith("counting: 0 documents")
    assert shown[-1].startswith("counting: 50 documents")
    assert len(shown) > 10 if terminal else len(shown) <= 3
