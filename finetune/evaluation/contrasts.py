"""Contrasts of rows that ran with several seeds: how large, how sure over questions and over seeds, and how small a
difference could be seen.

A contrast is a sum of rows with weights: +1 and -1 for the difference of two, or +1, -1, -1, +1 for how much more a
difference is in one place than in another. Every row has the figures of its seeds, ``[S, Q]``, on the same Q questions.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.stats import norm, t

from data_pipeline.core.errors import KinspanError

from .significance import SIGNIFICANT, compare, compare_seeds, correct_greater, drop_equal_seeds

DRAWS = 10_000  # of the bootstrap
ASSIGNMENTS = 100_000  # of random signs: 43 comparisons multiply the error of a p by as much
LEVEL = 0.95  # of intervals
POWER = 0.8  # with which the smallest detectable difference is found
SIMULATED = 20_000  # studies, for the smallest detectable difference
SIGNS = {2: (1, -1), 4: (1, -1, -1, 1)}  # the weights of a contrast's rows


@dataclass(frozen=True)
class Parts:
    """Where the variance of a contrast comes from.

    questions:     that of its mean over questions
    num_questions: how many they are
    seeds:         of each row, the variance of a single seed's MAP
    num_seeds:     of each row, how many there are
    residual:      what seeds change in single questions, which questions and seeds both hold
    """

    questions: float
    num_questions: int
    seeds: tuple[float, ...]
    num_seeds: tuple[int, ...]
    residual: float = 0.0

    @property
    def of_means(self) -> list[float]:
        """Of each row, the variance of its mean over seeds."""
        return [variance / count for variance, count in zip(self.seeds, self.num_seeds, strict=True)]

    @property
    def error(self) -> float:
        """The standard error of the contrast, in which the residual counts once."""
        least = max(self.questions, sum(self.of_means))
        return float(np.sqrt(max(self.questions + sum(self.of_means) - self.residual, least)))

    @property
    def freedom(self) -> float:
        """Satterthwaite's degrees of freedom of the whole (1946, "An approximate distribution of estimates of variance
        components"): few where three seeds that differ much are most of it."""
        shares = [(self.questions, self.num_questions - 1)]
        shares += [(v, count - 1) for v, count in zip(self.of_means, self.num_seeds, strict=True) if count > 1]
        total, below = sum(v for v, _ in shares), sum(v**2 / n for v, n in shares)
        return total**2 / below if below else np.inf


@dataclass(frozen=True)
class Contrast:
    """What is known of a contrast.

    difference:     mean over questions of the weighted sum of the rows' means
    low, high:      its interval, by the hierarchical bootstrap and Student's t
    parts:          what its variance consists of
    over_questions: two-sided p of the paired randomisation test over questions
    over_seeds:     two-sided p of Welch's t-test over seeds; None where a row has a single seed
    corrected:      the greater of both p, after Holm's correction; 1 before ``correct``
    """

    difference: float
    low: float
    high: float
    parts: Parts
    over_questions: float
    over_seeds: float | None
    corrected: float = 1.0

    @property
    def p(self) -> list[float]:
        """Of both tests; 1 where there is no test over seeds."""
        return [self.over_questions, 1.0 if self.over_seeds is None else self.over_seeds]

    @property
    def is_shown(self) -> bool:
        """Whether it is more than chance over questions and over seeds, with all comparisons counted."""
        return self.corrected < SIGNIFICANT


def measure_contrast(rows: Sequence[np.ndarray], seed: int = 0) -> Contrast:
    """Measures the contrast of two rows, or of four, each ``[S, Q]``; equal seeds of a row count as one.

    Raises KinspanError where there is a single question, which has no variance.
    """
    if rows[0].shape[1] < 2:
        raise KinspanError("a comparison needs two test questions or more, and the set has one")
    signs, rows = SIGNS[len(rows)], [drop_equal_seeds(row) for row in rows]
    by_question = sum(sign * row.mean(axis=0) for sign, row in zip(signs, rows, strict=True))
    parts = measure_parts(rows, by_question)
    low, high = find_interval(draw_differences(rows, signs, seed), float(by_question.mean()), parts)
    return Contrast(
        difference=float(by_question.mean()),
        low=low,
        high=high,
        parts=parts,
        over_questions=compare(by_question, np.zeros_like(by_question), seed, ASSIGNMENTS).over_questions,
        over_seeds=compute_p_over_seeds([row.mean(axis=1) for row in rows], signs),
    )


def measure_parts(rows: Sequence[np.ndarray], by_question: np.ndarray) -> Parts:
    """Takes the variance of a contrast apart; ``by_question``, ``[Q]``, is the contrast of each question."""
    num_questions = len(by_question)
    of_seeds = tuple(float(row.mean(axis=1).var(ddof=1)) if len(row) > 1 else 0.0 for row in rows)
    residual = sum(_measure_residual(row) / row.size for row in rows if len(row) > 1)
    return Parts(
        float(by_question.var(ddof=1)) / num_questions, num_questions, of_seeds, tuple(map(len, rows)), residual
    )


def _measure_residual(row: np.ndarray) -> float:
    """The variance of a row's figures, ``[S, Q]``, that neither the seed nor the question accounts for."""
    left = row - row.mean(axis=1, keepdims=True) - row.mean(axis=0) + row.mean()
    return float((left**2).sum() / ((row.shape[0] - 1) * (row.shape[1] - 1)))


def find_interval(draws: np.ndarray, difference: float, parts: Parts) -> tuple[float, float]:
    """The interval of a difference from the draws of its bootstrap, ``[DRAWS]``.

    The percentiles have the shape of the bootstrap. Their width is that of the contrast's standard error, since a
    bootstrap of questions and seeds counts the residual with both (Owen, 2007, "The pigeonhole bootstrap"), and of
    Student's t, since the variance of a few seeds is itself uncertain.
    """
    tail = (1 - LEVEL) / 2
    spread = draws.std(ddof=1)
    wider = parts.error / spread * t.isf(tail, parts.freedom) / norm.isf(tail) if spread else 1.0
    low, high = difference + (np.quantile(draws, [tail, 1 - tail]) - difference) * wider
    return float(low), float(high)


def draw_differences(rows: Sequence[np.ndarray], signs: Sequence[int], seed: int = 0) -> np.ndarray:
    """Returns the contrast in each draw of a hierarchical bootstrap, ``[DRAWS]``.

    A draw takes questions with replacement, the same ones for all rows, and of each row seeds with replacement
    (Davison and Hinkley, 1997, "Bootstrap Methods and their Application", section 3.8). The mean of S values that are
    drawn from S has a variance that is (S - 1) / S of what it stands for, a fifth too little with five seeds: each
    draw's deviation from the row's mean is therefore stretched by the root of S / (S - 1). A single seed has none.
    What seeds change in single questions is counted with the questions and with the seeds: see ``find_interval``.
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

    Of a single seed nothing is shown.
    """
    corrected = correct_greater([[1.0] if c is None else c.p for c in contrasts])
    return [c and replace(c, corrected=p) for c, p in zip(contrasts, corrected, strict=True)]


def find_detectable(parts: Sequence[Parts], level: float = SIGNIFICANT) -> float:
    """The smallest true difference of two rows that both tests find at this level in 80 of 100 studies.

    parts: of comparisons with equal numbers of seeds; the studies that are simulated have their mean variances, those
           of rows with fewer seeds and with more seeds apart

    A study draws the MAP of every seed, and an error that all seeds share because the questions are a sample. The test
    over questions is taken as that of a normal mean, which it is nearly for some hundred questions; that over seeds is
    Welch's.
    """
    random = np.random.default_rng(0)
    of_questions = float(np.mean([p.questions for p in parts]))
    seeds = [pair for p in parts for pair in zip(p.num_seeds, p.seeds, strict=True)]
    counts = parts[0].num_seeds
    moved, variances = random.normal(0, np.sqrt(of_questions), SIMULATED), []
    for count in counts:
        of_seeds = float(np.mean([variance for number, variance in seeds if number == count]))
        maps = random.normal(0, np.sqrt(of_seeds), (SIMULATED, count))
        moved += maps.mean(axis=1)
        variances.append(maps.var(axis=1, ddof=1) / count)
    variance = sum(variances)
    freedom = variance**2 / sum(v**2 / (count - 1) for v, count in zip(variances, counts, strict=True))
    # What a study's difference must be for both tests to find it.
    needed = np.maximum(norm.isf(level / 2) * np.sqrt(of_questions), t.isf(level / 2, freedom) * np.sqrt(variance))
    return float(np.quantile(needed - moved, POWER))
