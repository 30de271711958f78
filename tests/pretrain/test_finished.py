"""A complete run says so before anything is loaded, and so it says how to train its model for longer."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_pipeline.core.errors import KinspanError
from pretrain.config import PretrainConfig, as_dict
from pretrain.finished import SUMMARY, find_finished

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def finished(tmp_path):
    """The settings of a complete run, in a folder with what tells that it is."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "manifest.json").write_text("{}")
    config = PretrainConfig(corpus=str(corpus), output_dir=str(tmp_path / "my run"), max_steps=7)
    last = tmp_path / "my run/checkpoints/step-00000007"
    last.mkdir(parents=True)
    (last / "manifest.json").write_text("{}")
    (tmp_path / "my run" / SUMMARY).write_text(json.dumps({"steps": 7, "config": as_dict(config)}))
    return as_dict(config)


def test_the_same_settings_again(finished, tmp_path):
    assert find_finished(PretrainConfig(**finished | {"log_steps": 3})) == tmp_path / "my run" / SUMMARY


def test_more_steps_are_refused_with_the_way_to_go_on(finished):
    with pytest.raises(KinspanError, match="--max_steps"):
        find_finished(PretrainConfig(**finished | {"max_steps": 14}))


@pytest.mark.parametrize("objective", ["mine:NEXT", "ssp:2+mine:NEXT:1"])
def test_an_own_objective_whose_code_may_have_changed_is_looked_at(objective, finished, tmp_path):
    finished["objective"] = objective
    (tmp_path / "my run" / SUMMARY).write_text(json.dumps({"steps": 7, "config": finished}))
    assert find_finished(PretrainConfig(**finished)) is None


@pytest.mark.parametrize("change", ["seed", "warmup", "corpus", "link", "checkpoint", "summary"])
def test_where_the_folder_does_not_tell_the_run_finds_out(change, finished, tmp_path):
    if change == "seed":
        finished["seed"] = 2
    elif change == "warmup":  # which is no length
        finished["warmup_steps"] = 3
    elif change == "corpus":
        later = (tmp_path / "my run" / SUMMARY).stat().st_mtime + 9
        os.utime(tmp_path / "corpus/manifest.json", (later, later))
    elif change == "link":
        (tmp_path / "corpus/nothing").symlink_to("absent")
    elif change == "checkpoint":
        (tmp_path / "my run/checkpoints/step-00000007/manifest.json").unlink()
    else:
        (tmp_path / "my run" / SUMMARY).write_text("{")
    assert find_finished(PretrainConfig(**finished)) is None


def test_nothing_heavy_is_imported_for_it():
    code = "import launch.pretrain, sys; assert not {'torch', 'pyarrow', 'transformers'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)
