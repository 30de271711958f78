"""Differences between rows: how large, how sure over questions and over seeds, and how small one could be seen.

A contrast is a sum of rows with weights: +1 and -1 for the difference of two, or +1, -1, -1, +1 for how much more a
difference is in one place than in another. Every row has the figures of its seeds, ``[S, Q]``, on the same Q questions.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np
from scipy.stats import norm, t

from finetune.evaluation.significance import SIGNIFICANT, compare, compare_seeds, correct_holm

DRAWS = 10_000  # of the bootstrap
LEVEL = 0.95  # of intervals
POWER = 0.8  # with which the smallest detectable difference is found
SIGNS = {2: (1, -1), 4: (1, -1, -1, 1)}  # the weights of a contrast's rows


@dataclass(frozen=True)
class Contrast:
    """What is known of a contrast.

    difference:     mean over questions of the weighted sum of the rows' means
    low, high:      its interval, by the hierarchical bootstrap
    error:          its standard error, by the same
    over_questions: two-sided p of the paired randomisation test over questions
    over_seeds:     two-sided p of Welch's t-test over seeds; None where a row has a single seed
    corrected:      the greater of both p after Holm's correction; 1 before ``correct``
    """

    difference: float
    low: float
    high: float
    error: float
    over_questions: float
    over_seeds: float | None
    corrected: float = 1.0

    @property
    def is_shown(self) -> bool:
        """Whether it is more than chance over questions and over seeds, with all comparisons counted."""
        return self.corrected < SIGNIFICANT


def measure_contrast(rows: Sequence[np.ndarray], seed: int = 0) -> Contrast:
    """Measures the contrast of two rows, or of four, each ``[S, Q]``."""
    signs = SIGNS[len(rows)]
    by_question = sum(sign * row.mean(axis=0) for sign, row in zip(signs, rows, strict=True))
    draws = draw_differences(rows, signs, seed)
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Contrast(
        difference=float(by_question.mean()),
        low=float(low),
        high=float(high),
        error=float(draws.std(ddof=1)),
        over_questions=compare(by_question, np.zeros_like(by_question), seed).randomisation,
        over_seeds=compute_p_over_seeds([row.mean(axis=1) for row in rows], signs),
    )


def draw_differences(rows: Sequence[np.ndarray], signs: Sequence[int], seed: int = 0) -> np.ndarray:
    """Returns the contrast in each draw of a hierarchical bootstrap, ``[DRAWS]``.

    A draw takes questions with replacement, the same ones for all rows, and of each row seeds with replacement
    (Davison and Hinkley, 1997, "Bootstrap Methods and their Application", section 3.8). The mean of S values that are
    drawn from S has a variance that is (S - 1) / S of what it stands for, a fifth too little with five seeds: each
    draw's deviation from the row's mean is therefore stretched by the root of S / (S - 1). A single seed has none.
    What seeds change in single questions is counted with the questions and with the seeds, so that an interval is
    rather too wide than too narrow (Owen, 2007, "The pigeonhole bootstrap").
    """
    random = np.random.default_rng(seed)
    num_questions = rows[0].shape[1]
    asked = random.multinomial(num_questions, np.full(num_questions, 1 / num_questions), size=DRAWS) / num_questions
    total = np.zeros(DRAWS)
    for sign, row in zip(signs, rows, strict=True):
        count = len(row)
        drawn = random.multinomial(count, np.full(count, 1 / count), size=DRAWS) / count  # [DRAWS, S]
        stretch = np.sqrt(count / (count - 1)) if count > 1 else 0.0
        weights = 1 / count + stretch * (drawn - 1 / count)
        total += sign * np.einsum("ds,ds->d", weights, asked @ row.T)
    return total


def compute_p_over_seeds(maps: Sequence[np.ndarray], signs: Sequence[int]) -> float | None:
    """Two-sided p of Welch's t-test of a contrast of means: of two rows, that of ``significance.compare_seeds``.

    maps: of each row, the figure of each seed. The degrees of freedom of more rows are Satterthwaite's (1946, "An
    approximate distribution of estimates of variance components").
    """
    if min(map(len, maps)) < 2:
        return None
    if len(maps) == 2:
        return compare_seeds(*maps)
    variances = np.array([of_row.var(ddof=1) / len(of_row) for of_row in maps])
    if not variances.any():
        return 1.0
    freedom = variances.sum() ** 2 / sum(v**2 / (len(of_row) - 1) for v, of_row in zip(variances, maps, strict=True))
    difference = sum(sign * of_row.mean() for sign, of_row in zip(signs, maps, strict=True))
    return float(2 * t.sf(abs(difference) / np.sqrt(variances.sum()), freedom))


def correct(contrasts: Sequence[Contrast | None]) -> list[Contrast | None]:
    """Corrects p by Holm's method over all comparisons of the recipe, in which those that have not run count as 1.

    Each test is corrected for itself, and the greater p counts: a difference must be more than chance over questions,
    which does not see that seeds differ, and over seeds, which does not see that questions differ. Of a single seed
    nothing is shown.
    """
    tests = [
        correct_holm([1.0 if c is None or getattr(c, test) is None else getattr(c, test) for c in contrasts])
        for test in ("over_questions", "over_seeds")
    ]
    return [c and replace(c, corrected=max(p)) for c, *p in zip(contrasts, *tests, strict=True)]


def find_detectable(error: float, comparisons: int = 1) -> float:
    """The smallest true difference that a two-sided test at 5% finds in 80 of 100 cases.

    error:       standard error of the difference
    comparisons: by how many the level is divided, as Holm's method does for the smallest p
    """
    return float((norm.isf((1 - LEVEL) / 2 / comparisons) + norm.ppf(POWER)) * error)


def measure_error_rate(row: np.ndarray) -> dict[str, Any]:
    """Splits ten seeds of one row, ``[10, Q]``, into five and five in all 126 ways, and counts what is then "found".

    Nothing is there to be found: of a test that holds its level, the share of p below .05 is near .05 or less. The
    splits are of the same ten runs, so that the shares are no more exact than ten runs are.
    """
    tests = [
        (compare(one, other).randomisation, compare_seeds(one.mean(axis=1), other.mean(axis=1)))
        for one, other in split_in_halves(row)
    ]
    found = np.array(tests) < SIGNIFICANT
    over_questions, over_seeds = found.mean(axis=0).tolist()
    both = float(found.all(axis=1).mean())
    return {"splits": len(tests), "over_questions": over_questions, "over_seeds": over_seeds, "both": both}


def split_in_halves(row: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yields every way to split the seeds of ``row``, ``[S, Q]``, into two halves; which half is first is no matter."""
    everyone = set(range(len(row)))
    for others in combinations(range(1, len(row)), len(row) // 2 - 1):
        one = {0, *others}
        yield row[sorted(one)], row[sorted(everyone - one)]
