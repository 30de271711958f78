"""Whose an output folder is: one live run at a time, and none that differs; a dead run is not in the way."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from functools import partial

import pytest

from data_pipeline.core.errors import KinspanError
from pretrain.engine import run_folder
from pretrain.engine.run_folder import CHECKPOINTS, RUN, claim_folder, holds_this_run, lock_folder, open_folder

RECORD = {"identity": {"seed": 1}, "model": "a name"}


@pytest.fixture
def begun(tmp_path):
    """The folder of a run that has come to a checkpoint."""
    folder = tmp_path / "run"
    folder.mkdir()
    assert claim_folder(folder, RECORD)
    (folder / CHECKPOINTS / "step-00000001").mkdir(parents=True)
    return folder


def test_what_another_rank_tries_is_no_file_of_the_folder(tmp_path, monkeypatch):
    """On a network disk a temporary file has a name for a moment."""
    monkeypatch.setattr("tempfile.TemporaryFile", partial(tempfile.NamedTemporaryFile, delete=False))
    assert open_folder(tmp_path) == open_folder(tmp_path) == tmp_path


def test_a_run_goes_on_in_its_own_folder(begun):
    assert holds_this_run(begun, RECORD)
    assert not claim_folder(begun, RECORD)
    for identity in ({"seed": 2}, {}, {"seed": 1, "more": True}):
        with pytest.raises(KinspanError, match="--output_dir"):
            holds_this_run(begun, {"identity": identity})
    (begun / RUN).write_text(json.dumps(RECORD))  # as another version
    with pytest.raises(KinspanError, match=RUN):
        holds_this_run(begun, RECORD)


def test_an_incomplete_checkpoint_holds_no_run(begun):
    (begun / CHECKPOINTS / "step-00000001").rename(begun / CHECKPOINTS / "step-00000001.a1b2c3.tmp")
    assert claim_folder(begun, {"identity": {"seed": 2}})


def test_a_refusal_is_not_lost_where_the_folder_cannot_go(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    with pytest.raises(KinspanError, match="refused"), lock_folder(tmp_path / "link"):
        raise KinspanError("refused")


def test_a_lock_that_the_last_run_removes_meanwhile_is_made_anew(tmp_path, monkeypatch):
    lock = run_folder.lock_handle

    def remove(*given):
        monkeypatch.undo()
        (tmp_path / "lock").unlink()
        lock(*given)

    monkeypatch.setattr(run_folder, "lock_handle", remove)
    with lock_folder(tmp_path):
        assert (tmp_path / "lock").exists()


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
