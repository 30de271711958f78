"""Releases of fine-tuned rankers, and figures that other commands measured."""

import json

import pytest
from huggingface_hub import ModelCard
from safetensors.torch import load_file
from sentence_transformers import CrossEncoder

from data_pipeline.core.errors import KinspanError
from finetune.reports.measured import read_results
from finetune.reports.release import find_ranker, release_ranker
from finetune.training.config import FinetuneConfig
from finetune.training.experiment import run_experiment
from finetune.training.fingerprints import fingerprint_model
from pretrain.release.metadata import CardOverrides
from tests.fake_hub import find_faults


@pytest.fixture(scope="module")
def experiment(tmp_path_factory, write_sets, model):
    """A folder of two seeds."""
    folder = tmp_path_factory.mktemp("experiment")
    config = FinetuneConfig(
        data=f"files={write_sets(train=6, dev=4, test=4, candidates=4)}",
        model=str(model),
        output_dir=str(folder / "out"),
        seeds=2,
        epochs=2,
        batch_size=4,
        max_length=32,
        learning_rate=1e-3,
        precision="fp32",
        log_steps=2,
    )
    run_experiment(config, lambda line: None)
    return folder / "out"


def test_the_seed_with_the_best_dev_map_is_taken(experiment):
    results = json.loads((experiment / "results.json").read_text())
    best = max(results["seeds"], key=lambda run: run["dev"]["map"])["seed"]
    assert find_ranker(experiment) == experiment / f"seed-{best}/best"
    assert find_ranker(experiment / "seed-2") == find_ranker(experiment / "seed-2/best") == experiment / "seed-2/best"
    assert find_ranker(experiment / "seed-1/dev") is None
    about = experiment / f"seed-{best}/best/ranker.json"
    about.rename(experiment / "kept")
    with pytest.raises(KinspanError, match=f"seed-{best}/best is gone, and no other seed has a higher dev MAP"):
        find_ranker(experiment)
    (experiment / "kept").rename(about)


def test_an_experiment_that_is_not_complete_is_called_that(tmp_path):
    (tmp_path / "seed-1").mkdir()
    with pytest.raises(KinspanError, match="a fine-tuning that is not complete: run the same"):
        find_ranker(tmp_path)


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
    assert [r.metric_value for r in ModelCard(own.read_text()).data.eval_results] == [0.5]
    test = json.loads((experiment / "results.json").read_text())["seeds"][0]["test"]
    told = {r.metric_type: r.metric_value for r in ModelCard(card).data.eval_results}
    assert told == {metric: round(test[metric], 4) for metric in ("map", "mrr", "p@1", "ndcg@10")}
    assert (folder / "training_curve.png").exists()
    assert json.loads((folder / "kinspan.json").read_text())["revision"].startswith("seed-1-step-")
    assert not any(str(tmp_path.parent) in path.read_text() for path in folder.glob("*.json"))


def test_a_ranker_is_never_taken_for_a_release_and_replaced(experiment, tmp_path):
    ranker = find_ranker(experiment / "seed-1")
    with pytest.raises(KinspanError, match="no release"):
        release_ranker(ranker, experiment / "seed-2/best")


@pytest.mark.parametrize("damage", ["{", "[]", "{}", '{"facts": 3}'])
def test_damaged_facts_are_one_line(experiment, tmp_path, damage):
    folder = tmp_path / "best"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"")
    (folder / "ranker.json").write_text(damage)
    with pytest.raises(KinspanError, match=r"ranker.json is damaged .*again writes it anew"):
        release_ranker(folder, tmp_path / "release")
    assert not (tmp_path / "release").exists()


def test_figures_of_other_commands_enter_the_model_index(experiment, tmp_path):
    auc = {"auc": [0.81, 0.8, 0.82], "accuracy": [0.9, 0.8, 1.0], "f1": [0.5, 0.4, 0.6]}
    measured = {"pairs": {"positive": 10, "hard": 20, "easy": 20}, "all": auc}
    of = {"fingerprints": {"model": "f" * 16}}
    pairs = {"objectives": {"ssp": measured}, "corpus": {"name": "docs"}, "model": "docs", **of}
    (tmp_path / "pairs.txt").write_text(f"a table\n\n{json.dumps(pairs)}\n")
    figures = {"map": 0.7, "mrr": 0.8, "p@1": 0.6, "ndcg@10": 0.75}
    ranked = {"data": "wikiqa=there", "split": "test", "filter": "clean", "systems": [{"name": "m", **figures}], **of}
    (tmp_path / "ranked.json").write_text(json.dumps(ranked))
    names = [str(tmp_path / "pairs.txt"), str(tmp_path / "ranked.json"), str(experiment / "results.json")]
    stated = read_results(names, CardOverrides())
    found = stated.results
    assert [(r.metric_type, r.metric_value) for r in found[:3]] == [("roc_auc", 0.81), ("accuracy", 0.9), ("f1", 0.5)]
    assert found[0].dataset_name == "50 held-out pairs of the corpus docs (ssp)"
    assert {r.dataset_type for r in found[3:7]} == {"microsoft/wiki_qa"}
    assert found[-1].dataset_name == "files test, after fine-tuning on it (mean of 2 seeds)"
    assert [name for name, _ in stated.measured] == names


def test_figures_of_other_weights_are_refused_and_those_of_these_taken(experiment, tmp_path):
    ranker = find_ranker(experiment / "seed-1")
    ranked = {"data": "files=x", "split": "test", "filter": "clean", "systems": [{"name": "m", "map": 0.7}]}
    for name, of in (("own", fingerprint_model(str(ranker))), ("other", "0" * 16)):
        (tmp_path / name).write_text(json.dumps({**ranked, "fingerprints": {"model": of}}))
    own, other = (read_results([str(tmp_path / name)], CardOverrides()) for name in ("own", "other"))
    card = release_ranker(ranker, tmp_path / "release", own) / "README.md"
    assert "files test, clean" in card.read_text()
    with pytest.raises(KinspanError, match=r"--results \S+other: these figures are of another model"):
        release_ranker(ranker, tmp_path / "another", other)
    assert not (tmp_path / "another").exists()


OTHERS = '{"data": "files=x", "split": "test", "filter": "clean", "systems": [{"name": "m", "MRR@10": 0.5}]}'


@pytest.mark.parametrize(
    "text", ["", "no json", OTHERS, "{}", "[1]", '{"objectives": {"ssp": {}}}', '{"systems": []}', "null"]
)
def test_a_file_without_figures_is_one_line(tmp_path, text):
    (tmp_path / "figures").write_text(text)
    with pytest.raises(KinspanError, match=r"^--results \S+figures"):
        read_results([str(tmp_path / "figures")], CardOverrides())
