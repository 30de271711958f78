"""Releases of fine-tuned rankers, and figures that other commands measured."""

import json

import pytest
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder

from data_pipeline.core.errors import KinspanError
from finetune.ranking.ranker import find_max_length
from finetune.training.experiment import run_experiment
from finetune.training.release import find_ranker, release_ranker
from launch.commands import release as entry
from pretrain.release.card import CardOverrides
from tests.fake_hub import find_faults
from tests.finetune.training.runs import small_config


@pytest.fixture(scope="module")
def experiment(tmp_path_factory, write_sets, model):
    """A folder of two seeds."""
    folder = tmp_path_factory.mktemp("experiment")
    settings = {"seeds": 2, "epochs": 2, "batch_size": 4, "max_length": None, "log_steps": 2}
    run_experiment(small_config(write_sets(train=6), model, folder / "out", **settings))
    return folder / "out"


def test_the_seed_with_the_best_dev_map_is_taken(experiment, tmp_path):
    results = json.loads((experiment / "results.json").read_text())
    assert results["settings"]["max_length"] == find_max_length(results["settings"]["model"]) == 512
    best = max(results["seeds"], key=lambda run: run["dev"]["map"])["seed"]
    for run in results["seeds"]:
        run["dev"]["map"], run["test"]["map"] = float(run["seed"] == best), float(run["seed"] != best)
    (tmp_path / "results.json").write_text(json.dumps(results))
    (tmp_path / f"seed-{best}").symlink_to(experiment / f"seed-{best}")
    assert find_ranker(tmp_path) == tmp_path / f"seed-{best}/best"
    assert find_ranker(experiment) == experiment / f"seed-{best}/best"
    assert find_ranker(experiment / "seed-2") == find_ranker(experiment / "seed-2/best") == experiment / "seed-2/best"
    assert find_ranker(experiment / "seed-1/dev") is None
    about = experiment / f"seed-{best}/best/ranker.json"
    about.rename(experiment / "kept")
    with pytest.raises(KinspanError, match=f"seed-{best}/best"):
        find_ranker(experiment)
    (experiment / "kept").rename(about)
    (tmp_path / "seed-1.log").write_text("")
    assert find_ranker(tmp_path) == tmp_path / f"seed-{best}/best"
    (tmp_path / "seed-7").mkdir()  # of another command with this output folder
    with pytest.raises(KinspanError, match="seed-7"):
        find_ranker(tmp_path)
    summary = experiment / "seed-2/summary.json"
    summary.rename(experiment / "kept")  # as of a run that was killed
    for folder in ("seed-2", "seed-2/best"):
        with pytest.raises(KinspanError, match="seed-2"):
            find_ranker(experiment / folder)
    (experiment / "kept").rename(summary)


def test_a_seeds_folder_is_released(experiment, tmp_path, monkeypatch):
    flags = ["--run_dir", str(experiment / "seed-1"), "--output_dir", str(tmp_path / "release")]
    monkeypatch.setattr("sys.argv", ["release", *flags])
    assert "seed-1/best" in entry.main()


def test_a_released_ranker_scores_as_it_did_and_its_card_has_its_figures(experiment, tmp_path):
    ranker = find_ranker(experiment / "seed-1")
    folder = release_ranker(ranker, tmp_path / "release", CardOverrides("mit", languages=("en",)))
    pairs = [("a river", "the water"), ("a river", "a violin")]
    assert CrossEncoder(str(folder)).predict(pairs) == pytest.approx(CrossEncoder(str(ranker)).predict(pairs))
    assert load_file(str(folder / "model.safetensors")).keys() == load_file(str(ranker / "model.safetensors")).keys()
    card = (folder / "README.md").read_text()
    assert not find_faults(card)
    measured = {"data": "our-tickets", "figures": {"test": {"map": 0.5}}}
    own = release_ranker(ranker, tmp_path / "own", measured=measured) / "README.md"
    assert "fine-tuned on our-tickets" in own.read_text()
    assert "files" not in own.read_text()
    assert "| test | 0.5000 |" in own.read_text()
    test = json.loads((experiment / "results.json").read_text())["seeds"][0]["test"]
    assert f"| test | {test['map']:.4f} |" in card
    assert (folder / "training_curve.png").exists()
    assert json.loads((folder / "kinspan.json").read_text())["revision"].startswith("seed-1-step-")
    assert not any(str(tmp_path.parent) in path.read_text() for path in folder.glob("*.json"))
