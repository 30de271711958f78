"""Whose an output folder is."""

import json

import pytest

from data_pipeline.core.errors import KinspanError
from pretrain.engine.run_folder import CHECKPOINTS, RUN, claim_folder, holds_this_run

RECORD = {"identity": {"seed": 1}, "model": "a name"}


@pytest.fixture
def begun(tmp_path):
    """The folder of a run that has come to a checkpoint."""
    folder = tmp_path / "run"
    folder.mkdir()
    assert claim_folder(folder, RECORD)
    (folder / CHECKPOINTS / "step-00000001").mkdir(parents=True)
    return folder


def test_a_run_goes_on_in_its_own_folder(begun):
    assert holds_this_run(begun, RECORD)
    assert not claim_folder(begun, RECORD)
    for identity in ({"seed": 2}, {}, {"seed": 1, "more": True}):
        with pytest.raises(KinspanError, match="--output_dir"):
            holds_this_run(begun, {"identity": identity})


def test_a_run_of_another_version_is_refused(begun):
    (begun / RUN).write_text(json.dumps(RECORD))
    with pytest.raises(KinspanError, match=RUN):
        holds_this_run(begun, RECORD)
