"""The average of a run's last checkpoints."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from data_pipeline.core.errors import KinspanError
from pretrain.checkpoints.manifest import make_entry, write_manifest
from pretrain.release.release import average_weights, release


@pytest.fixture
def run(trained):
    """A run with checkpoints of the steps 3, 6 and 9, whose weights differ."""
    folder, _ = trained
    first = folder / "checkpoints/step-00000003"
    for step in (6, 9):
        later = folder / f"checkpoints/step-{step:08d}"
        shutil.copytree(first, later)
        weights = load_file(str(first / "weights.safetensors"))
        save_file({name: tensor + step for name, tensor in weights.items()}, str(later / "weights.safetensors"))
        (later / "state.json").write_text(json.dumps({"step": step}))
        files = ["weights.safetensors", "state.json"]
        write_manifest(later, {name: make_entry(later / name) for name in files})
        with (folder / "metrics.jsonl").open("a") as log:
            log.write(json.dumps({"step": step, "split": "validation", "pair_loss": 0.4, "pair_auc": 0.8}) + "\n")
    return folder


def read(folder):
    return load_file(str(folder / "model.safetensors"))


def test_the_average_is_the_mean_of_each_tensor(run, tmp_path):
    one = read(release(run / "checkpoints/step-00000003", tmp_path / "one"))
    three = read(release(run, tmp_path / "three", average=3))
    assert three.keys() == one.keys()
    for name, tensor in three.items():
        assert tensor.dtype == torch.float32
        assert torch.allclose(tensor, one[name] + 5, atol=1e-5), name


def test_the_average_of_one_is_that_one(run):
    checkpoint = run / "checkpoints/step-00000006"
    weights = load_file(str(checkpoint / "weights.safetensors"))
    assert all(torch.equal(tensor, weights[name]) for name, tensor in average_weights([checkpoint]).items())


def test_it_ends_with_the_checkpoint_that_was_asked_for_and_says_so(run, tmp_path):
    folder = release(run / "checkpoints/step-00000006", tmp_path / "two", average=2)
    facts = json.loads((folder / "kinspan.json").read_text())
    assert facts["averaged_steps"] == [3, 6]
    assert facts["revision"] == "step-00000006-average-2"
    assert "the average of the steps 3, 6" in (folder / "README.md").read_text()


def test_damaged_checkpoints_are_not_averaged(run, tmp_path):
    (run / "checkpoints/step-00000006/weights.safetensors").write_bytes(b"x")
    folder = release(run, tmp_path / "two", average=2)
    assert json.loads((folder / "kinspan.json").read_text())["averaged_steps"] == [3, 9]


def test_too_few_checkpoints_are_one_line(run, tmp_path):
    with pytest.raises(KinspanError, match="--average 4"):
        release(run, tmp_path / "four", average=4)
    assert not (tmp_path / "four").exists()
