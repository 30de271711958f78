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


def compare(a: np.ndarray, b: np.ndarray, seed: int = 0, draws: int = DRAWS) -> Comparison:
    """Compares two systems by one metric on the same questions.

    a, b: ``[Q]``, or ``[S, Q]`` for S runs with different seeds, which are averaged first, so that each question
          stays one observation

    The randomisation test assumes no distribution: if the systems were the same, each question's difference could as
    well have the opposite sign, and p is the share of random signs that give as large a mean (Smucker et al., 2007, "A
    comparison of statistical significance tests for information retrieval evaluation").
    """
    a, b = np.atleast_2d(a).mean(axis=0), np.atleast_2d(b).mean(axis=0)
    difference = a - b
    return Comparison(float(difference.mean()), _run_randomisation_test(difference, seed, draws))


def correct_choice(differences: np.ndarray, draws: int = DRAWS) -> np.ndarray:
    """Returns p of each system's gain over one baseline, ``[R]``, corrected for the choice among the systems.

    differences: ``[R, Q]``, the systems' metric less the baseline's on each question

    Were a system no better, each question's differences could as well have the opposite sign, those of all systems at
    once. p is the share of random signs under which the largest of the R t statistics is as large as the system's:
    whichever is chosen, a gain is seen by chance no more often than the level says (Westfall and Young, 1993,
    "Resampling-based multiple testing", the single-step method).
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
    """Returns the two-sided p of Welch's t-test between the means of S runs of a, ``[S]``, and T runs of b, ``[T]``.

    It asks whether other seeds would give the same result; ``compare`` asks whether other questions would. It needs two
    runs of each.
    """
    from scipy.stats import ttest_ind

    if np.ptp(np.concatenate([a, b])) == 0:
        return 1.0
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")  # scipy warns about equal values, and about too few
        p = float(ttest_ind(a, b, equal_var=False).pvalue)
    return 1.0 if np.isnan(p) else p


def correct_holm(p: Sequence[float]) -> list[float]:
    """Returns each p corrected for their number, so that the chance of any false finding stays below the level.

    The smallest of m is multiplied by m, the next one by m - 1, and so on; none becomes smaller than the one before it
    (Holm, 1979, "A simple sequentially rejective multiple test procedure").
    """
    values = np.asarray(p, dtype=np.float64)
    order = np.argsort(values, kind="stable")
    corrected = np.empty(len(values))
    corrected[order] = np.minimum(np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)), 1)
    return corrected.tolist()


def correct_greater(tests: Sequence[Sequence[float]]) -> list[float]:
    """Returns the corrected p of comparisons, each of which must be significant in all of its tests.

    tests: for each comparison, p over questions and p over seeds, each of which ignores the other's variance

    The greatest p of each is valid for that, and Holm's method corrects these. To correct each kind of test separately
    and then take the greater p would find a difference where there is none twice as often as the level says.
    """
    return correct_holm([max(p) for p in tests])


def drop_equal_seeds(row: np.ndarray) -> np.ndarray:
    """Returns one run ``[1, Q]`` of a row whose runs ``[S, Q]`` are all equal, and any other row as it is.

    The runs are equal if no seed improved on a transferred ranker: copies of it say nothing about other seeds.
    """
    return row[:1] if (row == row[0]).all() else row


def compare_rows(rows: Sequence[np.ndarray], seed: int = 0) -> list[dict[str, Any] | None]:
    """Compares each row of a table with the first, by one metric, and corrects p for the number of rows.

    rows: each ``[S, Q]``, S runs with different seeds on the same Q questions

    Returns None for the first row, and for each other ``difference``, p of each test (``over_questions``; and
    ``over_seeds`` if both rows have two runs or more that are not all equal), and ``corrected``, the p of
    ``correct_greater`` over the rows.
    """
    first, *others = map(drop_equal_seeds, rows)
    tests: list[dict[str, Any]] = []
    for row in others:
        test: dict[str, Any] = asdict(compare(row, first, seed))
        if min(len(row), len(first)) > 1:
            test[OVER_SEEDS] = compare_seeds(row.mean(axis=1), first.mean(axis=1))
        tests.append(test)
    corrected = correct_greater([list_p(test) for test in tests])
    return [None, *({**test, "corrected": p} for test, p in zip(tests, corrected, strict=True))]


def list_p(test: dict[str, Any]) -> list[float]:
    """Returns p of each test of a comparison that ``compare_rows`` made."""
    return [test[name] for name in (OVER_QUESTIONS, OVER_SEEDS) if name in test]


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


def _run_randomisation_test(difference: np.ndarray, seed: int, draws: int) -> float:
    """Returns p by random signs, or by all combinations of signs if these are not more than ``draws``."""
    from scipy.stats import permutation_test

    nonzero = difference[difference != 0]  # a difference of zero has no sign
    if len(nonzero) < 2:  # either sign gives as large a mean
        return 1.0
    test = permutation_test(
        (nonzero,),
        lambda x, axis: x.sum(axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=draws,
        batch=BATCH,
        rng=np.random.default_rng(seed),
    )
    return float(test.pvalue)
