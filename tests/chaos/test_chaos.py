"""The short form of the chaos: kills, damage and faults, as `python tests/chaos/run.py --short` runs them."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.timeout(3000)  # eleven starts of two ranks, each of which has a limit of its own
def test_runs_survive(tmp_path):
    command = [sys.executable, str(ROOT / "tests/chaos/run.py"), "--short", "--work", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-3000:]
    assert all(f"{part} " in done.stdout for part in ("kills", "damage", "injected"))
    assert " 0 failed" in done.stdout
