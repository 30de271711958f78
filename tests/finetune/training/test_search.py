"""The search for batch size and learning rate."""

import json
from dataclasses import replace

import pytest

from data_pipeline.core.errors import KinspanError
from finetune.training import search
from finetune.training.search import search_settings
from finetune.training.setup import Ranks
from finetune.training.stages import load_data
from tests.finetune.training.runs import small_config

RANKS = Ranks(rank=0, world=1, deepspeed={})


@pytest.fixture
def config(tmp_path, write_sets, model):
    grid = {"search_batch_sizes": [4, 8], "search_learning_rates": [1e-5, 3e-4]}
    return small_config(
        write_sets(train=7), model, tmp_path / "out", search_folds=3, seeds=1, test_every_validation=True, **grid
    )


def test_the_best_mean_over_folds_is_chosen(config, tmp_path, monkeypatch):
    """Each fold trains on all the other questions; the test set is not looked at."""
    data, seen = load_data(config), {}
    alike = replace(data, train=data.train.keep(data.train.labels == 1))
    with pytest.raises(KinspanError, match="--search_folds"):
        search_settings(config, alike, tmp_path, RANKS)

    def fake(stage, seed, folder, ranks):
        train, held_out = set(stage.train.question_ids), set(stage.devs["dev"].question_ids)
        assert not train & held_out
        assert train | held_out == set(data.train.question_ids)
        assert stage.test is None
        key = (stage.config.batch_size, stage.config.learning_rate)
        seen.setdefault(key, []).append(held_out)
        assert str(folder) not in seen
        seen[str(folder)] = True
        value = {(4, 1e-5): 0.5, (4, 3e-4): 0.6, (8, 1e-5): 0.7, (8, 3e-4): 0.4}[key] + 0.1 * (len(seen[key]) - 2)
        folder.mkdir(parents=True)
        line = {"step": 3, "split": "dev", "epoch": 1.0, "map": value}
        lines = (line, line | {"step": 4, "map": 0.0})  # the best validation counts
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        return {"dev_map": 1.0}

    monkeypatch.setattr(search, "train_ranker", fake)
    (tmp_path / "search").mkdir()
    chosen = search_settings(config, data, tmp_path / "search", RANKS)
    assert (chosen.batch_size, chosen.learning_rate) == (8, 1e-5)
    assert chosen.epochs == config.epochs
    for key in ((4, 1e-5), (8, 3e-4)):
        assert sorted(q for fold in seen[key] for q in fold) == sorted(data.train.question_ids)
    best = json.loads((tmp_path / "search/search.json").read_text())["best"]
    assert best["map"] == pytest.approx(0.7)
