"""BM25 and the start, beside a fine-tuned ranker."""

import shutil
from dataclasses import replace

import pytest

from finetune.data.registry import load_split
from finetune.evaluation.bm25 import BM25, score_bm25
from finetune.evaluation.comparison import START
from finetune.evaluation.metrics import compute_means, compute_question_metrics
from finetune.training import experiment
from finetune.training.config import FinetuneConfig
from finetune.training.experiment import log_better_baselines, measure_baselines


@pytest.fixture
def config(sets, model):
    return FinetuneConfig(data=f"files={sets}", model=str(model), max_length=32)


@pytest.fixture
def split(sets):
    return load_split(f"files={sets}", "test")


def test_words_and_the_start_are_measured_and_kept(config, split, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "score_answers", lambda name, data, length: score_bm25(data)[::-1].copy())
    figures = measure_baselines(config, split, tmp_path)
    assert figures[BM25] == compute_means(compute_question_metrics(split, score_bm25(split)))
    assert figures[START] == compute_means(compute_question_metrics(split, score_bm25(split)[::-1].copy()))
    monkeypatch.setattr(experiment, "score_bm25", None)
    assert measure_baselines(config, split, tmp_path) == figures


def test_a_start_without_weights_has_no_row(config, split, tmp_path, model):
    scratch = shutil.copytree(model, tmp_path / "scratch", ignore=shutil.ignore_patterns("*.safetensors"))
    assert list(measure_baselines(replace(config, model=str(scratch)), split, tmp_path)) == [BM25]


def test_results_below_a_baseline_are_warned_of(caplog):
    below = {"map": 0.3, "mrr": 0.9}
    results = {"test": {name: {"mean": 0.5} for name in below}, "baselines": {"test": {BM25: below}}}
    log_better_baselines({**results, "settings": {"loss": "pointwise"}})
    log_better_baselines({})  # of an experiment that is not complete
    assert not caplog.records
    log_better_baselines({**results, "settings": {"loss": "contrastive"}})
    assert BM25 in caplog.text
