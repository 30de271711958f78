"""The short form of the chaos: kills, damage and faults, as `python tests/chaos/run.py --short` runs them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_runs_survive(tmp_path):
    command = [sys.executable, str(ROOT / "tests/chaos/run.py"), "--short", "--work", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    trials = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert all(trial["ok"] for trial in trials)
    assert {trial["what"] for trial in trials} == {"kills", "damage", "injected"}
    struck = [start for trial in trials if trial["what"] == "kills" for start in trial["starts"] if start["struck"]]
    assert struck
    assert any(start["resumed_at"] for trial in trials for start in trial["starts"])
