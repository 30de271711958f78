"""The metrics are trec_eval's: pytrec_eval, which binds to it, is the reference."""

import random

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st

from data_pipeline.core.errors import KinspanError
from finetune.evaluation.metrics import METRICS, compute_question_metrics, compute_run_metrics, rank_rows
from tests.finetune.data.rows import make_answers

THEIRS = dict(zip(METRICS, ("map", "recip_rank", "P_1", "ndcg_cut_10"), strict=True))
# few scores, so that many tie; pairs that differ only as 64-bit numbers; and beyond what 32 bits tell apart
SCORES = st.sampled_from([-2.5, 0.0, -0.0, 1e-50, 0.1, 0.1 + 1e-12, 1.0, 1.0 + 1e-7, 16777216.0, 16777217.0, -3e38])
IDS = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=3)
QUESTIONS = ["q1", "q2", "é"]


def reference(qrels, run):
    """pytrec_eval's figures. It crashes where all of a question's relevances are below -1, which mean what -1 does."""
    qrels = {question: {c: max(relevance, -1) for c, relevance in of.items()} for question, of in qrels.items()}
    evaluator = pytrec_eval.RelevanceEvaluator(qrels, set(THEIRS.values()))
    return evaluator.evaluate(run)


def make(ids, labels, sizes):
    """An answer set of questions with these many candidates each."""
    return make_answers(["what ?"] * len(sizes), sizes, ["text"] * len(ids), labels, ids)


@given(
    st.fixed_dictionaries({q: st.dictionaries(IDS, st.integers(-2, 4), min_size=1, max_size=25) for q in QUESTIONS}),
    st.dictionaries(st.sampled_from([*QUESTIONS, "else"]), st.dictionaries(IDS, SCORES, min_size=1, max_size=25)),
    st.data(),
)
def test_files_of_any_kind_score_as_in_trec_eval(qrels, run, data):
    for question in run.keys() & qrels.keys():  # ids drawn freely would seldom meet
        shared = data.draw(st.lists(st.sampled_from(sorted(qrels[question])), unique=True))
        run[question] |= {candidate: data.draw(SCORES) for candidate in shared}
    ours, theirs = compute_run_metrics(qrels, run), reference(qrels, run)
    for number, question in enumerate(qrels):
        for metric, name in THEIRS.items():
            expected = theirs[question][name] if question in run else 0.0
            assert ours[metric][number] == pytest.approx(expected, abs=1e-9), (question, metric)


@pytest.mark.parametrize("seed", range(20))
def test_answer_sets_score_as_in_trec_eval(seed):
    rng = random.Random(seed)
    sizes = [rng.randint(1, 40) for _ in range(30)]
    ids = [name for size in sizes for name in rng.sample([f"d{n}" for n in range(60)] + ["ü1", "中", "😀"], size)]
    share = rng.choice([0, 0.05, 0.3, 1])  # of answers; where it is small, many questions have none
    labels = [int(rng.random() < share) for _ in ids]
    data = make(ids, labels, sizes)
    scores = np.array([rng.choice([0.25, 0.5, rng.random()]) for _ in ids])
    qrels, run = {}, {}
    for question, rows in zip(data.question_ids, data.question_slices(), strict=True):
        qrels[question] = dict(zip(ids[rows], labels[rows], strict=True))
        run[question] = dict(zip(ids[rows], scores[rows].tolist(), strict=True))
    ours, theirs, from_files = (
        compute_question_metrics(data, scores),
        reference(qrels, run),
        compute_run_metrics(qrels, run),
    )
    for metric, name in THEIRS.items():
        assert ours[metric] == pytest.approx([theirs[q][name] for q in data.question_ids], abs=1e-9)
        assert np.array_equal(ours[metric], from_files[metric])


def test_ties_go_by_id_and_are_ties_of_32_bits():
    data = make(["a", "b", "c"], [1, 0, 0], [3])
    assert rank_rows(data, np.array([1.0, 1.0, 2.0])).tolist() == [2, 1, 0]
    assert rank_rows(data, np.array([1.0 + 1e-9, 1.0, 1.0 - 1e-3])).tolist() == [1, 0, 2]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e39])
def test_a_score_that_cannot_be_ranked_is_named(bad):
    data = make(["a", "b", "c"], [1, 0, 0], [1, 2])
    with pytest.raises(KinspanError, match=r"question q1, candidate c: the score .* is not a finite"):
        compute_question_metrics(data, np.array([1.0, 2.0, bad]))
    with pytest.raises(KinspanError, match="question q1, candidate c"):
        compute_run_metrics({"q1": {"c": 1}}, {"q1": {"a": 1.0, "c": bad}})
