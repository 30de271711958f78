"""The matrix of sources and targets: cells, baselines, table, CSV and entry."""

import json
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.core.errors import KinspanError
from finetune.evaluation.metrics import MAP, P_1
from finetune.training import transfer
from finetune.training.transfer import format_matrix, load_targets, measure_matrix, score_tf_idf
from launch.commands import transfer_matrix
from tests.finetune.data.rows import make_answers


@pytest.fixture(scope="module")
def specs(tmp_path_factory):
    """Two targets of four questions; the right candidate of the first shares its words with the question."""
    folder = tmp_path_factory.mktemp("targets")
    for name in ("plain", "odd"):
        lines = []
        for n in range(4):
            for k in range(3):
                words = f"river{n} mountain{n}" if (k == n % 3) == (name == "plain") else f"cloud{n}{k} stone"
                question = f"where is river{n} mountain{n}"
                lines.append({"question": question, "answer": f"{words} x{k}", "label": int(k == n % 3)})
        (folder / name).mkdir()
        (folder / name / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return {name: f"files={folder / name}" for name in ("plain", "odd")}


@pytest.fixture
def targets(specs):
    return load_targets(specs, "test", ["odd"])


@pytest.fixture
def scored(monkeypatch):
    """Scores that depend on the model's name alone, and what was asked for."""
    asked = []

    def score(model, data, max_length):
        asked.append((Path(model).name, data.num_pairs))
        rng = np.random.default_rng(len(Path(model).name))
        return data.labels * (1.0 if "good" in model else 0.0) + 0.1 * rng.random(data.num_pairs)

    monkeypatch.setattr(transfer, "score_answers", score)
    return asked


def make_models(folder, *names):
    for name in names:
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps({"name": name}))
    return {name: str(folder / name) for name in names}


def test_cells_are_measured_once(targets, scored, tmp_path):
    sources = make_models(tmp_path, "bad", "good")
    first = measure_matrix(sources, targets, tmp_path / "cells", 64)
    assert list(first) == ["good", "bad", "BM25", "TF-IDF"]
    assert [target.metric for target in targets] == [MAP, P_1]
    assert first["good"] == [1.0, 1.0]
    assert first["BM25"] == first["TF-IDF"] == [1.0, 0.0]  # the right candidates share words, or lack them
    assert len(scored) == 4
    again = measure_matrix(sources | make_models(tmp_path, "third"), targets, tmp_path / "cells", 64)
    assert len(scored) == 6
    assert all(again[name] == first[name] for name in sources)
    (tmp_path / "bad/config.json").write_text("{}")  # another model under the same name
    measure_matrix(sources, targets, tmp_path / "cells", 64)
    assert len(scored) == 8


@pytest.mark.parametrize(
    ("question", "answers"),
    [("a cat?", ["Cat 2", "dog 3"]), ("कीके?", ["कीके 2", "गीगे 3"]), ("大きい猫は?", ["家に大きい猫", "新しい犬"])],
)
def test_tf_idf_compares_the_words_of_any_script(question, answers):
    data = make_answers([question], [2], answers, [1, 0])
    right, wrong = score_tf_idf(data)
    assert right > wrong == 0


def test_the_best_of_each_target_is_bold(targets):
    rows = {"forum": [0.25, 0.75], "other": [0.5, 0.125], "BM25": [1.0, 0.0]}
    header, _, *lines = format_matrix(targets, rows).splitlines()
    assert header == "|  | plain (MAP) | odd (P@1) |"
    assert lines == ["| forum | .250 | **.750** |", "| other | .500 | .125 |", "| BM25 | **1.000** | .000 |"]


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        *[({"sources": "beer"}, "--sources"), ({"sources": "beer="}, "--sources")],
        *[({"sources": "BM25=x"}, "--sources BM25"), ({"accuracy": "wine"}, "--accuracy wine")],
    ],
)
def test_refusals(flags, named, monkeypatch, specs, tmp_path):
    given = {"sources": "a=x", "targets": f"plain={specs['plain']}", "output_dir": str(tmp_path)} | flags
    words = [word for flag, value in given.items() for word in (f"--{flag}", value)]
    monkeypatch.setattr("sys.argv", ["transfer", *words])
    with pytest.raises(KinspanError, match=named):
        transfer_matrix.main()
