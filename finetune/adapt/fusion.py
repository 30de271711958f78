"""Fits the weights of a fusion; little evidence leaves those of the first two rankers equal, and the others at zero."""

from collections.abc import Mapping

import numpy as np
from scipy.optimize import minimize

from finetune.data.answers import AnswerSet
from finetune.data.folds import iterate_folds
from finetune.ranking.fusion import combine, standardise

STRENGTH = 5.0  # of the pull towards equal weights, in questions whose likelihood is lost


def fit_weights(data: AnswerSet, scores: Mapping[str, np.ndarray], strength: float = STRENGTH) -> dict[str, float]:
    """Returns the weight of each ranker's standardised scores, none below zero and their sum 1.

    They maximise the likelihood of the right candidates under a softmax over each question's, less ``strength`` times
    the squared distance of the first two weights and the squares of the others. Scale them as you like: only their
    ratios rank.
    """
    features = np.stack([standardise(part, data.starts) for part in scores.values()])
    right, starts, question_of = data.labels == 1, data.starts[:-1], data.question_of
    share = right / np.maximum(1, data.positives)[question_of]  # each question counts once

    def compute_loss(weights: np.ndarray) -> tuple[float, np.ndarray]:
        logits = weights @ features
        logits -= np.maximum.reduceat(logits, starts)[question_of]
        odds = np.exp(logits)
        sums = np.add.reduceat(odds, starts)
        loss = np.log(sums)[data.positives > 0].sum() - share @ logits
        gradient = features @ (odds / sums[question_of] * (data.positives > 0)[question_of] - share)
        pull = np.array([weights[0] - weights[1], weights[1] - weights[0], *weights[2:]])
        return loss + strength * (pull[0] ** 2 + (weights[2:] ** 2).sum()), gradient + 2 * strength * pull

    size = len(features)
    fitted = minimize(compute_loss, np.ones(size), jac=True, bounds=[(0, None)] * size, method="L-BFGS-B").x
    return dict(zip(scores, (fitted / max(fitted.sum(), 1e-9)).tolist(), strict=True))


def fuse_out_of_fold(
    data: AnswerSet, scores: Mapping[str, np.ndarray], fold_of: np.ndarray, judged: np.ndarray
) -> np.ndarray:
    """Returns the fused scores ``[N]``, each fold's by weights that were fitted on judged questions of the others.

    fold_of, judged: ``[Q]``
    """
    out = np.empty(data.num_pairs)
    for others, held_out in iterate_folds(fold_of):
        fitted = others & judged
        rest = np.repeat(fitted, np.diff(data.starts))
        weights = fit_weights(data.take(fitted), {name: part[rest] for name, part in scores.items()})
        rows = np.repeat(held_out, np.diff(data.starts))
        out[rows] = combine(scores, weights, data.starts, by_rank=False)[rows]
    return out
