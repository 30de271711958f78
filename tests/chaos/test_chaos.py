"""The short form of the chaos: kills, damage and faults, as `python tests/chaos/run.py --short` runs them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def chaos(*arguments, timeout):
    command = [sys.executable, str(ROOT / "tests/chaos/run.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout)


def test_help_teaches():
    done = chaos("--help", timeout=60)
    assert done.returncode == 0, done.stderr
    assert "examples:" in done.stdout


@pytest.mark.slow
def test_runs_survive(tmp_path):
    done = chaos("--short", "--work", tmp_path, timeout=1200)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    trials = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert all(trial["ok"] for trial in trials)
    assert {trial["what"] for trial in trials} == {"kills", "damage", "injected"}
    struck = [start for trial in trials if trial["what"] == "kills" for start in trial["starts"] if start["struck"]]
    assert struck
    assert any(start["resumed_at"] for trial in trials for start in trial["starts"])
