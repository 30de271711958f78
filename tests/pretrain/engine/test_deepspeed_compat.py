"""What DeepSpeed is given, without DeepSpeed itself."""

import glob
import os
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from pretrain.engine.deepspeed_compat import load_own_checkpoint, plain_path


@pytest.mark.parametrize("name", ["runs [3]", "c++ (1)", "a*b?", "plain"])
def test_a_plain_path_survives_wildcards_and_regular_expressions(name, tmp_path):
    folder = tmp_path / name
    folder.mkdir()
    (folder / "mp_rank_00.pt").write_text("here")
    with plain_path(folder) as plain:
        (found,) = glob.glob(f"{plain}/mp_rank_*.pt")
        assert re.match(f"{plain}/mp_rank_([0-9]+)", found)
        (plain / "written").touch()
    assert not plain.exists()
    assert sorted(os.listdir(folder)) == ["mp_rank_00.pt", "written"]


def test_loading_keeps_the_working_directory_which_all_threads_share(tmp_path, monkeypatch, capsys):
    """A heartbeat behind a relative --output_dir is written meanwhile, and a block of a relative --corpus is read."""
    (tmp_path / "runs/step-1").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    seen = []

    def load(path, tag):
        print("_load_legacy_checkpoint current_rank_sd[BASE_OPTIMIZER_STATE]")  # as DeepSpeed does in bf16
        seen.append((os.getcwd(), os.path.realpath(path)))
        return path, {}

    assert load_own_checkpoint(SimpleNamespace(load_checkpoint=load), Path("runs/step-1"), "engine")
    assert capsys.readouterr().out == ""
    assert seen == [(str(tmp_path), str(tmp_path / "runs/step-1"))]
