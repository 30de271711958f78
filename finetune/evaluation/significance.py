"""Tests whether one ranking is better than another by more than chance: paired over questions, and over seeds."""

import warnings
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

DRAWS = 10_000  # random assignments of signs
BATCH = 1000  # draws in memory at once
SIGNIFICANT = 0.05  # the level of Di Liello et al., 2022, table 1
OVER_QUESTIONS, OVER_SEEDS = "over_questions", "over_seeds"  # the tests of ``compare_rows``


@dataclass(frozen=True)
class Comparison:
    """How much better system a is than b: the difference of means, and two-sided p of the randomisation test."""

    difference: float
    over_questions: float


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
        test = permutation_test(
            (nonzero,),
            lambda x, axis: x.sum(axis=axis),
            permutation_type="samples",
            vectorized=True,
            n_resamples=draws,
            batch=BATCH,
            rng=np.random.default_rng(0),
        )
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
    largest = np.concatenate(
        [
            studentise(random.choice([-1.0, 1.0], (BATCH, size)) @ differences.T / size).max(axis=1)
            for _ in range(draws // BATCH)
        ]
    )
    return (1 + (largest[:, None] > studentise(differences.mean(axis=1)) - 1e-9).sum(axis=0)) / (1 + len(largest))


def compare_seeds(a: np.ndarray, b: np.ndarray) -> float:
    """Returns the two-sided p of Welch's t-test between S runs of a, ``[S]``, and T of b: would other seeds differ?"""
    from scipy.stats import ttest_ind

    if np.ptp(np.concatenate([a, b])) == 0:
        return 1.0
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # scipy warns about equal values, and about too few
        p = float(ttest_ind(a, b, equal_var=False).pvalue)
    return 1.0 if np.isnan(p) else p


def correct_holm(p: Sequence[float]) -> list[float]:
    """Returns each p, corrected so that any false finding stays below the level (Holm, 1979)."""
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    corrected = np.empty(len(values))
    corrected[order] = np.minimum(np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)), 1)
    return corrected.tolist()


def correct_greater(tests: Sequence[Sequence[float]]) -> list[float]:
    """Returns the corrected p of comparisons, each of which must be significant in all of its tests."""
    return correct_holm([max(p) for p in tests])


def compare_rows(rows: Sequence[np.ndarray]) -> list[dict[str, Any] | None]:
    """Compares each row of a table with the first, by one metric, and corrects p for the number of rows.

    rows: each ``[S, Q]``, S runs with different seeds on the same Q questions

    Returns None for the first row, and for each other ``difference``, p of each test (``over_questions``, and
    ``over_seeds`` if both rows have two runs or more that are not all equal), and p ``corrected`` over the rows.
    """
    # Runs are equal if no seed improved on a transferred ranker: copies of it say nothing about other seeds
    first, *others = (row[:1] if (row == row[0]).all() else row for row in rows)
    tests: list[dict[str, Any]] = []
    for row in others:
        test: dict[str, Any] = asdict(compare(row, first))
        if min(len(row), len(first)) > 1:
            test[OVER_SEEDS] = compare_seeds(row.mean(axis=1), first.mean(axis=1))
        tests.append(test)
    corrected = correct_greater([[p for name, p in test.items() if name != "difference"] for test in tests])
    return [None, *({**test, "corrected": p} for test, p in zip(tests, corrected, strict=True))]


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
