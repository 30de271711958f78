"""One live run at a time on a folder; a dead one is not in the way."""

import fcntl
import os
import signal
import subprocess
import sys

import pytest

from data_pipeline.core.errors import KinspanError
from pretrain.engine.run_folder import lock_folder

HOLD = "import sys, time\nfrom pathlib import Path\nfrom pretrain.engine.run_folder import lock_folder\n"
HOLD += "with lock_folder(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"


def test_a_live_run_is_respected_and_a_killed_one_taken_over(tmp_path):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(KinspanError, match=f"is in use by process {holder.pid} on "), lock_folder(tmp_path):
        pass
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with lock_folder(tmp_path):
        assert f"process {os.getpid()}" in (tmp_path / "lock").read_text()


def test_a_refused_run_leaves_no_folder_and_another_keeps_its_own(tmp_path):
    for name in ("refused", "kept"):
        with lock_folder(tmp_path / name):
            (tmp_path / name / "run.json").touch()
            if name == "refused":
                (tmp_path / name / "run.json").unlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept"]


def test_a_lock_that_was_made_anew_meanwhile_is_locked_itself(tmp_path, monkeypatch):
    """Between opening and locking, the run before removes the file, and a third one makes another: which all lock."""
    flock, path = fcntl.flock, tmp_path / "lock"

    def lock_late(file, how):
        monkeypatch.setattr(fcntl, "flock", flock)
        path.rename(tmp_path / "removed")
        path.touch()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", lock_late)
    with lock_folder(tmp_path):
        assert f"process {os.getpid()}" in path.read_text()
