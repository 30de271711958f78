"""Tests whether one ranking is better than another by more than chance: paired over questions, and over seeds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

DRAWS = 10_000  # random assignments of signs
BATCH = 1000  # draws in memory at once
SIGNIFICANT = 0.05  # the level of Di Liello et al., 2022, table 1


@dataclass(frozen=True)
class Comparison:
    """How much better system a is than b: the difference of means, and two-sided p."""

    difference: float
    p: float


def compare(a: np.ndarray, b: np.ndarray, draws: int = DRAWS) -> Comparison:
    """Compares two systems on the same questions by the randomisation test (Smucker et al., 2007).

    a, b: ``[Q]``, or ``[S, Q]`` for S runs, which are averaged first, so that each question stays one observation

    Signs of the differences are drawn, or all combinations used if there are not more than ``draws``.
    """
    from scipy.stats import permutation_test

    difference = np.atleast_2d(a).mean(axis=0) - np.atleast_2d(b).mean(axis=0)
    nonzero = difference[difference != 0]  # a difference of zero has no sign
    p = 1.0  # with fewer than two, either sign gives as large a mean
    if len(nonzero) >= 2:
        options = {"permutation_type": "samples", "vectorized": True, "n_resamples": draws, "batch": BATCH}
        test = permutation_test((nonzero,), lambda x, axis: x.sum(axis=axis), **options, rng=np.random.default_rng(0))
        p = float(test.pvalue)
    return Comparison(float(difference.mean()), p)


def correct_choice(differences: np.ndarray, draws: int = DRAWS) -> np.ndarray:
    """Returns p of each system's gain over one baseline, ``[R]``, corrected for the choice among the systems.

    It is the share of random signs of the questions' differences under which the largest of the R t statistics is as
    large as the system's (Westfall and Young, 1993, "Resampling-based multiple testing", the single-step method).

    differences: ``[R, Q]``, the systems' metric less the baseline's on each question
    """
    size = differences.shape[1]
    squares = (differences**2).mean(axis=1)

    def studentise(means: np.ndarray) -> np.ndarray:
        return means / np.sqrt(np.maximum(squares - means**2, 1e-12) / size)

    random = np.random.Generator(np.random.Philox(0))
    batches = (random.choice([-1.0, 1.0], (BATCH, size)) @ differences.T / size for _ in range(draws // BATCH))
    largest = np.concatenate([studentise(means).max(axis=1) for means in batches])
    return (1 + (largest[:, None] > studentise(differences.mean(axis=1)) - 1e-9).sum(axis=0)) / (1 + len(largest))


def correct_holm(p: Sequence[float]) -> list[float]:
    """Returns each p, corrected so that any false finding stays below the level (Holm, 1979)."""
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    corrected = np.empty(len(values))
    corrected[order] = np.minimum(np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)), 1)
    return corrected.tolist()


def estimate_error(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Returns the standard error of a's mean less b's, over questions and seeds, and its degrees of freedom.

    a, b: ``[S, Q]``, S runs on the same Q questions; a single run has no chance of its own. What seeds change in single
    questions counts once (Owen, 2007, "The pigeonhole bootstrap"); the degrees of freedom are Satterthwaite's.
    """
    difference, residual = a.mean(axis=0) - b.mean(axis=0), 0.0
    parts = [(difference.var(ddof=1) / len(difference), len(difference) - 1)]  # variances and their degrees of freedom
    for row in (row for row in (a, b) if len(row) > 1):
        parts.append((row.mean(axis=1).var(ddof=1) / len(row), len(row) - 1))
        left = row - row.mean(axis=1, keepdims=True) - row.mean(axis=0) + row.mean()
        residual += (left**2).sum() / ((len(row) - 1) * (row.shape[1] - 1)) / row.size
    questions, seeds = parts[0][0], sum(variance for variance, _ in parts[1:])
    error = float(np.sqrt(max(questions + seeds - residual, questions, seeds)))
    return error, error**4 / max(float(sum(variance**2 / count for variance, count in parts)), 1e-300)


def compare_runs(a: np.ndarray, b: np.ndarray) -> Comparison:
    """Compares two systems by Student's t of ``estimate_error``: would other questions and other seeds differ?"""
    from scipy.stats import t

    difference, (error, freedom) = float(a.mean() - b.mean()), estimate_error(a, b)
    return Comparison(difference, float(2 * t.sf(abs(difference) / error, freedom)) if error > 0 else 1.0)


def compare_rows(rows: Sequence[np.ndarray]) -> list[dict[str, Any] | None]:
    """Compares each row of a table with the first, by one metric, and corrects p for the number of rows.

    rows: each ``[S, Q]``, S runs with different seeds on the same Q questions

    Returns None for the first row, and for each other ``difference``, ``p``, and ``corrected``, p for the number of
    rows. p is that of ``compare_runs`` if a row has two runs or more that are not all equal, else of ``compare``.
    """
    # Runs are equal if no seed improved on a transferred ranker: copies of it say nothing about other seeds
    first, *others = (row[:1] if (row == row[0]).all() else row for row in rows)
    tests = [(compare_runs if max(len(row), len(first)) > 1 else compare)(row, first) for row in others]
    corrected = correct_holm([test.p for test in tests])
    return [None, *({**asdict(test), "corrected": p} for test, p in zip(tests, corrected, strict=True))]


def compute_interval(values: np.ndarray) -> tuple[float, float]:
    """Returns the 95% interval of the mean over questions, by the percentile bootstrap; values: ``[Q]``."""
    random = np.random.Generator(np.random.Philox(0))
    size = len(values)
    means = [values[random.integers(size, size=(BATCH, size))].mean(axis=1) for _ in range(DRAWS // BATCH)]
    low, high = np.percentile(np.concatenate(means), [2.5, 97.5])
    return float(low), float(high)


def format_p(p: float) -> str:
    """Returns p with three decimals."""
    return "<.001" if p < 0.001 else f"{p:.3f}"
