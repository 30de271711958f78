"""What DeepSpeed is given, without DeepSpeed itself."""

import glob
import os
import re

import pytest

from pretrain.engine.deepspeed_compat import plain_path


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
