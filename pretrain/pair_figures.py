"""How well scores tell positives from negatives, with confidence intervals by bootstrap over anchors."""

import numpy as np

from data_pipeline.pairs import EASY, HARD, KINDS, POSITIVE

RESAMPLES = 1000
COVERAGE = 0.95
AGAINST = {"all": (HARD, EASY), "hard": (HARD,), "easy": (EASY,)}
MOST_WEIGHTS = 4_000_000  # numbers held at a time, which bounds the memory of the areas under the curve

Figures = dict[str, dict[str, list[float]]]


def pair_figures(scores: np.ndarray, kinds: np.ndarray, seed: int = 0, resamples: int = RESAMPLES) -> Figures:
    """Figures of n anchors' pairs, each as ``[value, low, high]``: a 95% confidence interval.

    scores: ``[n, g]`` of the g pairs of each anchor; above 0 a pair is called positive
    kinds:  ``[n, g]`` POSITIVE, HARD or EASY

    Returns figures by group:
        all, hard, easy: positives against every negative, the hard or the easy ones alone: ``accuracy``; ``f1`` of
            the positive class; ``auc``; and ``accuracy_even`` and ``f1_even``, what they would be at one positive in
            two, from the rates of true and false positives: objectives of other shares of positives compare in them
        kinds: the share of ``positive``, ``hard`` and ``easy`` pairs called rightly
    A group that lacks positives or negatives is left out.

    The intervals are percentiles of the figures over resampled anchors (Efron and Tibshirani, 1993, chapter 13). The
    pairs of an anchor stay together, since they share a text.
    """
    n = len(scores)
    resampled = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=resamples)
    weights = np.vstack([np.ones(n, dtype=resampled.dtype), resampled])  # [1 + resamples, n]; the first: as observed
    of_kind = [kinds == kind for kind in range(len(KINDS))]
    pairs = np.stack([weights @ mask.sum(axis=1) for mask in of_kind], axis=1)  # [1 + resamples, kinds]
    called = np.stack([weights @ (mask & (scores > 0)).sum(axis=1) for mask in of_kind], axis=1)
    out: Figures = {}
    for group, negatives in AGAINST.items():
        rows = np.isin(kinds, (POSITIVE, *negatives))
        if of_kind[POSITIVE].any() and np.isin(kinds, negatives).any():
            figures = _rates(pairs, called, list(negatives))
            figures["auc"] = _weighted_auc(scores[rows], of_kind[POSITIVE][rows], weights, np.nonzero(rows)[0])
            out[group] = {name: _interval(values) for name, values in figures.items()}
    right = {KINDS[k]: called[:, k] if k == POSITIVE else pairs[:, k] - called[:, k] for k in range(len(KINDS))}
    present = {name: k for k, name in enumerate(KINDS) if of_kind[k].any()}
    out["kinds"] = {name: _interval(_over(right[name], pairs[:, k])) for name, k in present.items()}
    return out


def _rates(pairs: np.ndarray, called: np.ndarray, negatives: list[int]) -> dict[str, np.ndarray]:
    """Accuracy and F1, as observed and at one positive in two. ``pairs``, ``called``: ``[R, kinds]``"""
    positive, found = pairs[:, POSITIVE], called[:, POSITIVE]
    negative, wrong = pairs[:, negatives].sum(axis=1), called[:, negatives].sum(axis=1)
    true_rate, false_rate = _over(found, positive), _over(wrong, negative)
    return {
        "accuracy": _over(found + negative - wrong, positive + negative),
        "f1": _over(2 * found, found + wrong + positive),
        "accuracy_even": (true_rate + 1 - false_rate) / 2,
        "f1_even": 2 * true_rate / (true_rate + false_rate + 1),
    }


def _weighted_auc(scores: np.ndarray, positive: np.ndarray, weights: np.ndarray, anchor: np.ndarray) -> np.ndarray:
    """Area under the ROC curve of m pairs for each row of anchors' weights, ``[R]``; ties count one half.

    scores, positive, anchor: ``[m]``;  weights: ``[R, n]`` whole numbers
    """
    order = np.argsort(scores, kind="stable")
    ordered = scores[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))  # of each run of equal scores
    anchor, positive = anchor[order], positive[order]
    areas = []
    for rows in np.array_split(weights, max(1, weights.shape[0] * len(scores) // MOST_WEIGHTS)):
        of_pair = rows[:, anchor].astype(np.float64)
        above = np.add.reduceat(of_pair * positive, first, axis=1)
        equal = np.add.reduceat(of_pair * ~positive, first, axis=1)
        below = np.cumsum(equal, axis=1) - equal
        won = (above * (below + equal / 2)).sum(axis=1)
        areas.append(_over(won, above.sum(axis=1) * equal.sum(axis=1)))
    return np.concatenate(areas)


def _over(value: np.ndarray, count: np.ndarray) -> np.ndarray:
    """``value / count``; NaN where a resample has none."""
    return np.divide(value, count, out=np.full(len(value), np.nan), where=count != 0)


def _interval(values: np.ndarray) -> list[float]:
    """The figure as observed, and the percentiles of its resamples."""
    tail = 100 * (1 - COVERAGE) / 2
    low, high = np.nanpercentile(values[1:], [tail, 100 - tail])
    return [float(values[0]), float(low), float(high)]
