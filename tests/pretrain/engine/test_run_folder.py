"""Whose an output folder is."""

import json

import pytest

from data_pipeline.core.errors import KinspanError
from pretrain.engine.run_folder import CHECKPOINTS, RUN, SUMMARY, VERSIONS, claim_folder, holds_this_run

RECORD = {"identity": {"seed": 1}, "model": "a name"}


@pytest.fixture
def begun(tmp_path):
    """The folder of a run that has come to a checkpoint."""
    folder = tmp_path / "run"
    folder.mkdir()
    assert claim_folder(folder, RECORD)
    (folder / CHECKPOINTS / "step-00000001").mkdir(parents=True)
    return folder


def make_older(folder, key):
    written = json.loads((folder / RUN).read_text())
    del written[key]
    (folder / RUN).write_text(json.dumps(written))


def test_a_run_goes_on_in_its_own_folder(begun):
    assert holds_this_run(begun, RECORD)
    assert not claim_folder(begun, RECORD)
    with pytest.raises(KinspanError, match="its seed is 1, now it is 2"):
        holds_this_run(begun, {"identity": {"seed": 2}})


@pytest.mark.parametrize("key", VERSIONS)
def test_a_run_of_an_older_version_is_refused_with_the_commit_that_resumes_it(begun, key):
    make_older(begun, key)
    with pytest.raises(KinspanError, match=f"of {key} 1, where this is 2: commit {VERSIONS[key][1]} of"):
        holds_this_run(begun, RECORD)


@pytest.mark.parametrize("key", VERSIONS)
def test_a_complete_run_is_found_whatever_its_version(begun, key):
    make_older(begun, key)
    (begun / SUMMARY).write_text("{}")
    assert holds_this_run(begun, RECORD)
