import json
import shutil
from dataclasses import replace

import pytest

from data_pipeline.core.errors import KinspanError
from finetune.data.registry import load_split
from finetune.evaluation.bm25 import BM25, score_bm25
from finetune.evaluation.comparison import BI_ENCODER, CROSS_ENCODER, START, warn_of_baselines
from finetune.evaluation.metrics import METRICS, compute_means, compute_question_metrics
from finetune.training import baselines
from finetune.training.baselines import BASELINES, measure_baselines, warn_of_results
from finetune.training.config import FinetuneConfig


@pytest.fixture
def config(sets, model):
    return FinetuneConfig(data=f"files={sets}", model=str(model), max_length=32)


@pytest.fixture
def split(sets):
    return load_split(f"files={sets}", "test")[0]


def test_words_and_the_start_are_measured_and_kept(config, split, tmp_path, monkeypatch):
    monkeypatch.setattr(baselines, "score_answers", lambda name, data, length: score_bm25(data)[::-1].copy())
    found = measure_baselines(config, split, tmp_path)
    assert found[BM25] == compute_means(compute_question_metrics(split, score_bm25(split)))
    assert found[START] == compute_means(compute_question_metrics(split, score_bm25(split)[::-1].copy()))
    monkeypatch.setattr(baselines, "score_bm25", None)
    assert measure_baselines(config, split, tmp_path) == found
    assert json.loads((tmp_path / BASELINES).read_text())["means"] == found


def test_a_start_without_weights_has_no_row(config, split, tmp_path, model):
    scratch = shutil.copytree(model, tmp_path / "scratch", ignore=shutil.ignore_patterns("*.safetensors"))
    assert list(measure_baselines(replace(config, model=str(scratch)), split, tmp_path)) == [BM25]


def test_why_a_start_has_no_row_is_said(config, split, tmp_path, monkeypatch):
    def refuse(name, data, length):
        raise KinspanError("no head")

    said = []
    monkeypatch.setattr(baselines, "score_answers", refuse)
    assert list(measure_baselines(config, split, tmp_path, said.append)) == [BM25]
    assert said == ["for comparison, BM25 and the start on test", "the start has no row: no head"]
    monkeypatch.setattr(baselines, "score_answers", lambda name, data, length: score_bm25(data))
    assert list(measure_baselines(config, split, tmp_path)) == [BM25, START]  # what was amiss may be mended


@pytest.mark.parametrize(("ranker", "warned"), [(0.9, []), (0.6, [START]), (0.3, [BM25, START])])
@pytest.mark.parametrize("advice", [BI_ENCODER, CROSS_ENCODER])
def test_a_ranker_below_a_baseline_is_warned_of(ranker, warned, advice):
    lines = warn_of_baselines("test", METRICS[0], ranker, {BM25: 0.5, START: 0.8}, advice)
    assert not any("--loss contrastive" in line for line in lines) or advice is CROSS_ENCODER
    assert [name for name in (BM25, START) if any(f"below that of {name}," in line for line in lines)] == warned
    assert all(line.startswith(f"warning: MAP {ranker:.4f} on test is below") for line in lines)


def test_results_below_a_baseline_are_warned_of():
    figures = {"map": 0.3, "mrr": 0.9}
    results = {"test": {name: {"mean": 0.5} for name in figures}, "baselines": {"test": {BM25: figures}}}
    assert warn_of_results({**results, "settings": {"loss": "pointwise"}}) == []
    [line] = warn_of_results({**results, "settings": {"loss": "contrastive"}})
    assert "MRR 0.5000 on test is below that of BM25, 0.9000" in line
    assert warn_of_results({}) == []  # of an experiment that is not complete
