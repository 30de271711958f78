"""Metrics by the names of ir_measures: which are ours, what the others are, and what is refused."""

import re

import ir_measures
import numpy as np
import pytest
import pytrec_eval

from data_pipeline.core.errors import KinspanError
from finetune.evaluation.metrics import METRICS, RETRIEVAL_METRICS, TITLES, compute_question_metrics
from finetune.evaluation.named_metrics import OURS, measure_answers, measure_retrieval, measure_run, parse_metrics

QRELS = {"q1": {"a": 1, "b": 0, "c": 2}, "q 2": {"a": 1}, "é": {"x": -5}, "q4": {"y": 1}}
CLIPPED = QRELS | {"é": {"x": -1}}  # pytrec_eval crashes where all of a question's relevances are below -1
TREC = {"mrr": "recip_rank", "r@1": "recall_1", "r@5": "recall_5", "r@10": "recall_10"}
RUN = {"q1": {"b": 3.0, "a": 2.0, "c": 1.0, "u": 0.5}, "q 2": {"b": 1.0, "a": 0.5}, "é": {"x": 1.0}, "else": {"z": 1.0}}


def test_names_are_split_and_ours_are_found():
    assert parse_metrics(["MRR@10 P@5,R@100", "P(rel=2, judged_only=True)@5"]) == [
        *("MRR@10", "P@5", "R@100"),
        "P(rel=2, judged_only=True)@5",
    ]
    assert parse_metrics(["MAP AP RR nDCG@10 P@1 R@5"]) == ["map", "mrr", "ndcg@10", "p@1", "r@5"]
    assert parse_metrics([]) == []


def test_ours_are_those_of_ir_measures():
    ours = measure_run(QRELS, RUN, list(OURS.values()))
    for name, own in OURS.items():
        theirs = ir_measures.parse_measure(name).calc_aggregate(CLIPPED, RUN)
        assert own in TITLES
        assert ours[own].mean() == pytest.approx(theirs, abs=1e-9), name


@pytest.mark.parametrize("name", ["MRR@10", "P@5", "P(rel=2)@1", "R@100", "nDCG@20", "Success@1", "Judged@3", "Rprec"])
def test_others_are_those_of_ir_measures(name):
    found = measure_run(QRELS, RUN, ["map", name])
    assert list(found) == ["map", name]
    theirs = {one.query_id: one.value for one in ir_measures.parse_measure(name).iter_calc(CLIPPED, RUN)}
    assert found[name].tolist() == pytest.approx([theirs[question] for question in QRELS])


def test_ties_are_broken_alike_in_all_metrics():
    qrels, run = {"q": {"a": 1, "b": 0}}, {"q": {"a": 0.1, "b": 0.1 + 1e-12}}  # b comes first, by its id
    found = measure_run(qrels, run, ["mrr", "MRR@10", "MRR@1", "P@2", "Success@1"])
    assert {name: values.item() for name, values in found.items()} == {
        "mrr": 0.5,
        "MRR@10": 0.5,
        "MRR@1": 0.0,
        "P@2": 0.5,
        "Success@1": 0.0,
    }


def test_answers_are_measured_as_their_files_are(data, scores):
    found = measure_answers(data, scores["good"], [*METRICS, "P@3"])
    ours = compute_question_metrics(data, scores["good"])
    assert all(np.array_equal(found[metric], ours[metric]) for metric in METRICS)
    hits = data.labels[np.lexsort((-scores["good"], data.question_of))]
    assert found["P@3"].tolist() == pytest.approx([hits[rows][:3].sum() / 3 for rows in data.question_slices()])


# R@0 would end the process; NumRet has no mean; no installed tool computes RBP
@pytest.mark.parametrize("name", ["nope", "P", "1+1", "P(rel=2", "P(foo=2)@5", "R@0", "NumRet", "RBP"])
def test_what_is_no_metric_is_named(name):
    with pytest.raises(KinspanError, match=re.escape(f"--metrics {name}: ")):
        parse_metrics([name])


def test_a_tool_that_fails_is_named():
    with pytest.raises(KinspanError, match=r"--metrics AP\(rel=0\)"):
        measure_run(QRELS, RUN, ["AP(rel=0)"])


def test_retrieval_is_measured_as_trec_eval_does():
    rng = np.random.default_rng(0)
    names = [f"a{number}" for number in range(40)]
    ranked = [rng.permutation(names)[: rng.integers(1, 40)].tolist() for _ in range(200)]
    right = [set(rng.choice(names, size=rng.integers(1, 15), replace=False).tolist()) for _ in range(200)]
    qrels = {f"q{q}": dict.fromkeys(sorted(ids), 1) for q, ids in enumerate(right)}
    run = {f"q{q}": {name: -float(rank) for rank, name in enumerate(ids)} for q, ids in enumerate(ranked)}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, set(TREC.values())).evaluate(run)
    for metric, values in measure_retrieval(ranked, right).items():
        assert values.tolist() == pytest.approx([theirs[q][TREC[metric]] for q in qrels], abs=1e-9)
        assert 0 < values.mean() < 1
    assert measure_retrieval([[*"abcdefghij"]], [{"j"}], ["mrr@10"])["mrr@10"] == 0.1
    nothing_right_or_found = measure_retrieval([["a"], [], ["b", "a"]], [set(), {"a"}, {"a"}])
    assert [nothing_right_or_found[metric].tolist() for metric in RETRIEVAL_METRICS] == [
        *([0, 0, 0.5], [0, 0, 0]),
        *([0, 0, 1], [0, 0, 1]),
    ]
