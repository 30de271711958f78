"""Cross-validation: what scores a question has not seen it, and no question has a say in what scores it."""

from dataclasses import replace

import numpy as np
import pytest

from finetune.adapt.folds import choose_updates
from finetune.adapt.fusion import fit_weights, fuse_out_of_fold
from finetune.data.folds import iterate_folds
from finetune.evaluation.metrics import MAP, compute_question_metrics


def measure(data, scores):
    return compute_question_metrics(data, scores, (MAP,))[MAP]


def test_a_fold_is_scored_by_the_updates_that_are_best_on_the_others(write_sets, answer_set):
    data = answer_set(write_sets(dev=30), "dev")
    fold_of = np.arange(30) % 3
    right, wrong = data.labels.astype(float), 1.0 - data.labels
    of_row = fold_of[data.question_of]
    # The second validation is best on folds 1 and 2, and the first one on fold 0.
    scores = np.stack([np.where(of_row == 0, right, wrong), np.where(of_row == 0, wrong, right)])
    out, updates = choose_updates(data, scores, fold_of, np.array([0, 8]), fold_of < 3)
    precision = measure(data, out)
    assert updates == 8
    assert (precision[fold_of == 0] < 1).all()
    np.testing.assert_array_equal(out[of_row == 0], scores[1][of_row == 0])
    out, _ = choose_updates(data, scores, np.minimum(fold_of, 1), np.array([0, 8]), fold_of < 3)
    assert (measure(data, out) < 1).all()  # each of two folds is scored by what is best on the other one alone


def test_weights_are_equal_without_evidence_and_never_negative(write_sets, answer_set):
    data = answer_set(write_sets(dev=100, candidates=8), "dev")
    noise = np.random.default_rng(0)
    good, bad = data.labels + noise.normal(scale=0.4, size=data.num_pairs), noise.normal(size=data.num_pairs)
    few = data.take(np.arange(2))
    weights = fit_weights(few, {"a": good[: few.num_pairs], "b": bad[: few.num_pairs]}, strength=1e6)
    assert abs(weights["a"] - weights["b"]) < 1e-3
    wrong = noise.normal(scale=0.4, size=data.num_pairs) - data.labels
    weights = fit_weights(data, {"a": good, "b": wrong, "c": bad}, strength=0.01)
    assert weights["b"] == 0
    assert weights["a"] > 0.5
    assert sum(weights.values()) == pytest.approx(1)


def test_fused_scores_are_out_of_fold(write_sets, answer_set):
    data = answer_set(write_sets(dev=40, candidates=8), "dev")
    noise = np.random.default_rng(0)
    scores = {name: data.labels + noise.normal(scale=n, size=data.num_pairs) for n, name in enumerate("ab", 1)}
    fold_of = np.arange(40) % 4
    fused = fuse_out_of_fold(data, scores, fold_of, fold_of < 4)
    for _, held_out in iterate_folds(fold_of):
        rows = held_out[data.question_of]
        turned = data.labels.copy()
        turned[rows] = 1 - turned[rows]  # labels of the fold itself do not matter
        other = fuse_out_of_fold(replace(data, labels=turned), scores, fold_of, fold_of < 4)
        np.testing.assert_allclose(other[rows], fused[rows])
    assert measure(data, fused).mean() > measure(data, scores["b"]).mean()
