"""How search is measured: which questions are asked, and what stands in the tables."""

from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.search.__main__ import (
    blend,
    draw_questions,
    expect_same,
    find_batch,
    group_seeds,
    tabulate_differences,
    tabulate_quality,
)
from data_pipeline.core.errors import KinspanError
from finetune.data.answers import AnswerSet
from finetune.evaluation.metrics import MRR, RETRIEVAL_METRICS


def test_fewer_questions_are_the_first_of_more():
    names = [f"q{number}" for number in range(50)]
    data = AnswerSet(
        name="made",
        split="test",
        question_ids=names,
        questions=names,
        starts=np.arange(51),
        answers=pa.array(names, pa.large_string()),
        answer_ids=pa.array(names, pa.large_string()),
        labels=np.ones(50, dtype=np.int8),
    )
    every = draw_questions(data).questions
    assert sorted(every) == sorted(names)
    assert every != names
    assert draw_questions(data, 20).questions == every[:20]
    assert draw_questions(data, 80).questions == every


def test_what_was_measured_of_others_is_not_gone_on_with(tmp_path):
    ranker = tmp_path / "ranker"
    ranker.mkdir()
    (ranker / "model.safetensors").write_bytes(b"first")
    args = SimpleNamespace(
        index="index",
        data="d",
        split="test",
        cross_encoder=[str(ranker)],
        rerank_k=30,
        rerank=["bm25"],
        precision="bf16",
    )
    expect_same(tmp_path, args, "as built")
    expect_same(tmp_path, args, "as built")
    with pytest.raises(KinspanError, match="another content of --index"):
        expect_same(tmp_path, args, "changed")
    (ranker / "model.safetensors").write_bytes(b"trained again")
    with pytest.raises(KinspanError, match="another weights"):
        expect_same(tmp_path, args, "as built")


def test_seeds_of_one_row_go_together():
    plain = [f"study/files/plain/seed-{seed}/best" for seed in (1, 2)]
    assert group_seeds([*plain, "study/files/ssp/seed-1/best", "releases/docs"]) == {
        "plain": plain,
        "ssp": ["study/files/ssp/seed-1/best"],
        "docs": ["releases/docs"],
    }
    assert list(group_seeds(["a/best/seed-1", "b/best/seed-1"])) == ["a/best", "b/best"]


def test_the_tables_have_means_and_differences():
    def figures(*mrr):
        return {metric: np.array(mrr, dtype=np.float64) for metric in RETRIEVAL_METRICS}

    low, high = [0.1, 0.2, 0.3, 0.2] * 5, [0.6, 0.9, 0.7, 0.6] * 5
    rows = {"bi-encoder": figures(low), "bi-encoder + ssp": figures(high, [one + 0.1 for one in high])}
    lines = tabulate_quality(rows, {"bi-encoder": {"clock": 9.0, "processor": 8.0}}, 30)
    assert lines[2].startswith("| bi-encoder | 0.200 | 0.200 |")
    assert lines[2].endswith("| 9.0 | 8.0 |")
    assert lines[3].startswith("| bi-encoder + ssp | 0.750 (0.071) |")
    assert "| +0.550 | <.001 |" in lines[3]
    both = {"fusion +": {"plain": rows["bi-encoder + ssp"][MRR] - 0.5, "ssp": rows["bi-encoder + ssp"][MRR]}}
    assert tabulate_differences(both)[2].startswith("| fusion + ssp | +0.500 | <.001 |")


def test_candidates_of_the_stages_that_are_asked_for_are_ranked_again():
    first = {"bi_encoder": ["a", "b", "c", "d"], "bm25": ["c", "e", "a", "b"], "fusion": ["e", "a", "c", "b"]}
    asked = []

    def search(questions, k, first_stage):
        hits = [SimpleNamespace(id=name, text=f"text of {name}") for name in first[first_stage]]
        return SimpleNamespace(hits=[hits for _ in questions])

    def score(questions, candidates):
        asked.append(candidates)
        return [np.array([ord(text[-1]) for text in own]) for own in candidates]

    ranker = SimpleNamespace(cross_encoder=SimpleNamespace(score=score))
    searchers = {"": SimpleNamespace(search=search), "model": ranker}
    found = find_batch(searchers, ["q"], 3, ["bi-encoder", "BM25"])[0]
    assert asked == [[["text of a", "text of b", "text of c", "text of e"]]]  # each once
    assert found["bi-encoder + model"] == ["c", "b", "a", "d"]
    assert found["BM25 + model"] == ["e", "c", "a", "b"]
    assert set(found) == {"bi-encoder", "BM25", "fusion", "bi-encoder + model", "BM25 + model"}
    fused = blend(found, ["model"], 3, ["BM25"])
    assert {way: sorted(own) for way, own in fused.items()} == {"BM25 & model": ["a", "b", "c", "e"]}
