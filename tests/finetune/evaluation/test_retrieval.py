"""MRR and recall of ranked ids equal trec_eval's."""

import numpy as np
import pytest
import pytrec_eval

from finetune.evaluation.metrics import RETRIEVAL_METRICS, compute_question_metrics, rank_rows
from finetune.evaluation.retrieval import measure_retrieval

TREC = {"mrr": "recip_rank", "r@1": "recall_1", "r@5": "recall_5", "r@10": "recall_10"}


def test_they_are_those_of_trec_eval():
    rng = np.random.default_rng(0)
    names = [f"a{number}" for number in range(40)]
    found = [rng.permutation(names)[: rng.integers(1, 40)].tolist() for _ in range(200)]
    right = [set(rng.choice(names, size=rng.integers(1, 15), replace=False).tolist()) for _ in range(200)]
    ours = measure_retrieval(found, right)
    qrels = {f"q{q:03d}": dict.fromkeys(sorted(own), 1) for q, own in enumerate(right)}
    run = {f"q{q:03d}": {name: -float(rank) for rank, name in enumerate(own)} for q, own in enumerate(found)}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, set(TREC.values())).evaluate(run)
    for metric in RETRIEVAL_METRICS:
        assert ours[metric] == pytest.approx([theirs[q][TREC[metric]] for q in qrels], abs=1e-9)
        assert 0 < ours[metric].mean() < 1


def test_a_question_for_which_nothing_is_right_or_found_counts_0():
    figures = measure_retrieval([["a"], [], ["b", "a"]], [set(), {"a"}, {"a"}])
    assert {name: values.tolist() for name, values in figures.items()} == {
        "mrr": [0, 0, 0.5],
        "r@1": [0, 0, 0],
        "r@5": [0, 0, 1],
        "r@10": [0, 0, 1],
    }


def test_scores_of_candidates_give_the_same_figures(data, scores):
    ours = compute_question_metrics(data, scores["good"], RETRIEVAL_METRICS)
    order, ids = rank_rows(data, scores["good"]), data.answer_ids.to_pylist()
    found = [[ids[row] for row in order[rows]] for rows in data.question_slices()]
    right = [{ids[row] for row in range(rows.start, rows.stop) if data.labels[row]} for rows in data.question_slices()]
    theirs = measure_retrieval(found, right)
    assert tuple(ours) == RETRIEVAL_METRICS
    for metric in RETRIEVAL_METRICS:
        assert ours[metric].tolist() == pytest.approx(theirs[metric].tolist())
