"""The matrix of sources and targets: cells, baselines, table, CSV and entry."""

import csv
import io
import json
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.core.errors import KinspanError
from finetune.evaluation.metrics import MAP, P_1, compute_question_metrics
from finetune.training import transfer as module
from finetune.training.transfer import (
    Matrix,
    format_csv,
    format_matrix,
    load_targets,
    measure_matrix,
)
from launch.commands import transfer_matrix


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
    return load_targets(specs, "test", {"odd"})


@pytest.fixture
def scored(monkeypatch):
    """Scores that depend on the model's name alone, and what was asked for."""
    asked = []

    def score(model, data, max_length):
        asked.append((Path(model).name, data.num_pairs))
        rng = np.random.default_rng(len(Path(model).name))
        return data.labels * (1.0 if "good" in model else 0.0) + 0.1 * rng.random(data.num_pairs)

    monkeypatch.setattr(module, "score_answers", score)
    return asked


def make_models(folder, *names):
    for name in names:
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "config.json").write_text(json.dumps({"name": name}))
    return {name: str(folder / name) for name in names}


def test_cells_are_measured_once(targets, scored, tmp_path):
    sources = make_models(tmp_path, "good", "bad")
    measure = lambda s: measure_matrix(s, targets, {}, tmp_path / "cells", 64)  # noqa: E731
    first = measure(sources)
    assert {name: values.shape for name, values in first.values.items()} == {"good": (2,), "bad": (2,)}
    assert first.values["good"].tolist() == [1.0, 1.0]
    assert len(scored) == 4
    again = measure(sources | make_models(tmp_path, "third"))
    assert len(scored) == 6
    assert all(np.array_equal(again.values[name], first.values[name]) for name in sources)
    (tmp_path / "bad/config.json").write_text("{}")  # another model under the same name
    measure(sources)
    assert len(scored) == 8


def test_each_target_has_its_metric(targets, scored, tmp_path):
    matrix = measure_matrix(make_models(tmp_path, "bad"), targets, {}, tmp_path / "cells", 64)
    assert [target.metric for target in targets] == [MAP, P_1]
    for column, target in enumerate(targets):
        scores = module.score_answers("bad", target.data, 64)
        figures = compute_question_metrics(target.data, scores)
        assert matrix.values["bad"][column] == pytest.approx(figures[target.metric].mean())


def test_baselines_know_words_alone(targets, scored, tmp_path):
    matrix = measure_matrix(
        make_models(tmp_path, "bad"),
        targets,
        make_models(tmp_path, "odd"),
        tmp_path / "cells",
        64,
    )
    for name in (module.BM25, module.TF_IDF):
        assert matrix.baselines[name][0] == 1.0  # the right candidate has the question's words
        assert matrix.baselines[name][1] == 0.0  # and here the wrong ones have them
    assert np.isnan(matrix.baselines[module.IN_DOMAIN]).tolist() == [True, False]


def test_a_sample_of_questions_is_always_the_same(specs):
    whole, few, again = (load_targets(specs, "test", set(), count)[0].data for count in (None, 2, 2))
    assert (whole.num_questions, few.num_questions, few.num_pairs) == (4, 2, 6)
    assert list(few.questions) == list(again.questions)
    assert set(few.question_ids) < set(whole.question_ids)
    assert load_targets(specs, "test", set(), 9)[0].data.num_questions == 4


def make_matrix(targets, count=4):
    random = np.random.default_rng(0)
    values = {f"forum{n}": random.random(len(targets)) for n in range(count)}
    return Matrix(targets, values, {"BM25": np.array([0.4, 0.4]), "in-domain": np.array([np.nan, np.nan])})


def test_table_and_csv_say_the_same(targets):
    matrix = make_matrix(targets)
    rows = list(csv.DictReader(io.StringIO(format_csv(matrix))))
    assert len(rows) == 4 * 2 + 2  # an in-domain model that is not there has no line
    header, _, *lines = format_matrix(matrix).splitlines()
    assert header == "|  | plain (MAP) | odd (P@1) |"
    for row in rows:
        (line,) = [line for line in lines if line.startswith(f"| {row['source']} |")]
        assert f"{float(row['value']):.3f}".removeprefix("0") in line
    assert format_matrix(matrix).count("**") == 2 * 2  # the best of each target
    matrix.baselines["BM25"] = np.array([1.0, 0.0])
    assert "| BM25 | **1.000** | .000 |" in format_matrix(matrix)


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        ({"sources": "beer"}, "--sources"),
        ({"sources": "beer="}, "--sources"),
        ({"sources": "BM25=x"}, "--sources BM25"),
        ({"in_domain": "wine=x"}, "--in_domain wine"),
        ({"accuracy": "wine"}, "--accuracy wine"),
    ],
)
def test_refusals(flags, named, monkeypatch, specs, tmp_path):
    given = {"sources": "a=x", "targets": f"plain={specs['plain']}", "output_dir": str(tmp_path)} | flags
    monkeypatch.setattr(
        "sys.argv", ["transfer", *(text for flag in given.items() for text in (f"--{flag[0]}", flag[1]))]
    )
    with pytest.raises(KinspanError, match=named):
        transfer_matrix.main()
