"""How well scores tell positives from negatives, with confidence intervals by bootstrap over anchors."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from data_pipeline.sampling.pairs import EASY, HARD, KINDS, POSITIVE

RESAMPLES = 1000
COVERAGE = 0.95
AGAINST = {"all": (HARD, EASY), "hard": (HARD,), "easy": (EASY,)}
MOST_NUMBERS = 1_000_000  # in an array over resamples and pairs, of which a handful exist at once

Figures = dict[str, dict[str, list[float]]]


@dataclass(frozen=True)
class RankedPairs:
    """Pairs in ascending order of their scores: of each its anchor's number and whether it is a positive, ``[m]``; and
    where each run of equal scores begins."""

    anchor: np.ndarray
    positive: np.ndarray
    first: np.ndarray


def compute_pair_figures(scores: np.ndarray, kinds: np.ndarray, seed: int = 0, resamples: int = RESAMPLES) -> Figures:
    """Figures of the pairs of ``n`` anchors, each as ``[value, low, high]`` with a 95% confidence interval.

    scores: ``[n, g]`` of the ``g`` pairs of each anchor; a pair with a score above 0 is classified as positive
    kinds:  ``[n, g]`` POSITIVE, HARD or EASY

    Returns figures by group: ``all``, ``hard`` and ``easy`` set the positives against these negatives
    (``accuracy_even`` and ``f1_even`` are as if every second pair were positive, so that objectives compare); ``kinds``
    has the share of each kind that was classified rightly. A group that lacks positives or negatives is left out.

    The intervals are percentiles over resampled anchors (Efron and Tibshirani, 1993, chapter 13), whose pairs stay
    together.
    """
    of_kind = np.stack([kinds == kind for kind in range(len(KINDS))])  # [kinds, n, g]
    counts = np.concatenate([of_kind, of_kind & (scores > 0)]).sum(axis=2).T  # [n, 2 kinds]: all, called positive
    groups = {name: _rank_pairs(scores, kinds, negatives) for name, negatives in AGAINST.items()}
    groups = {name: ranked for name, ranked in groups.items() if 0 < ranked.positive.sum() < len(ranked.positive)}
    sums = np.concatenate(
        [
            np.column_stack([weights @ counts, *(_compute_auc(ranked, weights) for ranked in groups.values())])
            for weights in _draw_weights(len(scores), seed, resamples, max(1, MOST_NUMBERS // scores.size))
        ]
    )
    pairs, called, areas = np.split(sums, [len(KINDS), 2 * len(KINDS)], axis=1)
    out: Figures = {}
    for name, area in zip(groups, areas.T, strict=True):
        figures = {**_compute_rates(pairs, called, list(AGAINST[name])), "auc": area}
        out[name] = {figure: _compute_interval(values) for figure, values in figures.items()}
    right = {KINDS[k]: called[:, k] if k == POSITIVE else pairs[:, k] - called[:, k] for k in range(len(KINDS))}
    present = {name: k for k, name in enumerate(KINDS) if of_kind[k].any()}
    out["kinds"] = {name: _compute_interval(_divide(right[name], pairs[:, k])) for name, k in present.items()}
    return out


def _draw_weights(n: int, seed: int, resamples: int, rows: int) -> Iterator[np.ndarray]:
    """How often each anchor counts: first once each, as observed, ``[1, n]``; then in the resamples, ``[rows, n]`` or
    fewer at a time."""
    yield np.ones((1, n), dtype=np.int64)
    generator, chances = np.random.default_rng(seed), np.full(n, 1 / n)
    for start in range(0, resamples, rows):  # the draws do not depend on ``rows``
        yield generator.multinomial(n, chances, size=min(rows, resamples - start))


def _compute_rates(pairs: np.ndarray, called: np.ndarray, negatives: list[int]) -> dict[str, np.ndarray]:
    """Accuracy and F1, as observed and as if every second pair were positive.

    pairs, called: ``[R, kinds]`` counts of all pairs, and of those classified as positive
    """
    positive, found = pairs[:, POSITIVE], called[:, POSITIVE]
    negative, wrong = pairs[:, negatives].sum(axis=1), called[:, negatives].sum(axis=1)
    true_rate, false_rate = _divide(found, positive), _divide(wrong, negative)
    return {
        "accuracy": _divide(found + negative - wrong, positive + negative),
        "f1": _divide(2 * found, found + wrong + positive),
        "accuracy_even": (true_rate + 1 - false_rate) / 2,
        "f1_even": 2 * true_rate / (true_rate + false_rate + 1),
    }


def _rank_pairs(scores: np.ndarray, kinds: np.ndarray, negatives: tuple[int, ...]) -> RankedPairs:
    rows = np.isin(kinds, (POSITIVE, *negatives))
    order = np.argsort(scores[rows], kind="stable")
    ordered = scores[rows][order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    return RankedPairs(np.nonzero(rows)[0][order], kinds[rows][order] == POSITIVE, first)


def _compute_auc(ranked: RankedPairs, weights: np.ndarray) -> np.ndarray:
    """Areas under the ROC curve ``[R]``, one for each row of anchors' weights ``[R, n]``; ties count one half."""
    of_pair = weights[:, ranked.anchor].astype(np.float64)
    above = np.add.reduceat(of_pair * ranked.positive, ranked.first, axis=1)
    equal = np.add.reduceat(of_pair * ~ranked.positive, ranked.first, axis=1)
    below = np.cumsum(equal, axis=1) - equal
    won = (above * (below + equal / 2)).sum(axis=1)
    return _divide(won, above.sum(axis=1) * equal.sum(axis=1))


def _divide(value: np.ndarray, count: np.ndarray) -> np.ndarray:
    """``value / count``; NaN where the count is 0."""
    return np.divide(value, count, out=np.full(len(value), np.nan), where=count != 0)


def _compute_interval(values: np.ndarray) -> list[float]:
    tail = 100 * (1 - COVERAGE) / 2
    low, high = np.nanpercentile(values[1:], [tail, 100 - tail])
    return [float(values[0]), float(low), float(high)]
